//! Writes many objects into the API server, by some requests at a time.
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use nodefence_tests::kube::ControlPlane;
use serde_json::Value;

use crate::progress::Progress;

/// How many requests are under way at the same time.
const WRITERS: usize = 8;
/// How long writing the objects of one kind may take.
const WRITTEN: Duration = Duration::from_secs(30 * 60);
/// How often progress is shown.
const LOOK: Duration = Duration::from_millis(50);

/// How often a request is made that the server refuses: a busy one may not answer in time.
const TRIES: u32 = 5;

/// Creates an object.
fn patiently(control: &ControlPlane, collection: &str, object: &Value) -> anyhow::Result<()> {
    let mut tries = 1;
    loop {
        match control.api.create_here(collection, object) {
            Ok(_) => return Ok(()),
            // The request before was carried out, and was not answered.
            Err(error) if tries > 1 && error.to_string().contains("AlreadyExists") => return Ok(()),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => tries += 1,
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Creates this many objects of a collection.
///
/// # Errors
/// Fails with the server's first error, or if it takes too long.
pub(super) fn create(
    control: &ControlPlane,
    what: &str,
    collection: &str,
    count: usize,
    object: impl Fn(usize) -> Value + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    let failed = Mutex::new(None);
    let mut progress = Progress::start(&format!("{count} {what}"), u32::try_from(count)?);
    let began = Instant::now();
    let create_some = || -> anyhow::Result<()> {
        while !ended.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            patiently(control, collection, &object(number))?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let fail = |error: anyhow::Error| {
        ended.store(true, Ordering::Relaxed);
        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    };
    std::thread::scope(|scope| {
        let writer = || control.ns.within(create_some).unwrap_or_else(fail);
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(writer)).collect();
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            if began.elapsed() > WRITTEN {
                let done = done.load(Ordering::Relaxed);
                fail(anyhow::anyhow!("{what}: {done} of {count} are written after {WRITTEN:?}"));
            }
            progress.at(u32::try_from(done.load(Ordering::Relaxed)).unwrap_or(u32::MAX));
            std::thread::sleep(LOOK);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
