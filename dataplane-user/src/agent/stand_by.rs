//! An agent that stands by: another one took over from its pod, and the kubelet would start its container again if it ended. It has nothing open, attaches
//! nothing and answers nobody.

use super::{ending::Ended, signals::Signals};

/// Waits for a signal.
pub(super) async fn stand_by(pod: &str, signals: &mut Signals) -> Ended {
    tracing::info!(
        event = "stands-by",
        pod,
        "another agent took over from this pod, which never takes over again; its agent does nothing until it is told to end"
    );
    let why = signals.come().await;
    tracing::info!(event = "stand-by-ended", why, "the agent ends; it stood by");
    Ended::Over
}
