//! Follows how kube-proxy forwards, and what forwards in its place.

use std::{sync::Arc, time::Duration};

use super::{builder::Builds, inbox::Inbox, outlets::Bells, sight::Sight, threads::Crew, world::Published};
use crate::{
    enforce::Input,
    proxy::{Facts, Judgement, ProxyChoice, Replacement, Said},
};

/// How often to look how kube-proxy forwards: at boot kube-proxy comes after the agent, and it may be set up anew.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The look at kube-proxy, and what it remembers.
#[derive(Default)]
pub(super) struct Look {
    /// The last answer of kube-proxy on its mode.
    said: Said,
    /// The log was told that there are Services but kube-proxy's mode is not known.
    missed: bool,
    last: Judgement,
    /// The replacement of kube-proxy that the last look found.
    replacement: Option<Replacement>,
}

impl Look {
    /// Looks how kube-proxy forwards. `services`: whether any are given. Blocking, less than a second.
    pub(super) fn look(&mut self, wanted: ProxyChoice, services: bool) -> &Judgement {
        let facts = Facts::gather();
        self.replacement = facts.replacement;
        let judgement = self.said.judge(wanted, &facts);
        // Services may be given only after the first look. Why the mode is not known may change with each look.
        let missed = judgement.mode.is_none() && wanted == ProxyChoice::Auto && services;
        if missed && !self.missed {
            tracing::warn!(
                event = "proxy-mode-unknown",
                "kube-proxy: {judgement}; new connections go elsewhere only where its mode is known: set it with \
                 `--proxy nftables|iptables|ipvs`"
            );
        } else if judgement != self.last {
            tracing::info!(event = "proxy-mode", "kube-proxy: {judgement}");
        }
        self.missed = missed;
        self.last = judgement;
        &self.last
    }
}

/// The look, and those that are told of its outcome.
pub(super) struct Following {
    pub(super) look: Look,
    pub(super) sight: Sight,
    pub(super) verdicts: Arc<Inbox>,
    pub(super) published: Arc<Published>,
    pub(super) builds: Arc<Builds>,
    pub(super) bells: Bells,
}

/// Looks again now and then, until the agent ends.
pub(super) async fn follow(mut following: Following, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let looking = crew.blocking("kube-proxy", move || {
            following.again();
            following
        });
        following = looking.await?;
    }
}

impl Following {
    fn again(&mut self) {
        let world = self.sight.world();
        let judgement = self.look.look(self.sight.settings.proxy, world.view.services.is_some()).clone();
        self.verdicts.tell(Input::Replacement(self.look.replacement));
        if *world.proxy != judgement {
            let mode = judgement.mode;
            self.published.change(|world| world.proxy = Arc::new(judgement));
            // The exemptions depend on the mode.
            self.builds.set_mode(mode);
            self.bells.ring();
        }
    }
}
