//! The thread that answers the packets which the kernel programs could not answer in place.

use nodefence_common::EventKind;
use tokio_util::sync::CancellationToken;

use crate::dataplane::{EventStream, Injector};

/// Answers the packets that the kernel programs hand over, until `stop`. Only samples of cut packets are logged, and only with
/// RUST_LOG=debug. The kernel programs limit these samples.
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
                "a packet met the cut (a sample)"
            );
            continue;
        }
        injector.answer(&event);
    }
}
