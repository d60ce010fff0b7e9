//! Load for tests, the demo and the benchmarks: established flows, new connections at a rate, counted datagrams, and any work that repeats until it is told to
//! stop.

pub mod acks;
pub mod connections;
pub mod datagrams;
pub mod each;
pub mod flows;
pub mod full;
pub mod steady;
pub mod syns;
pub mod until_reset;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, ScopedJoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sched::{CloneFlags, unshare},
    sys::resource::{Resource, getrlimit, setrlimit},
};

/// The number of file descriptors that flows leave free for everything else.
const SPARE_FILES: u64 = 400;

/// Repeats `one` until `stop` is set. Each call returns the pause after it. Returns the number of calls.
///
/// # Errors
/// Fails with the first error of a call, which ends the loop.
pub fn repeat(stop: &AtomicBool, mut one: impl FnMut() -> Result<Duration>) -> Result<u64> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let pause = one()?;
        count += 1;
        std::thread::sleep(pause);
    }
    Ok(count)
}

/// Starts a call of `one` at each interval `every` until `stop` is set. Each call has a thread of its own, so that a call that waits delays no other. Returns
/// the results of all calls.
///
/// # Errors
/// Fails if a call panicked.
pub fn at_intervals<T: Send>(
    stop: &AtomicBool,
    every: Duration,
    one: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let one = &one;
        let mut begun = Vec::new();
        repeat(stop, || {
            let number = begun.len();
            begun.push(scope.spawn(move || one(number)));
            Ok(every)
        })?;
        begun.into_iter().map(joined).collect()
    })
}

/// Does `work` while each of `clients` runs in a thread of its own. Tells the clients to stop once `work` is done. Returns the result of `work` and of each
/// client.
pub fn under<T: Send, R>(
    clients: impl IntoIterator<Item = impl FnOnce(&AtomicBool) -> Result<T> + Send>,
    work: impl FnOnce() -> R,
) -> (R, Vec<Result<T>>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let clients: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || client(stop))).collect();
        let over = Over(stop);
        let done = work();
        drop(over);
        (done, clients.into_iter().map(|client| joined(client).flatten()).collect())
    })
}

/// Tells clients to stop when this is dropped, also if the work beside them panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().ok().context("a thread of the load panicked")
}

/// Threads that run until they are told to stop, which is when this is dropped at the latest.
#[derive(Debug)]
pub struct Running<T> {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<T>>>,
}

impl<T> Default for Running<T> {
    fn default() -> Self {
        Self { stop: Arc::default(), threads: Vec::new() }
    }
}

impl<T: Send + 'static> Running<T> {
    /// The flag that tells the threads to stop.
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Starts one more thread.
    pub fn start(&mut self, work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) {
        let stop = self.stop();
        self.threads.push(std::thread::spawn(move || work(&stop)));
    }

    /// Adds a running thread, which must read the flag of [`Running::stop`] itself.
    pub fn add(&mut self, thread: JoinHandle<Result<T>>) {
        self.threads.push(thread);
    }

    /// The number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Tells all threads to stop and waits for their ends. Returns their results in the order of their start.
    ///
    /// # Errors
    /// Fails with the first error of a thread.
    pub fn finish(mut self) -> Result<Vec<T>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        ended.into_iter().map(|one| one.ok().context("a thread of the load panicked")?).collect()
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The number of flows that one worker can hold. A worker is a thread with a table of files of its own. The limit of open files holds for each table, so more
/// workers hold more flows even where the process may not raise the limit (CAP_SYS_RESOURCE).
///
/// # Errors
/// Fails if the limit leaves hardly any room for flows.
pub fn per_worker() -> Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.max(65_536 + SPARE_FILES);
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        wanted
    } else if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        hard
    } else {
        soft
    };
    ensure!(
        limit > 2 * SPARE_FILES,
        "the limit of open files ({limit}) leaves no room for flows: raise it (ulimit -n)"
    );
    Ok((limit - SPARE_FILES).min(65_536) as usize)
}

/// Gives the calling thread a table of files of its own.
///
/// # Errors
/// Fails with the kernel's error.
pub fn own_files() -> Result<()> {
    unshare(CloneFlags::CLONE_FILES).context("cannot give a worker its own table of files")
}
