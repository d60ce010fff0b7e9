//! What threads of the agent's need: precedence, and an end of the agent where one of them panics.

use tokio_util::sync::CancellationToken;

/// Has the agent end where the thread that holds it panics: nobody else would do its work, and `status` would go on to show what it last did.
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

/// Gives the calling thread precedence: on a machine that has more to do than processors to do it, packets would wait for it.
pub(super) fn precedence() {
    if let Err(error) = rustix::process::setpriority_process(None, PRECEDENCE) {
        tracing::debug!(%error, thread = std::thread::current().name(), "no precedence for a thread");
    }
}
