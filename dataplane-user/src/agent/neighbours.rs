//! Holds the neighbour entries of flagged nodes.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{sight::Sight, threads::Crew};
use crate::{
    dataplane::hold::{FlaggedNode, Hold, Holding, Hop},
    plan::Mode,
    report::NeighbourRow,
};

/// How often entries are renewed.
const EVERY: Duration = Duration::from_secs(1);

/// Holds the neighbour entries of flagged nodes until the agent ends: without an entry packets to a node die before the cut.
pub(super) async fn follow(
    sight: Sight,
    row: watch::Sender<Vec<NeighbourRow>>,
    crew: Crew,
) -> anyhow::Result<()> {
    let stop = crew.stop();
    let mut hold = Hold::open()?;
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        tokio::select! {
            // Held entries are left as they are. The flags outlive this agent, and the entries age from now on like any other.
            () = stop.cancelled() => return Ok(()),
            _ = tick.tick() => {}
        }
        let seen = sight.clone();
        let ticking = crew.blocking("neighbours", move || {
            let result = hold.tick(&flagged(&seen)).map(|report| rows(&seen, &report));
            (hold, result)
        });
        let (held, result) = ticking.await?;
        hold = held;
        let problem = match result {
            Ok(held) => {
                row.send_replace(held);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if problem.is_some() && problem != said {
            tracing::warn!(
                event = "neighbours-not-held",
                error = problem,
                "neighbour entries of flagged nodes could not be held"
            );
        }
        said = problem;
    }
}

fn flagged(sight: &Sight) -> Vec<FlaggedNode> {
    // Observe mode cuts nothing, so it changes no entry.
    let world = sight.world();
    if world.held.mode == Mode::Observe {
        return Vec::new();
    }
    let others = world.enforced().map(|(name, _)| name).filter(|name| **name != sight.own_node);
    let nodes = others.filter_map(|name| world.view.node(name));
    nodes
        .map(|node| {
            let own: HashSet<_> = node.all_addresses().collect();
            let mut hops: Vec<Hop> = own
                .iter()
                .filter_map(|address| world.coverage.next_hop(*address))
                .map(|(ifindex, address)| Hop { ifindex, address })
                .collect();
            hops.sort_unstable();
            hops.dedup();
            FlaggedNode { own, hops }
        })
        .collect()
}

fn rows(sight: &Sight, report: &BTreeMap<Hop, Holding>) -> Vec<NeighbourRow> {
    let coverage = Arc::clone(&sight.world().coverage);
    report
        .iter()
        .map(|(hop, &holding)| NeighbourRow {
            interface: coverage.name(hop.ifindex),
            address: hop.address,
            state: holding,
            dies_before_the_cut: holding == Holding::Unknown,
        })
        .collect()
}
