//! Deletes new stale flows for as long as the flags hold: kube-proxy goes on picking endpoints on flagged nodes.
//!
//! Only a datagram makes a new stale flow of datagrams, and that datagram meets the cut. So conntrack is listed again only where a
//! datagram met the cut since the last listing, or where that listing is [`ANYWAY`] ago: behind a router that is down, for example,
//! datagrams die before the cut. A rescued datagram left no entry.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nodefence_common::Reason;
use tokio::sync::watch;

use super::{
    chain::chain,
    rows::uncovered_of,
    stale::{Flagged, StaleFlows, mode},
    threads::Crew,
};
use crate::{conntrack::Protocols, dataplane::Counters, report::NeighbourRow, rescue::Fate};

/// How often new stale flows are deleted.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
/// How many times as long as the work the pause after it is at least: 5 % of a processor at most.
const PAUSE: u32 = 19;
/// How long a listing counts at most while no datagram meets the cut.
const ANYWAY: Duration = Duration::from_secs(30);

/// Whether packets with this counter may be datagrams on a flow that is to be deleted. Packets that were handed to rescue are
/// counted by their fate instead. A packet that passed by rule is on no such flow, unless others sent it by this node's devices.
const fn may_make_stale(reason: Reason) -> bool {
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
        | Reason::Foreign
        | Reason::Stale => true,
        Reason::Reset
        | Reason::Refused
        | Reason::AnswerLimited
        | Reason::Observed
        | Reason::NeighbourDiscovery
        | Reason::OwnSocket
        | Reason::Unparsed
        | Reason::Exempt
        | Reason::Rescue => false,
    }
}

/// The state of the task `stale-flows`.
pub(super) struct Again {
    stale_flows: StaleFlows,
    counters: Arc<Counters>,
    neighbours: watch::Receiver<Vec<NeighbourRow>>,
    last: Option<LastListing>,
}

/// When conntrack was last listed.
struct LastListing {
    /// The nodes that were flagged then.
    flagged: Flagged,
    /// How many packets may have made a stale flow by then.
    suspects: u64,
    at: Instant,
}

impl Again {
    pub(super) fn new(
        stale_flows: StaleFlows,
        counters: Arc<Counters>,
        neighbours: watch::Receiver<Vec<NeighbourRow>>,
    ) -> Self {
        Self { stale_flows, counters, neighbours, last: None }
    }

    /// How many packets may have made a stale flow so far; `None` where that is not known.
    fn suspects(&self, flagged: &Flagged) -> Option<u64> {
        let StaleFlows { sight, rescue, .. } = &self.stale_flows;
        let world = sight.world();
        // A packet that leaves by a device that is not attached is counted nowhere.
        let covered = |node| uncovered_of(&world.coverage, &sight.own_node, node, true).next().is_none();
        let meet_the_cut = flagged.names().all(|name| world.view.node(name).is_some_and(&covered));
        if !meet_the_cut || self.neighbours.borrow().iter().any(|neighbour| neighbour.dies_before_the_cut) {
            return None;
        }
        let cut = self.counters.read().ok()?;
        let cut =
            cut.into_iter().filter(|(reason, _)| may_make_stale(*reason)).map(|(_, counter)| counter.packets);
        let not_rescued = rescue.tally.get().filter(|(fate, _)| *fate != Fate::Rescued);
        Some(cut.chain(not_rescued.map(|(_, counter)| counter.packets)).sum())
    }

    /// Deletes affinity and new stale flows, once. Blocking.
    fn look(&mut self) {
        let sight = &self.stale_flows.sight;
        let (Some(mode), Some(flagged)) = (mode(sight), Flagged::of(sight, |_| true)) else {
            self.last = None;
            return;
        };
        if let Err(error) = flagged.unstick(mode).map_err(chain) {
            tracing::debug!(
                event = "affinity-not-deleted",
                error,
                "affinity of clients to flagged nodes could not be deleted; the agent tries again"
            );
        }
        // Counted before the listing: an entry that is made meanwhile may lie in a part that was listed already.
        let suspects = self.suspects(&flagged);
        let at = Instant::now();
        if self.last.as_ref().is_some_and(|last| {
            suspects == Some(last.suspects) && at < last.at + ANYWAY && last.flagged.is_as(&flagged)
        }) {
            return;
        }
        self.last = None;
        match flagged.delete(&self.stale_flows, Protocols::Datagrams) {
            Ok(done) if !done.stopped && !done.incomplete && done.refused == 0 => {
                self.last = suspects.map(|suspects| LastListing { flagged, suspects, at });
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(
                event = "stale-flows-not-deleted",
                error,
                "new stale flows could not be deleted; the agent tries again"
            ),
        }
    }
}

/// Deletes new stale flows until the agent ends.
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
            .blocking("stale-flows", move || {
                again.look();
                again
            })
            .await?;
        pause = AGAIN_EVERY.max(start.elapsed() * PAUSE);
    }
}
