//! Load: established flows, new connections at a rate, counted datagrams, and any work that repeats until it is told to stop. For tests, the demo and the
//! benchmarks.

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

/// Descriptors that are left to everything but flows.
const SPARE_FILES: u64 = 400;

/// Repeats `each` until it is told to stop, with the pause that each call gives. Gives how often it ran.
///
/// # Errors
/// The first error of a call, which ends the loop.
pub fn repeat(stop: &AtomicBool, mut one: impl FnMut() -> Result<Duration>) -> Result<u64> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let pause = one()?;
        count += 1;
        std::thread::sleep(pause);
    }
    Ok(count)
}

/// Begins `each` every `every` until it is told to stop, each time in a thread of its own: one that waits holds up none. Gives all outcomes.
///
/// # Errors
/// Where one panicked.
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

/// Does `work` while each of `clients` runs in a thread of its own. Clients are told to stop once `work` is done. Gives the outcome of `work`, and of each
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

/// Tells clients to stop when dropped, also where the work beside them panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().ok().context("a thread of the load panicked")
}

/// Threads that go on until they are told to stop: at the latest when this is dropped.
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

    /// Starts one more.
    pub fn start(&mut self, work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) {
        let stop = self.stop();
        self.threads.push(std::thread::spawn(move || work(&stop)));
    }

    /// Adds a running thread, which reads [`Running::stop`] by itself.
    pub fn add(&mut self, thread: JoinHandle<Result<T>>) {
        self.threads.push(thread);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Tells all to stop and waits for their ends. Gives their outcomes in the order of their start.
    ///
    /// # Errors
    /// The first error of a thread.
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

/// How many flows one worker (a thread with a table of files of its own) can hold. A process may not be allowed to
/// raise its limit of open files (CAP_SYS_RESOURCE), but the limit holds for each table.
///
/// # Errors
/// Where there is hardly room for any.
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
/// The kernel's error.
pub fn own_files() -> Result<()> {
    unshare(CloneFlags::CLONE_FILES).context("cannot give a worker its own table of files")
}
