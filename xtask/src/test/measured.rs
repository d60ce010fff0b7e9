//! What the tests' process tells of the machine (`tests/src/watch.rs`), and when a failed test is run again for it.

use std::time::Duration;

use serde_json::Value;

/// Before what the watchdog saw during a test.
const WATCHED: &str = "@@watched ";
/// Before a figure that a test measured.
const FIGURE: &str = "@@figure ";

/// What the watchdog saw during a test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// The longest time that the machine, or the guest, stood still at once: a gap of a ticking thread.
    pub(crate) stood_still: Duration,
    /// How long a thread of an agent, the one that waited most, was runnable and did not run.
    pub(crate) agent_waited: Duration,
}

/// A figure that a test measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) test: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// What is promised of it, in its unit.
    pub(crate) promised: Option<f64>,
    /// Of a time: how long the machine stood still meanwhile, in its unit.
    pub(crate) still: Option<f64>,
}

/// One line of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    /// Of a test.
    Watched(String, Measured),
    Figure(Figure),
}

/// What a line tells, and what stands before that.
pub(crate) fn read(line: &str) -> Option<(&str, Told)> {
    let watched = line.split_once(WATCHED).and_then(|(before, json)| {
        let value: Value = serde_json::from_str(json).ok()?;
        let time = |key: &str| value[key].as_u64().map(Duration::from_millis);
        let measured = Measured { stood_still: time("still_ms")?, agent_waited: time("waited_ms")? };
        Some((before, Told::Watched(value["test"].as_str()?.to_owned(), measured)))
    });
    watched.or_else(|| {
        let (before, json) = line.split_once(FIGURE)?;
        let value: Value = serde_json::from_str(json).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let figure = Figure {
            test: text("test")?,
            name: text("name")?,
            value: value["value"].as_f64()?,
            unit: text("unit")?,
            promised: value["promised"].as_f64(),
            still: value["still"].as_f64(),
        };
        Some((before, Told::Figure(figure)))
    })
}

/// What a failed test is forgiven for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The shortest time within which something has to happen for its tests to pass.
    pub(crate) time: Duration,
    /// Its tests make load: that the agent waits for a processor is their own doing.
    pub(crate) makes_load: bool,
}

impl Bound {
    /// Why a failed test is run again: what was measured exceeds the bound. `None` where it has failed.
    pub(crate) fn exceeded(&self, measured: &Measured) -> Option<String> {
        let bound = self.time.as_secs_f64();
        let told = |what: &str, time: Duration| {
            (time > self.time)
                .then(|| format!("{what} {:.1} s, and its bound is {bound} s", time.as_secs_f64()))
        };
        let waited = || {
            let waited = told("the agent waited for a processor", measured.agent_waited);
            waited.filter(|_| !self.makes_load)
        };
        told("the machine stood still", measured.stood_still).or_else(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exceeds_the_bound_is_forgiven() {
        let measured = |still, waited| Measured {
            stood_still: Duration::from_millis(still),
            agent_waited: Duration::from_millis(waited),
        };
        let bound = Bound { time: Duration::from_millis(500), makes_load: false };
        assert_eq!(bound.exceeded(&measured(500, 500)), None);
        let still = bound.exceeded(&measured(2_300, 0)).expect("forgiven");
        assert_eq!(still, "the machine stood still 2.3 s, and its bound is 0.5 s");
        let waited = bound.exceeded(&measured(0, 600)).expect("forgiven");
        assert!(waited.starts_with("the agent waited for a processor 0.6 s"), "{waited}");
        let loaded = Bound { makes_load: true, ..bound };
        assert_eq!(loaded.exceeded(&measured(0, 600)), None);
        assert!(loaded.exceeded(&measured(600, 0)).is_some());
    }

    #[test]
    fn what_is_no_line_of_the_watchdog_tells_nothing() {
        for line in
            ["", "test a ... ok", "@@watched {", "@@watched {\"test\":\"a\"}", "@@figure {\"test\":\"a\"}"]
        {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
