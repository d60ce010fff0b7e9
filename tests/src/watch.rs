//! How long this machine (a guest, where the test runs in one) stood still during a test, and how long the agent's threads were runnable and did not run.
//!
//! A bound in a test is the promised time plus the time that the machine stood still ([`within`], [`wait_within`]). The runner reads both figures of a failed
//! test. It runs the test again only where the test missed a bound ([`missed`]) and one of the figures exceeds that bound.

mod locked;
mod looks;
mod precedence;
mod waited;

use std::{
    cell::RefCell,
    fmt::Display,
    io::Write as _,
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Error, Result, anyhow};
use locked::locked;
use looks::{LATE, Looks};
use nodefence::flags::monotonic_ns;
use precedence::before_all_programs;
use serde_json::{Value, json};
use waited::Waited;

/// How often the ticking thread looks at the clock.
const TICK: Duration = Duration::from_millis(10);
/// How often the agents' threads are read. Each reading costs an emulated processor some milliseconds.
const LOOK: Duration = Duration::from_millis(200);
/// How long after its bound a wait goes on, to tell how late the end came.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// The prefix by which the runner finds a test's figures.
const WATCHED: &str = "@@watched";
/// The prefix by which the runner finds a measured figure.
const FIGURE: &str = "@@figure";
/// The prefix by which the runner finds a missed bound, in the error of a failed test.
const MISSED: &str = "(missed bound:";
/// The text after a bound that already includes the machine's standstill: the runner does not excuse the test for it a second time.
const COUNTED: &str = "and what stood still";

/// The state of this whole process.
static SEEN: Mutex<Seen> = Mutex::new(Seen { due: None, gaps: Vec::new(), agents: Vec::new() });
static TICKING: Once = Once::new();
/// Set in programs that are no tests.
static OFF: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OF_THIS_TEST: RefCell<Weak<Watch>> = const { RefCell::new(Weak::new()) };
}

struct Seen {
    /// When the next tick is due.
    due: Option<Instant>,
    /// When a tick was due, and how late it came.
    gaps: Vec<(Instant, Duration)>,
    agents: Vec<Weak<Waited>>,
}

/// Watches for one test, from the first namespace or agent that it makes to the last one that it drops. Then prints the figures for the runner.
#[derive(Debug)]
pub struct Watch {
    test: String,
    began: Instant,
    /// The agents' waits, those gone included.
    waited: Mutex<Vec<Arc<Waited>>>,
}

impl Watch {
    /// The watch of the test that runs in the calling thread: libtest names a thread after its test.
    pub fn here() -> Arc<Self> {
        if !OFF.load(Ordering::Relaxed) {
            TICKING.call_once(|| drop(std::thread::Builder::new().name("watchdog".to_owned()).spawn(tick)));
        }
        OF_THIS_TEST.with_borrow_mut(|slot| {
            slot.upgrade().unwrap_or_else(|| {
                let this = Self { test: test(), began: Instant::now(), waited: Mutex::default() };
                let this = Arc::new(this);
                *slot = Arc::downgrade(&this);
                this
            })
        })
    }

    /// Watches a process's threads from here on, until it is gone.
    pub fn agent(&self, pid: i32) {
        let waited = Arc::new(Waited::of(pid));
        waited.look();
        locked(&SEEN).agents.push(Arc::downgrade(&waited));
        locked(&self.waited).push(waited);
    }

    fn waited(&self) -> Duration {
        let waited = locked(&self.waited);
        waited.iter().for_each(|agent| agent.look());
        waited.iter().map(|agent| agent.longest()).max().unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let [still, waited] = [longest_gap(self.began), self.waited()].map(|time| time.as_millis() as u64);
        tell(WATCHED, &json!({"test": self.test, "still_ms": still, "waited_ms": waited}));
    }
}

/// Ends all watching and printing: for the demo and the benchmarks, which make namespaces and run agents as tests do.
pub fn off() {
    OFF.store(true, Ordering::Relaxed);
}

/// The test that runs in the calling thread.
fn test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// Writes past libtest, which holds back the output of a passing test.
fn tell(mark: &str, value: &Value) {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let _nobody_reads = std::io::stderr().write_all(format!("{mark} {value}\n").as_bytes());
}

fn tick() {
    // No program can hold this thread up.
    let _without_root = before_all_programs();
    let mut looked = Instant::now();
    loop {
        let due = Instant::now() + TICK;
        locked(&SEEN).due = Some(due);
        std::thread::sleep(TICK);
        let late = due.elapsed();
        let mut seen = locked(&SEEN);
        // This standstill is over: whoever reads before the next tick is due is told of it once.
        seen.due = None;
        if late > LATE {
            seen.gaps.push((due, late));
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            seen.agents.retain(|agent| agent.strong_count() > 0);
            let agents: Vec<_> = seen.agents.iter().filter_map(Weak::upgrade).collect();
            drop(seen);
            agents.iter().for_each(|agent| agent.look());
        }
    }
}

/// The time that this machine stood still since `since`, all together.
pub fn stood_still(since: Instant) -> Duration {
    gaps(since, Instant::now()).iter().sum()
}

/// The longest time that the machine stood still without a break since then. Many short stops do not make a lease lapse.
pub fn longest_gap(since: Instant) -> Duration {
    gaps(since, Instant::now()).into_iter().max().unwrap_or_default()
}

/// The length of each gap between two ticks. A reader that comes before the ticking thread runs again is told of the gap that is not over.
fn gaps(from: Instant, to: Instant) -> Vec<Duration> {
    let seen = locked(&SEEN);
    let open = seen.due.map(|due| (due, due.elapsed())).filter(|(_, late)| *late > LATE);
    let all = open.iter().chain(seen.gaps.iter().rev());
    let within = all.map(|(due, late)| (*due + *late).min(to).saturating_duration_since((*due).max(from)));
    within.filter(|gap| !gap.is_zero()).collect()
}

/// The [`Instant`] at which CLOCK_MONOTONIC showed `nanoseconds`. An `Instant` is based on that clock.
pub fn moment(nanoseconds: u64) -> Instant {
    Instant::now() - Duration::from_nanos(monotonic_ns().saturating_sub(nanoseconds))
}

/// Records a figure that a test measured, for the results file.
pub fn figure(name: &str, value: f64, unit: &str) {
    tell(FIGURE, &json!({"test": test(), "name": name, "value": value, "unit": unit}));
}

/// Checks that `took`, which began at `began`, is within the promise plus the time that the machine stood still. Records the figure.
///
/// # Errors
/// Where `took` is longer.
pub fn held(what: &str, promised: Duration, began: Instant, took: Duration) -> Result<Duration> {
    kept(what, promised, began, took);
    bounded(what, promised, began, took)?;
    Ok(took)
}

/// Records a time, its promise, and how long the machine stood still meanwhile.
fn kept(what: &str, promised: Duration, began: Instant, took: Duration) {
    let [value, promised, still] =
        [took, promised, still_within(began, took)].map(|time| time.as_secs_f64() * 1e3);
    let told = json!({"test": test(), "name": what, "value": value, "unit": "ms", "promised": promised, "still": still});
    tell(FIGURE, &told);
}

fn still_within(began: Instant, took: Duration) -> Duration {
    gaps(began, began + took).iter().sum()
}

/// As [`held`], but records no figure: for checks that repeat.
///
/// # Errors
/// As [`held`].
pub fn bounded(what: &str, promised: Duration, began: Instant, took: Duration) -> Result<()> {
    let still = still_within(began, took);
    if took > promised + still { Err(late(what, promised, took, still)) } else { Ok(()) }
}

fn late(what: &str, promised: Duration, took: Duration, still: Duration) -> Error {
    let text = format!(
        "{what}: {took:?}; promised are {promised:?}, and the machine stood still for {still:?} meanwhile"
    );
    overdue(promised, text)
}

/// The error of a test that missed a bound which does not include the machine's standstill. Without a missed bound the runner never runs a failed test again.
/// With it, the runner does where the machine stood still without a break for longer than the bound, or the agent waited for a processor. A bound missed by
/// [`overdue`], [`held`], [`within`] and [`wait_within`] is excused by the agent's wait alone.
pub fn missed(bound: Duration, what: impl Display) -> Error {
    anyhow!("{what} {MISSED} {} ms)", bound.as_millis())
}

/// As [`missed`], for a bound that includes the machine's standstill, which excuses nothing a second time.
pub fn overdue(bound: Duration, what: impl Display) -> Error {
    anyhow!("{what} {MISSED} {} ms {COUNTED})", bound.as_millis())
}

/// As [`held`], for an action that ends now.
///
/// # Errors
/// As [`held`].
pub fn within(what: &str, promised: Duration, began: Instant) -> Result<Duration> {
    held(what, promised, began, began.elapsed())
}

/// Waits until `done`, and checks the time since `began` against the promise plus the machine's standstill since. A look counts by its beginning. One look begins
/// when the time is over: an end that this look does not find is late.
///
/// # Errors
/// Where it took longer, or was not done.
pub fn wait_within(
    what: &str,
    promised: Duration,
    began: Instant,
    mut done: impl FnMut() -> bool,
) -> Result<Duration> {
    let mut looks = Looks::new(promised);
    loop {
        let took = began.elapsed();
        if done() {
            kept(what, promised, began, took);
            let still = still_within(began, took);
            let in_time = looks.in_time(took, still);
            return if in_time { Ok(took) } else { Err(late(what, promised, took, still)) };
        }
        let ended = began.elapsed();
        let still = stood_still(began);
        if took > promised + still + GIVEN_UP {
            return Err(late(&format!("{what}, not yet"), promised, took, still));
        }
        std::thread::sleep(looks.not_yet(took, ended, still));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A child stops this whole process for a while.
    #[test]
    fn a_process_that_stood_still_knows_it() {
        let _watch = Watch::here();
        std::thread::sleep(TICK * 3);
        let began = Instant::now();
        let script = "kill -STOP $PPID; sleep 0.4; kill -CONT $PPID";
        let stopped = Command::new("sh").args(["-c", script]).status().expect("sh");
        assert!(stopped.success());
        // No pause here: the ticking thread may not have run yet.
        let still = stood_still(began);
        let took = began.elapsed();
        assert!(still > Duration::from_millis(300) && still < took, "{still:?} of {took:?}");
        assert!(longest_gap(began) > Duration::from_millis(300));
        let what = "what takes longer than was promised";
        within(what, took - still / 2, began).expect("its bound has what stood still in it");
        let error = held(what, Duration::from_millis(1), Instant::now(), Duration::from_secs(60));
        assert!(error.is_err_and(|error| {
            error.to_string().ends_with("meanwhile (missed bound: 1 ms and what stood still)")
        }));
    }

    /// Beside busy processes on one processor, another process that all of them precede.
    #[test]
    fn a_process_that_waits_for_a_processor_is_seen() {
        let busy = |nice: &str| {
            let line = ["-c", "0", "nice", "-n", nice, "sh", "-c", "while :; do :; done"];
            Command::new("taskset").args(line).spawn().expect("taskset, of util-linux")
        };
        let mut all = ["12", "0", "0", "0"].map(busy);
        let watch = Watch::here();
        watch.agent(all[0].id() as i32);
        // The kernel counts a wait once it is over, which may take a while where others want the processor too.
        let mut waited = Duration::ZERO;
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(200));
            waited = watch.waited();
            if waited > Duration::from_millis(50) {
                break;
            }
        }
        for child in &mut all {
            child.kill().and_then(|()| child.wait()).expect("it ran until now");
        }
        assert!(waited > Duration::from_millis(50), "{waited:?}");
    }
}
