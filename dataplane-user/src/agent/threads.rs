//! What threads and tasks of the agent's need: names, precedence, and an end of the agent where one of them panics. All threads are started here.

use std::{io, thread::JoinHandle};

use tokio_util::sync::CancellationToken;

/// Has the agent end where the thread or task that holds it panics: nobody else would do its work, and `status` would go on to show what it last did.
pub(super) struct EndsTheAgent(pub(super) CancellationToken);

impl Drop for EndsTheAgent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

/// The nice value of threads that do little and that senders wait for.
const PRECEDENCE: i32 = -20;

/// Starts a thread. `ps` shows 15 bytes of its name. Where it panics the agent ends.
pub(super) fn thread(
    name: &str,
    panicked: CancellationToken,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let _or_end = EndsTheAgent(panicked);
        work();
    })
}

/// The same with precedence: on a machine that has more to do than processors to do it, packets would wait for it.
pub(super) fn urgent_thread(
    name: &str,
    panicked: CancellationToken,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread(name, panicked, || {
        precedence();
        work();
    })
}

/// Gives the calling thread precedence.
fn precedence() {
    if let Err(error) = rustix::process::setpriority_process(None, PRECEDENCE) {
        tracing::debug!(%error, thread = std::thread::current().name(), "no precedence for a thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_ends_the_agent_and_one_that_ends_does_not() {
        let panicked = CancellationToken::new();
        let guard = EndsTheAgent(panicked.clone());
        tokio::spawn(async move { drop(guard) }).await.unwrap();
        assert!(!panicked.is_cancelled());
        let guard = EndsTheAgent(panicked.clone());
        let task = tokio::spawn(async move {
            let _guard = guard;
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert!(task.await.is_err_and(|error| error.is_panic()));
        assert!(panicked.is_cancelled());
    }

    #[test]
    fn a_thread_that_panics_ends_the_agent_and_one_that_ends_does_not() {
        let panicked = CancellationToken::new();
        thread("ends", panicked.clone(), || ()).unwrap().join().unwrap();
        assert!(!panicked.is_cancelled());
        let panics = urgent_thread("panics", panicked.clone(), || panic!("on purpose")).unwrap();
        assert!(panics.join().is_err() && panicked.is_cancelled());
    }

    #[tokio::test]
    async fn what_panics_on_a_blocking_thread_ends_the_agent() {
        let panicked = CancellationToken::new();
        let guard = EndsTheAgent(panicked.clone());
        let work = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            panic!("on purpose");
        });
        assert!(work.await.is_err_and(|error: tokio::task::JoinError| error.is_panic()));
        assert!(panicked.is_cancelled());
    }
}
