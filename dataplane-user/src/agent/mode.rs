//! Follows how kube-proxy forwards.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::proxy::Facts;

/// How often to look how kube-proxy forwards: at boot it comes after the agent, and it may be set up anew.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Looks how kube-proxy forwards. Blocking, less than a second.
pub(super) fn look(core: &Core) {
    let facts = Facts::gather();
    let judgement = core.kube_proxy_said().judge(core.settings.proxy, &facts);
    if core.set_proxy(&judgement) {
        tracing::info!("kube-proxy: {judgement}");
    }
}

/// Looks again now and then, until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let core = Arc::clone(&core);
        tokio::task::spawn_blocking(move || look(&core)).await?;
    }
}
