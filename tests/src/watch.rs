//! Measures how long this machine, or the guest in which the test runs, stood still during a test, and how long the agent's threads were runnable but did not
//! run.
//!
//! A bound in a test is the promised time plus the time that the machine stood still ([`within`], [`wait_within`]). The runner reads both figures of a failed
//! test. It runs the test again only if the test missed a bound ([`missed`]) and one of the figures exceeds that bound.

mod locked;
mod looks;
pub(crate) mod precedence;
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

/// The interval at which the ticking thread looks at the clock.
const TICK: Duration = Duration::from_millis(10);
/// The interval at which the agents' threads are read. Each reading takes an emulated processor some milliseconds.
const LOOK: Duration = Duration::from_millis(200);
/// How long a wait goes on after its bound, to find out how late the end comes.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// The prefix by which the runner finds a test's figures.
const WATCHED: &str = "@@watched";
/// The prefix by which the runner finds a measured figure.
const FIGURE: &str = "@@figure";
/// The prefix by which the runner finds a missed bound, in the error of a failed test.
const MISSED: &str = "(missed bound:";
/// The text after a bound that already includes the machine's standstill. The runner does not excuse such a test for that standstill a second time.
const COUNTED: &str = "and what stood still";

/// The state for this whole process.
static SEEN: Mutex<Seen> = Mutex::new(Seen { due: None, gaps: Vec::new(), agents: Vec::new() });
static TICKING: Once = Once::new();
/// Set in programs that are not tests.
static OFF: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OF_THIS_TEST: RefCell<Weak<Watch>> = const { RefCell::new(Weak::new()) };
}

struct Seen {
    /// When the next tick is due.
    due: Option<Instant>,
    /// For each late tick, when it was due and how late it came.
    gaps: Vec<(Instant, Duration)>,
    agents: Vec<Weak<Waited>>,
}

/// The watch of one test, from the first namespace or agent that the test makes to the last one that it drops. At the end it prints the figures for the runner.
#[derive(Debug)]
pub struct Watch {
    test: String,
    began: Instant,
    /// The waits of all agents, ended ones included.
    waited: Mutex<Vec<Arc<Waited>>>,
}

impl Watch {
    /// The watch of the test that runs in the calling thread. libtest names a thread after its test.
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

    /// Watches a process's threads from now on, until the process ends.
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
        write_line(WATCHED, &json!({"test": self.test, "still_ms": still, "waited_ms": waited}));
    }
}

/// Turns off all watching and printing, for the demo and the benchmarks. These make namespaces and run agents as tests do.
pub fn off() {
    OFF.store(true, Ordering::Relaxed);
}

/// The name of the test that runs in the calling thread.
fn test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// Writes a line for the runner straight to standard error, since libtest holds back the output of a passing test.
fn write_line(mark: &str, value: &Value) {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let _nobody_reads = std::io::stderr().write_all(format!("{mark} {value}\n").as_bytes());
}

fn tick() {
    // No program can delay this thread. Without root an error is ignored.
    let _without_root = before_all_programs();
    let mut looked = Instant::now();
    loop {
        let due = Instant::now() + TICK;
        locked(&SEEN).due = Some(due);
        std::thread::sleep(TICK);
        let late = due.elapsed();
        let mut seen = locked(&SEEN);
        // The standstill is over, so a reader must find it only among the gaps, and not as an open one too.
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

/// How long this machine has stood still since `since`, all together.
pub fn stood_still(since: Instant) -> Duration {
    gaps(since, Instant::now()).iter().sum()
}

/// The longest time that the machine has stood still without a break since `since`. Many short stops do not make a lease lapse.
pub fn longest_gap(since: Instant) -> Duration {
    gaps(since, Instant::now()).into_iter().max().unwrap_or_default()
}

/// The lengths of all gaps between ticks, from `from` to `to`. A reader that runs before the ticking thread runs again gets the open gap too.
fn gaps(from: Instant, to: Instant) -> Vec<Duration> {
    let seen = locked(&SEEN);
    let open = seen.due.map(|due| (due, due.elapsed())).filter(|(_, late)| *late > LATE);
    let all = open.iter().chain(seen.gaps.iter().rev());
    let within = all.map(|(due, late)| (*due + *late).min(to).saturating_duration_since((*due).max(from)));
    within.filter(|gap| !gap.is_zero()).collect()
}

/// The [`Instant`] at which CLOCK_MONOTONIC showed `nanoseconds`. `Instant` uses that clock.
pub fn moment(nanoseconds: u64) -> Instant {
    Instant::now() - Duration::from_nanos(monotonic_ns().saturating_sub(nanoseconds))
}

/// Records a figure that the test measured, for the results file.
pub fn figure(name: &str, value: f64, unit: &str) {
    write_line(FIGURE, &json!({"test": test(), "name": name, "value": value, "unit": unit}));
}

/// Checks that `took`, a time from `began` on, is at most the promise plus the time that the machine stood still in it. Records the figure.
///
/// # Errors
/// Fails if `took` is longer.
pub fn held(what: &str, promised: Duration, began: Instant, took: Duration) -> Result<Duration> {
    record(what, promised, began, took);
    bounded(what, promised, began, took)?;
    Ok(took)
}

/// Records a time as a figure, with its promise and with how long the machine stood still meanwhile.
fn record(what: &str, promised: Duration, began: Instant, took: Duration) {
    let [value, promised, still] =
        [took, promised, still_within(began, took)].map(|time| time.as_secs_f64() * 1e3);
    let figure = json!({"test": test(), "name": what, "value": value, "unit": "ms", "promised": promised, "still": still});
    write_line(FIGURE, &figure);
}

fn still_within(began: Instant, took: Duration) -> Duration {
    gaps(began, began + took).iter().sum()
}

/// Same as [`held`], but records no figure, for checks that repeat.
///
/// # Errors
/// Fails as [`held`] does.
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

/// The error of a test that missed a bound which does not include the machine's standstill. The runner runs a failed test again only if its error is a missed
/// bound, and if the machine stood still without a break, or a thread of the agent waited for a processor, for longer than that bound. If [`overdue`],
/// [`held`], [`within`] or [`wait_within`] made the error, only the agent's wait counts.
pub fn missed(bound: Duration, what: impl Display) -> Error {
    anyhow!("{what} {MISSED} {} ms)", bound.as_millis())
}

/// Same as [`missed`], for a bound that already includes the machine's standstill.
pub fn overdue(bound: Duration, what: impl Display) -> Error {
    anyhow!("{what} {MISSED} {} ms {COUNTED})", bound.as_millis())
}

/// Same as [`held`], for an action that ends now.
///
/// # Errors
/// Fails as [`held`] does.
pub fn within(what: &str, promised: Duration, began: Instant) -> Result<Duration> {
    held(what, promised, began, began.elapsed())
}

/// Waits until `done` says yes, and checks the time since `began` against the promise plus the machine's standstill. The time of a look is the time of its
/// beginning. One look begins exactly when the time is over. A result that this look does not find is late.
///
/// # Errors
/// Fails if the result came later, or not at all.
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
            record(what, promised, began, took);
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

    /// A child process stops this whole process for a while.
    #[test]
    fn a_process_that_stood_still_knows_it() {
        let _watch = Watch::here();
        std::thread::sleep(TICK * 3);
        let began = Instant::now();
        let script = "kill -STOP $PPID; sleep 0.4; kill -CONT $PPID";
        let stopped = Command::new("sh").args(["-c", script]).status().expect("sh");
        assert!(stopped.success());
        // There is no pause here, so that the ticking thread may not have run yet.
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

    /// A process of low priority, beside busy processes on the same processor, waits for that processor.
    #[test]
    fn a_process_that_waits_for_a_processor_is_seen() {
        let busy = |nice: &str| {
            let line = ["-c", "0", "nice", "-n", nice, "sh", "-c", "while :; do :; done"];
            Command::new("taskset").args(line).spawn().expect("taskset, of util-linux")
        };
        let mut all = ["12", "0", "0", "0"].map(busy);
        let watch = Watch::here();
        watch.agent(all[0].id() as i32);
        // The kernel counts a wait only once it is over, which may take a while beside busy processes.
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
