//! Medians and percentiles. Pure.

/// The median, with the least and the greatest sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The summary of samples. `None` if there are no samples.
pub(crate) fn summary(samples: &[f64]) -> Option<Summary> {
    let sorted = sorted(samples);
    Some(Summary { median: percentile(samples, 50.0)?, min: *sorted.first()?, max: *sorted.last()? })
}

/// The percentile `p` (0 to 100), interpolated between neighbours.
pub(crate) fn percentile(samples: &[f64], p: f64) -> Option<f64> {
    let sorted = sorted(samples);
    let last = sorted.len().checked_sub(1)?;
    let at = (p / 100.0).clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64))
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(percentile(&samples, 50.0), Some(2.5));
        assert_eq!(percentile(&samples, 0.0), Some(1.0));
        assert_eq!(percentile(&samples, 100.0), Some(4.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn a_summary_holds_the_spread() {
        assert_eq!(summary(&[5.0, 1.0, 9.0]), Some(Summary { median: 5.0, min: 1.0, max: 9.0 }));
    }
}
