//! Waits with limits that end on Ctrl-C, and lines of progress.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// How often a wait looks.
const LOOK: Duration = Duration::from_millis(250);

/// How often a long wait says that it goes on.
const TELL: Duration = Duration::from_secs(15);

/// Tells a person how far the cluster is, and ends waits on Ctrl-C.
#[derive(Debug, Clone)]
pub struct Waiting {
    began: Instant,
    stop: Arc<AtomicBool>,
}

impl Waiting {
    /// Waits from now on until `stop` is set.
    pub fn new(stop: &Arc<AtomicBool>) -> Self {
        Self { began: Instant::now(), stop: Arc::clone(stop) }
    }

    /// Prints a line with the time since the beginning.
    pub fn say(&self, text: &str) {
        eprintln!("cluster: {:4.0} s  {text}", self.began.elapsed().as_secs_f64());
    }

    /// Fails after Ctrl-C.
    ///
    /// # Errors
    /// The error says so.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits until a look succeeds. `look` gives an error of its own to go on, and a plain one to end the wait.
    ///
    /// # Errors
    /// Fails with the last error of `look` if the time is over, with its plain error, or after Ctrl-C.
    pub fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<Result<T>>,
    ) -> Result<T> {
        let began = Instant::now();
        let mut told = began;
        loop {
            let last = match look()? {
                Ok(found) => {
                    self.say(&format!("{what} (after {:.0} s)", began.elapsed().as_secs_f64()));
                    return Ok(found);
                }
                Err(error) => error,
            };
            self.check()?;
            if began.elapsed() > limit {
                return Err(last).with_context(|| format!("{what}: not within {} s", limit.as_secs()));
            }
            if told.elapsed() > TELL {
                told = Instant::now();
                self.say(&format!("waiting until {what}: {last:#}"));
            }
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> (Waiting, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        (Waiting::new(&stop), stop)
    }

    #[test]
    fn a_wait_ends_with_what_was_found_or_with_the_last_error() {
        let (waiting, _) = waiting();
        let mut looks = 0;
        let found = waiting.until("found", Duration::from_secs(60), || {
            looks += 1;
            Ok(if looks == 2 { Ok(looks) } else { Err(anyhow::anyhow!("not yet")) })
        });
        assert_eq!(found.expect("found"), 2);
        let never = || Ok(Err::<(), _>(anyhow::anyhow!("still booting")));
        let error = waiting.until("up", Duration::ZERO, never).expect_err("never");
        assert_eq!(format!("{error:#}"), "up: not within 0 s: still booting");
    }

    #[test]
    fn a_part_that_ended_and_ctrl_c_end_a_wait_at_once() {
        let (waiting, stop) = waiting();
        let error =
            waiting.until("up", Duration::from_secs(60), || -> Result<Result<()>> { bail!("QEMU ended") });
        assert_eq!(format!("{:#}", error.expect_err("it ended")), "QEMU ended");
        stop.store(true, Ordering::Relaxed);
        let never = || Ok(Err::<(), _>(anyhow::anyhow!("still booting")));
        let error = waiting.until("up", Duration::from_secs(60), never).expect_err("stopped");
        assert_eq!(error.to_string(), "interrupted");
    }
}
