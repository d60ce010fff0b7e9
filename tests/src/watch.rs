//! How long this machine (a guest, where the test runs in one) stood still while a test ran, and how long the agent's threads were runnable and did
//! not run.
//!
//! A bound in a test is what is promised plus what stood still meanwhile ([`within`], [`wait_within`]). The runner reads both figures of a failed
//! test, and runs it again only where it failed for a bound that it missed ([`missed`]) and one of them exceeds that bound.

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
/// How often the agents' threads are looked at: each look costs an emulated processor some milliseconds.
const LOOK: Duration = Duration::from_millis(200);
/// So long after its bound something is still waited for, to tell when it came.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// What the runner finds a test's figures by.
const WATCHED: &str = "@@watched";
/// What the runner finds a measured figure by.
const FIGURE: &str = "@@figure";
/// What the runner finds a missed bound by, in the error that a test failed for.
const MISSED: &str = "(missed bound:";
/// After a bound that was longer by what stood still: that excuses nothing once more.
const COUNTED: &str = "and what stood still";

/// All of this process.
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

/// Watches for one test: from the first namespace or agent that it makes to the last one that it drops. Tells the runner what it saw then.
#[derive(Debug)]
pub struct Watch {
    test: String,
    began: Instant,
    /// Of agents, those gone included.
    waited: Mutex<Vec<Arc<Waited>>>,
}

impl Watch {
    /// That of the test which runs in the calling thread: libtest names a thread after its test.
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

/// Watches nothing and tells nothing from here on: for the demo and the benchmarks, which make namespaces and run agents as tests do.
pub fn off() {
    OFF.store(true, Ordering::Relaxed);
}

/// The test that runs in the calling thread.
fn test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// Past libtest, which keeps what a passing test prints to itself.
fn tell(mark: &str, value: &Value) {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let _nobody_reads = std::io::stderr().write_all(format!("{mark} {value}\n").as_bytes());
}

fn tick() {
    // No program holds it up.
    let _without_root = before_all_programs();
    let mut looked = Instant::now();
    loop {
        let due = Instant::now() + TICK;
        locked(&SEEN).due = Some(due);
        std::thread::sleep(TICK);
        let late = due.elapsed();
        let mut seen = locked(&SEEN);
        // It is over: whoever asks before the next one is due is told of it once.
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

/// How long this machine stood still since then, all together.
pub fn stood_still(since: Instant) -> Duration {
    gaps(since, Instant::now()).iter().sum()
}

/// The longest time that it stood still at once since then: many short ones do not make a lease lapse.
pub fn longest_gap(since: Instant) -> Duration {
    gaps(since, Instant::now()).into_iter().max().unwrap_or_default()
}

/// How long each gap between two times was. Whoever asks before the ticking thread has its turn again is told of the gap that is not over.
fn gaps(from: Instant, to: Instant) -> Vec<Duration> {
    let seen = locked(&SEEN);
    let open = seen.due.map(|due| (due, due.elapsed())).filter(|(_, late)| *late > LATE);
    let all = open.iter().chain(seen.gaps.iter().rev());
    let within = all.map(|(due, late)| (*due + *late).min(to).saturating_duration_since((*due).max(from)));
    within.filter(|gap| !gap.is_zero()).collect()
}

/// The moment at which CLOCK_MONOTONIC showed `nanoseconds`, which [`Instant`] is of as well.
pub fn moment(nanoseconds: u64) -> Instant {
    Instant::now() - Duration::from_nanos(monotonic_ns().saturating_sub(nanoseconds))
}

/// Keeps a figure that a test measured, for the results file.
pub fn figure(name: &str, value: f64, unit: &str) {
    tell(FIGURE, &json!({"test": test(), "name": name, "value": value, "unit": unit}));
}

/// Holds `took`, which began at `began`, to what is promised and what the machine stood still in that time; keeps the figure.
///
/// # Errors
/// Where it took longer.
pub fn held(what: &str, promised: Duration, began: Instant, took: Duration) -> Result<Duration> {
    kept(what, promised, began, took);
    bounded(what, promised, began, took)?;
    Ok(took)
}

/// Keeps a time, what is promised of it and what the machine stood still meanwhile.
fn kept(what: &str, promised: Duration, began: Instant, took: Duration) {
    let [value, promised, still] =
        [took, promised, still_within(began, took)].map(|time| time.as_secs_f64() * 1e3);
    let told = json!({"test": test(), "name": what, "value": value, "unit": "ms", "promised": promised, "still": still});
    tell(FIGURE, &told);
}

fn still_within(began: Instant, took: Duration) -> Duration {
    gaps(began, began + took).iter().sum()
}

/// As [`held`], and keeps no figure: for what is looked at over and over.
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

/// The error of a test that missed a bound in which what stood still is not counted. Without a missed bound a failed test is never run again; with it, where the
/// machine stood still at once for longer than that bound, or the agent waited for a processor. What [`overdue`], [`held`], [`within`] and [`wait_within`] give is
/// run again for the agent's wait alone.
pub fn missed(bound: Duration, what: impl Display) -> Error {
    anyhow!("{what} {MISSED} {} ms)", bound.as_millis())
}

/// As [`missed`], where what stood still was taken into account: it excuses nothing once more.
pub fn overdue(bound: Duration, what: impl Display) -> Error {
    anyhow!("{what} {MISSED} {} ms {COUNTED})", bound.as_millis())
}

/// As [`held`], for what ends now.
///
/// # Errors
/// As [`held`].
pub fn within(what: &str, promised: Duration, began: Instant) -> Result<Duration> {
    held(what, promised, began, began.elapsed())
}

/// Waits until `done`, and holds the time since `began` to what is promised and what the machine stood still since. A look counts by when it began, and one
/// begins when the time is over: what that does not find done is late, and so is what only a later one finds.
///
/// # Errors
/// Where it took longer or was not done.
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
        // Without a wait: the thread that ticks may not have had its turn.
        let (still, took) = (stood_still(began), began.elapsed());
        assert!(still > Duration::from_millis(300) && still < took, "{still:?} of {took:?}");
        assert!(longest_gap(began) > Duration::from_millis(300));
        let what = "what takes longer than was promised";
        within(what, took - still / 2, began).expect("its bound has what stood still in it");
        let error = held(what, Duration::from_millis(1), Instant::now(), Duration::from_secs(60));
        assert!(error.is_err_and(|error| {
            error.to_string().ends_with("meanwhile (missed bound: 1 ms and what stood still)")
        }));
    }

    /// Beside busy processes on one processor another one that all of them go before.
    #[test]
    fn a_process_that_waits_for_a_processor_is_seen() {
        let busy = |nice: &str| {
            let line = ["-c", "0", "nice", "-n", nice, "sh", "-c", "while :; do :; done"];
            Command::new("taskset").args(line).spawn().expect("taskset, of util-linux")
        };
        let mut all = ["12", "0", "0", "0"].map(busy);
        let watch = Watch::here();
        watch.agent(all[0].id() as i32);
        // The kernel counts a wait once it is over, and where others want the processor too that may be a while.
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
