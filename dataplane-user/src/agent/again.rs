//! Lets go what was pinned anew to flagged nodes, for as long as their flags hold: kube-proxy goes on picking their endpoints.
//!
//! What pins a datagram's flow anew is a datagram, and that meets the cut: where none met it since conntrack was last listed, it is not listed again. One that was
//! rescued left no entry.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nodefence_common::Reason;

use super::{
    chain::chain,
    pinned::{Flagged, LettingGo, mode},
    rows::uncovered_of,
    threads::Crew,
};
use crate::{conntrack::Protocols, dataplane::Counters, rescue::Fate};

/// How often what was pinned anew is let go, and by how much longer the pause is than the work: 5 % of a processor at most.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
const PAUSE: u32 = 19;

/// Whether packets that are counted so may be datagrams on a flow that is to be let go, but for those that were handed to whoever rescues. What passed by rule is on
/// none.
const fn may_pin(reason: Reason) -> bool {
    match reason {
        Reason::Unreachable
        | Reason::Dropped
        | Reason::Handed
        | Reason::IcmpLimited
        | Reason::IcmpSenderLimited
        | Reason::FragmentDropped
        | Reason::FragmentPassed
        | Reason::Failed
        | Reason::Lapsed
        | Reason::Stale => true,
        Reason::Reset
        | Reason::Refused
        | Reason::AnswerLimited
        | Reason::Observed
        | Reason::NeighbourDiscovery
        | Reason::OwnSocket
        | Reason::Unparsed
        | Reason::Kept
        | Reason::Rescue => false,
    }
}

/// What it takes.
pub(super) struct Again {
    letting_go: LettingGo,
    counters: Arc<Counters>,
    /// For whom conntrack was last listed, and how many packets may have pinned something by then.
    listed: Option<(Flagged, u64)>,
}

impl Again {
    pub(super) fn new(letting_go: LettingGo, counters: Arc<Counters>) -> Self {
        Self { letting_go, counters, listed: None }
    }

    /// How many packets may have pinned something so far; `None` where that is not known.
    fn pinning(&self, flagged: &Flagged) -> Option<u64> {
        let LettingGo { sight, rescue, .. } = &self.letting_go;
        let world = sight.world();
        // What leaves by a device that is not attached is counted nowhere.
        let covered = |node| uncovered_of(&world.coverage, &sight.own_node, node, true).next().is_none();
        if !flagged.names().all(|name| world.view.node(name).is_some_and(&covered)) {
            return None;
        }
        let cut = self.counters.read().ok()?;
        let cut = cut.into_iter().filter(|(reason, _)| may_pin(*reason)).map(|(_, counter)| counter.packets);
        let not_rescued = rescue.tally.get().filter(|(fate, _)| *fate != Fate::PutIn);
        Some(cut.chain(not_rescued.map(|(_, counter)| counter.packets)).sum())
    }

    /// Blocking.
    fn look(&mut self) {
        let sight = &self.letting_go.sight;
        let (Some(mode), Some(flagged)) = (mode(sight), Flagged::of(sight, |_| true)) else {
            self.listed = None;
            return;
        };
        if let Err(error) = flagged.unstick(mode).map_err(chain) {
            tracing::debug!(error, "clients that stick to flagged nodes were not let go; tried again");
        }
        // Before the listing: what comes meanwhile may lie where that has been.
        let pinning = self.pinning(&flagged);
        let last = self.listed.take();
        if let (Some((before, then)), Some(now)) = (last, pinning)
            && then == now
            && before.is_as(&flagged)
        {
            self.listed = Some((before, then));
            return;
        }
        match flagged.delete(&self.letting_go, Protocols::Datagrams) {
            Ok(done) if !done.stopped && !done.incomplete && done.refused == 0 => {
                self.listed = pinning.map(|pinning| (flagged, pinning));
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(error, "what was pinned anew was not let go; tried again"),
        }
    }
}

/// Lets go what was pinned anew to flagged nodes, until the agent ends.
pub(super) async fn follow(mut again: Again, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let mut pause = AGAIN_EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        let start = Instant::now();
        again = crew
            .blocking("pinned", move || {
                again.look();
                again
            })
            .await?;
        pause = AGAIN_EVERY.max(start.elapsed() * PAUSE);
    }
}
