//! Follows how kube-proxy forwards.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::proxy::{Facts, Wanted};

/// How often to look how kube-proxy forwards: at boot it comes after the agent, and it may be set up anew.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Looks how kube-proxy forwards. Blocking, less than a second.
pub(super) fn look(core: &Core) {
    let facts = Facts::gather();
    let judgement = core.kube_proxy_said().judge(core.settings.proxy, &facts);
    let news = core.set_proxy(&judgement);
    // Services may be given later than the mode was looked for; and why it is not known may change with each look.
    let missed = judgement.mode.is_none()
        && core.settings.proxy == Wanted::Auto
        && core.world().view.services.is_some();
    if missed && !core.mode_missed.load(Ordering::Relaxed) {
        tracing::warn!(
            "kube-proxy: {judgement}; new connections go elsewhere only where its mode is known: say it with \
             `--proxy nftables|iptables|ipvs`"
        );
    } else if news {
        tracing::info!("kube-proxy: {judgement}");
    }
    core.mode_missed.store(missed, Ordering::Relaxed);
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
