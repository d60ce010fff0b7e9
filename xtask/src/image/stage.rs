//! The image as a stage of `cargo xtask test --all`.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;
use crate::say::say;
use crate::test::tally::Stage;

/// How long the image may take: both programs are built twice, once with an empty target folder.
const BUILT: Duration = Duration::from_secs(2 * 60 * 60);

/// Builds the image for all architectures, twice and from two folders, which counts as one test. Each program is run as far as its version.
pub(crate) fn stage() -> Result<Stage> {
    say!("the image for all architectures, twice");
    let started = Instant::now();
    let mut command = process::verb(&["image", "--check"])?;
    let ended = process::stream(&mut command, BUILT, |line| println!("{line}"))?;
    let mut stage = judge(&process::line(&command), ended.map(|status| status.success()));
    stage.took = started.elapsed();
    Ok(stage)
}

/// The result. `succeeded`: how the command ended; `None` if it hung.
fn judge(command: &str, succeeded: Option<bool>) -> Stage {
    let mut stage = Stage::new("image");
    match succeeded {
        Some(true) => stage.pass(),
        Some(false) => stage.fail(format!("`{command}` failed")),
        None => stage.fail(format!("`{command}` hung, and was killed")),
    }
    stage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_fails_or_hangs_is_a_failure() {
        let judged = |succeeded| {
            let stage = judge("x", succeeded);
            (stage.passed, stage.failures)
        };
        assert_eq!(judged(Some(true)), (1, vec![]));
        assert_eq!(judged(Some(false)), (0, vec!["`x` failed".to_owned()]));
        assert_eq!(judged(None), (0, vec!["`x` hung, and was killed".to_owned()]));
    }
}
