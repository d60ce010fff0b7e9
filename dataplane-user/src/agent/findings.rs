//! Runs the probes again when IPVS or conntrack is loaded after the agent has started.

use std::{sync::Arc, time::Duration};

use super::{sight::Sight, threads::Crew, world::Published};
use crate::dataplane::{
    Switches,
    probe::{Findings, Present},
};

/// How often to look whether IPVS or conntrack was loaded since the last probes.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Runs the probes again whenever IPVS or conntrack was loaded since the last ones, until the agent ends. At every boot the agent
/// is up before kube-proxy. An answer that suits a kernel without IPVS may stay untranslated in a kernel with it.
pub(super) async fn follow(
    sight: Sight,
    published: Arc<Published>,
    mut switches: Switches,
    gathered_with: Present,
    crew: Crew,
) -> anyhow::Result<()> {
    let stop = crew.stop();
    let mut then = gathered_with;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let now = Present::now();
        if !sight.world().findings.outdated(then, now) {
            continue;
        }
        let findings = crew.blocking("findings", Findings::gather).await?;
        tracing::info!(
            event = "kernel-probed-again",
            milliseconds = findings.milliseconds,
            "the kernel was probed again: {findings}"
        );
        // The kernel programs are configured before the findings are published.
        if let Err(error) = switches.set(&sight.settings.config(&findings)) {
            tracing::error!(
                event = "programs-not-configured",
                %error,
                "the kernel programs were not told how to answer; the agent tries again"
            );
            continue;
        }
        published.change(|world| world.findings = Arc::new(findings));
        then = now;
    }
}
