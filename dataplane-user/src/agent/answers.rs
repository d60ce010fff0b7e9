//! The task that answers what the kernel programs could not answer in place.

use nodefence_common::EventKind;
use tokio_util::sync::CancellationToken;

use crate::dataplane::{EventStream, Injector};

/// Answers what the kernel handed over, until `stop`. Of packets only samples are logged, which the kernel limits, and these
/// only with RUST_LOG=debug.
pub(super) async fn follow(
    mut events: EventStream,
    injector: Injector,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            event = events.next() => event?,
        };
        if EventKind::from_raw(event.kind) != Some(EventKind::Answer) {
            tracing::debug!(
                event = "cut-sample",
                index = event.node,
                ifindex = event.ifindex,
                reason = event.reason,
                "cut (a sample)"
            );
            continue;
        }
        injector.answer(&event);
    }
}
