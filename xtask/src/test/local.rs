//! Runs test executables on this machine.

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::job::Record;
use super::plan::{Place, Plan, Planned, Scope};
use super::table::File;
use super::tally::Stage;
use crate::process;
use crate::say::say;

/// The environment variable that says how many packets the packet fuzz tries.
pub(crate) const FUZZ_COUNT: &str = "NODEFENCE_FUZZ_PACKETS";
/// A number of packets that reaches each branch, and is small enough for `--quick` and for an emulated processor.
pub(crate) const FUZZ_SHORT: &str = "20000";

/// The environment variable that makes tests use kube-proxy's and the kernel's own periods instead of shorter ones, and more random histories. Such
/// tests then take minutes.
pub(crate) const LONG: &str = "NODEFENCE_LONG_TESTS";

/// How many executables that mostly wait run at once. Their start is busy, and more of them would disturb other tests.
const LANES: usize = 2;

/// Runs unit tests.
pub(crate) fn unit(plan: &Plan<'_>, scope: Scope) -> Result<Stage> {
    one_by_one("unit", scope, plan.unit().iter())
}

/// Runs the rows of the table that run on this machine's own kernel. All rows except the timed ones run first, with the waiting rows beside them.
/// Then the timed rows run alone. `kubernetes`: whether the real Kubernetes programs are there.
pub(crate) fn native(plan: &Plan<'_>, scope: Scope, kubernetes: bool) -> Result<Vec<Stage>> {
    let mut rows = plan.at(Place::Native);
    rows.retain(|row| kubernetes || !is(row, File::needs_kube_proxy));
    let (timed, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| is(row, File::is_timed));
    let (waiting, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| is(row, File::waits));
    let (beside_kube, plain): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| is(row, File::needs_kube_proxy));
    let started = Instant::now();
    let queue = Mutex::new(waiting.iter());
    let mut stages = thread::scope(|scope_of_threads| -> Result<Vec<Stage>> {
        let lanes: Vec<_> = (0..LANES.min(waiting.len()))
            .map(|_| {
                // The lock is held while a row is taken, and not while the row runs.
                let next = || queue.lock().ok()?.next();
                scope_of_threads.spawn(move || one_by_one("waiting", scope, std::iter::from_fn(next)))
            })
            .collect();
        let mut stages = vec![one_by_one("native", scope, plain.iter())?];
        if !beside_kube.is_empty() {
            stages.push(one_by_one("kubernetes", scope, beside_kube.iter())?);
        }
        let mut waited = Stage::new("waiting");
        waited.note = "beside those above".to_owned();
        for lane in lanes {
            waited.add(lane.join().map_err(|_| anyhow!("a thread of the tests that wait panicked"))??);
        }
        waited.took = started.elapsed();
        if !waiting.is_empty() {
            stages.push(waited);
        }
        Ok(stages)
    })?;
    if !timed.is_empty() {
        stages.push(one_by_one("timed", scope, timed.iter())?);
    }
    Ok(stages)
}

fn is(row: &Planned<'_>, what: impl Fn(&File) -> bool) -> bool {
    row.file.is_some_and(what)
}

fn one_by_one<'a, 'b>(name: &str, scope: Scope, rows: impl Iterator<Item = &'b Planned<'a>>) -> Result<Stage>
where
    'a: 'b,
{
    let mut stage = Stage::new(name);
    let started = Instant::now();
    for row in rows {
        // If a row cannot be run, the other rows still run.
        if let Err(error) = run(row, scope, &mut stage) {
            process::check_interrupt()?;
            stage.fail(format!("{}: {error:#}", row.job.title));
        }
    }
    stage.took = started.elapsed();
    Ok(stage)
}

fn run(row: &Planned<'_>, scope: Scope, stage: &mut Stage) -> Result<()> {
    let job = &row.job;
    say!("{}: {} tests", job.title, job.names.len());
    let command = || {
        let mut command = row.executable.command();
        match scope {
            Scope::Quick => command.env(FUZZ_COUNT, FUZZ_SHORT),
            Scope::Usual => &mut command,
            Scope::All => command.env(LONG, "1"),
        };
        command
    };
    let started = Instant::now();
    let before = stage.failures.len();
    let mut record = Record::new(&job.title);
    job.run(command, |event| drop(record.take(event)))?;
    record.judge(&job.names, stage);
    stage.show();
    let took = started.elapsed();
    say!("{}: {} failed, {:.1} s", job.title, stage.failures.len() - before, took.as_secs_f64());
    stage.files.push((job.title.clone(), took));
    Ok(())
}
