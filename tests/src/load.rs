//! Load: established flows, new connections at a rate, and whatever else goes on in threads until it is told to stop. For tests, the demo and the benchmarks.

pub mod connections;
pub mod flows;
pub mod steady;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sched::{CloneFlags, unshare},
    sys::resource::{Resource, getrlimit, setrlimit},
};

/// Descriptors that are left to everything but flows.
const SPARE_FILES: u64 = 400;

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
    /// What is set once they are to stop.
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Starts one more.
    pub fn start(&mut self, work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) {
        let stop = self.stop();
        self.threads.push(std::thread::spawn(move || work(&stop)));
    }

    /// One more, which looks at [`Running::stop`] by itself.
    pub fn add(&mut self, thread: JoinHandle<Result<T>>) {
        self.threads.push(thread);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Tells all to stop, and waits until they have: what each has seen, in the order in which they were started.
    ///
    /// # Errors
    /// The first one's that failed.
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
/// What the kernel says.
pub fn own_files() -> Result<()> {
    unshare(CloneFlags::CLONE_FILES).context("cannot give a worker its own table of files")
}
