//! The one place where the agent's threads and tasks begin. Each has a name, which `ps` shows, and is watched. Where one panics, or ends
//! though it is to go on as long as the agent, the log says which, and the agent ends in order: nobody else would do its work, and
//! `status` would go on to show what it last did.

use std::{
    ffi::CString,
    future::Future,
    io,
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

use nix::sys::prctl;
use tokio::{runtime::Runtime, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::chain::chain;
use crate::{allocator::give_back_if_asked, sched};

/// The nice value of threads that do little and that senders wait for.
const PRECEDENCE: i32 = -20;

/// The name of the runtime's threads while they bear no other.
const WORKER: &str = "nodefence-rt";

/// Which thread or task ended, and how. Names are those that `ps` shows, of 15 bytes at most.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fallen {
    /// The thread or task panicked, and its work may be half done.
    #[error("`{0}` panicked; see above")]
    Panicked(&'static str),
    /// The thread or task gave up.
    #[error("`{0}`: {1}")]
    Failed(&'static str, String),
    /// The thread or task ended without a reason.
    #[error("`{0}` ended, which nobody asked for")]
    Ended(&'static str),
}

/// When a thread that wakes up has a processor, where others want it too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// The thread takes its turn. When it wakes up it takes the processor from nobody: the running thread may be one that packets or
    /// requests wait for.
    Batch,
    /// The thread takes its turn.
    Usual,
    /// Packets wait for the thread where the machine has more to do than processors to do it.
    First,
}

/// All threads and tasks of the agent.
#[derive(Clone, Default)]
pub(super) struct Crew(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Cancelled once the agent ends: all that go on for as long as the agent are to end too.
    stop: CancellationToken,
    /// Cancelled once a thread or task has fallen.
    fell: CancellationToken,
    /// The first that fell.
    first: OnceLock<Fallen>,
    /// Tasks that go on for as long as the agent does.
    tasks: TaskTracker,
}

impl Crew {
    /// Cancelled once the agent ends. For all that go on for as long as the agent.
    pub(super) fn stop(&self) -> CancellationToken {
        self.0.stop.clone()
    }

    /// The agent ends. From now on the end of a thread or task is no fault, unless it panics.
    pub(super) fn end(&self) {
        self.0.stop.cancel();
    }

    /// Returns once a thread or task has fallen.
    pub(super) async fn falls(&self) -> Fallen {
        self.0.fell.cancelled().await;
        // This was set before.
        self.fallen().unwrap_or(Fallen::Ended("nobody"))
    }

    /// The thread or task that fell first.
    pub(super) fn fallen(&self) -> Option<Fallen> {
        self.0.first.get().cloned()
    }

    /// Waits for the tasks that were to end with the agent, for `patience` at most.
    pub(super) async fn wind_up(&self, patience: Duration) {
        self.0.tasks.close();
        let _late = timeout(patience, self.0.tasks.wait()).await;
    }

    /// Starts a thread that goes on until the agent ends.
    ///
    /// # Errors
    /// Where the kernel has no room for the thread.
    pub(super) fn thread(
        &self,
        name: &'static str,
        turn: Priority,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        self.start(self.work_guard(name, Stays::WithTheAgent), turn, work)
    }

    /// Starts a thread that works for one other, and ends when that one gives it no more to do.
    ///
    /// # Errors
    /// Where the kernel has no room for the thread.
    pub(super) fn hand(
        &self,
        name: &'static str,
        turn: Priority,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let work = || {
            work();
            Ok(())
        };
        self.start(self.work_guard(name, Stays::AsLongAsItLikes), turn, work)
    }

    fn start(
        &self,
        work_guard: WorkGuard,
        turn: Priority,
        work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(work_guard.name.into()).spawn(move || {
            // A thread begins with the policy and the nice value of the one that started it.
            match turn {
                Priority::Batch => take_turns(sched::batch),
                Priority::Usual => take_turns(|nice| sched::fair(nice, None)),
                Priority::First => precedence(),
            }
            let result = work();
            work_guard.over(result);
        })
    }

    /// Starts a task that goes on until the agent ends.
    pub(super) fn task(
        &self,
        name: &'static str,
        work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let work_guard = self.work_guard(name, Stays::WithTheAgent);
        self.0.tasks.spawn(async move {
            let work_guard = work_guard;
            let result = work.await;
            work_guard.over(result);
        });
    }

    /// Starts a task that ends when its work is done: a talk with a client.
    pub(super) fn errand(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let work_guard = self.work_guard(name, Stays::AsLongAsItLikes);
        tokio::spawn(async move {
            let _work_guard = work_guard;
            work.await;
        });
    }

    /// Does work that may block, on a thread that bears this name meanwhile and takes its turn. The work is done to its end even where
    /// nobody waits for it any more.
    ///
    /// # Errors
    /// Where the work panicked, or the runtime ended before the work began.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fallen> {
        let work_guard = self.work_guard(name, Stays::AsLongAsItLikes);
        let done = tokio::task::spawn_blocking(move || {
            let _work_guard = work_guard;
            let _named = Named::now(name);
            take_turns(|nice| sched::fair(nice, None));
            work()
        });
        done.await.map_err(|error| match error.is_panic() {
            true => Fallen::Panicked(name),
            false => Fallen::Ended(name),
        })
    }

    fn work_guard(&self, name: &'static str, stays: Stays) -> WorkGuard {
        WorkGuard { crew: self.clone(), name, stays }
    }

    fn falls_by(&self, fallen: Fallen) {
        // Only the first is noted: others may fall because of it. The log comes last: its reader may stand still, and the agent ends
        // all the same.
        let _later = self.0.first.set(fallen.clone());
        self.0.fell.cancel();
        tracing::error!(event = "thread-fell", "{fallen}; the agent ends");
    }
}

/// How long a thread or task is to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    WithTheAgent,
    AsLongAsItLikes,
}

/// Held by a thread or task for as long as it works.
struct WorkGuard {
    crew: Crew,
    name: &'static str,
    stays: Stays,
}

impl WorkGuard {
    /// The work is over.
    fn over(self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.crew.falls_by(Fallen::Failed(self.name, chain(error)));
        }
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        let is_asked_for = self.stays == Stays::AsLongAsItLikes || self.crew.0.stop.is_cancelled();
        if std::thread::panicking() {
            self.crew.falls_by(Fallen::Panicked(self.name));
        } else if !is_asked_for && self.crew.fallen().is_none() {
            self.crew.falls_by(Fallen::Ended(self.name));
        }
    }
}

/// Has the calling thread bear a name as long as this value lives.
struct Named;

impl Named {
    fn now(name: &str) -> Self {
        set_name(name);
        Self
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        set_name(WORKER);
    }
}

fn set_name(name: &str) {
    // Where this fails `ps` shows another name, and nothing else is lost.
    let _unnamed = CString::new(name).map(|name| prctl::set_name(&name));
}

/// Gives the calling thread precedence, and a slice so short that it has a processor as soon as it wakes up.
fn precedence() {
    if let Err(error) = sched::fair(PRECEDENCE, Some(sched::SHORT_SLICE)) {
        tracing::debug!(
            event = "no-precedence",
            %error,
            thread = std::thread::current().name(),
            "a thread has no precedence over others"
        );
    }
}

/// Takes the calling thread's precedence away: it is to take its turn with the nice value of the agent's first thread, whatever that was started with.
fn take_turns(take: impl FnOnce(i32) -> io::Result<()>) {
    let first = rustix::process::getpriority_process(Some(rustix::process::getpid()));
    if let Err(error) = first.map_err(io::Error::from).and_then(take) {
        tracing::debug!(
            event = "keeps-precedence",
            %error,
            "a thread keeps the precedence that it was started with"
        );
    }
}

/// The threads that tasks run on. They have precedence: an operator's request goes through them to the thread that flags. What takes time is done by
/// [`Crew::blocking`], on threads that take their turn.
///
/// # Errors
/// Where the kernel has no room for the threads.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name(WORKER)
        .on_thread_start(precedence)
        // A thread that is about to sleep may do so for long, and has time.
        .on_thread_park(|| {
            give_back_if_asked();
        })
        .build()
}

/// A runtime on the calling thread, without precedence: for a process that no packet waits for.
///
/// # Errors
/// Where the kernel has no room for it.
pub fn single_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests;
