//! Where packets to nodes and their backends leave, and how many backends no attached device covers. Both are stored by node, so that
//! of a new view only changed nodes are looked at.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{coverage::Coverage, rows};
use crate::cluster::{ClusterView, Node, NodeIx};

/// Something that follows from each node of a view by itself.
#[derive(Default)]
struct ByNode<T> {
    view: Option<Arc<ClusterView>>,
    /// In the view's order.
    nodes: Vec<T>,
}

impl<T> ByNode<T> {
    /// Brings the values up to this view. `same`: all else that they follow from is as it was; then only nodes that changed are worked out,
    /// and `also`. `replaced` is shown each value that is replaced, and the one in its place.
    fn follow(
        &mut self,
        view: &Arc<ClusterView>,
        same: bool,
        also: Option<NodeIx>,
        work_out: impl Fn(NodeIx, &Node) -> T,
        mut replaced: impl FnMut(Option<&T>, Option<&T>),
    ) {
        let known = self.view.replace(Arc::clone(view)).filter(|_| same);
        let changed = known.and_then(|known| view.changed_since(&known).nodes);
        let Some(changed) = changed else {
            self.nodes.drain(..).for_each(|old| replaced(Some(&old), None));
            for (at, node) in view.indexed() {
                let new = work_out(at, node);
                replaced(None, Some(&new));
                self.nodes.push(new);
            }
            return;
        };
        for at in changed.into_iter().chain(also) {
            let (Some(node), Some(there)) = (view.at(at), self.nodes.get_mut(at.position())) else {
                continue;
            };
            let old = std::mem::replace(there, work_out(at, node));
            replaced(Some(&old), Some(there));
        }
    }
}

/// Devices by which packets to nodes and their backends may leave. For `--interface auto`.
#[derive(Default)]
pub(super) struct Needed {
    by_node: ByNode<Box<[u32]>>,
    /// How many nodes need each device.
    devices: BTreeMap<u32, usize>,
    skipped: Option<NodeIx>,
}

impl Needed {
    /// Indexes of all devices by which packets may leave to nodes of this view and their backends, but for the node `skipped`.
    /// `same_routes`: the routes are those of the last call.
    pub(super) fn look(
        &mut self,
        coverage: &Coverage,
        same_routes: bool,
        view: &Arc<ClusterView>,
        skipped: Option<NodeIx>,
    ) -> BTreeSet<u32> {
        let Self { by_node, devices, skipped: before } = self;
        let same = same_routes && *before == skipped;
        *before = skipped;
        let work_out = |at, node: &Node| match Some(at) == skipped {
            true => Box::default(),
            false => coverage.devices_to(node).into_iter().collect(),
        };
        by_node.follow(view, same, None, work_out, |old, new| {
            for device in old.into_iter().flatten() {
                if let Some(nodes) = devices.get_mut(device) {
                    *nodes -= 1;
                }
            }
            for device in new.into_iter().flatten() {
                *devices.entry(*device).or_default() += 1;
            }
        });
        devices.retain(|_, nodes| *nodes > 0);
        devices.keys().copied().collect()
    }
}

/// How many backends no attached device covers.
#[derive(Default)]
pub(super) struct Uncovered {
    by_node: ByNode<usize>,
    count: usize,
}

impl Uncovered {
    /// The count of this view. `same_coverage`: the coverage is that of the last call. `flagged`: whether the own node bears a flag.
    pub(super) fn look(
        &mut self,
        coverage: &Coverage,
        same_coverage: bool,
        view: &Arc<ClusterView>,
        own_node: &str,
        flagged: bool,
    ) -> usize {
        let Self { by_node, count } = self;
        let work_out = |_, node: &Node| rows::uncovered_of(coverage, own_node, node, flagged).count();
        by_node.follow(view, same_coverage, view.index(own_node), work_out, |old, new| {
            *count = *count + new.copied().unwrap_or(0) - old.copied().unwrap_or(0);
        });
        *count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::parse,
        routes::{Dump, Fate, Hop, Prefix, Route, RouteMap, Rule},
    };

    /// 10.0.0.0/24 leaves by device 2, 10.1.0.0/24 by 3, and so on.
    fn coverage(ranges: u8) -> Coverage {
        let route = |range: u8| Route {
            to: Prefix::new([10, range, 0, 0].into(), 24).expect("a range"),
            table: 254,
            metric: 0,
            only_some: false,
            fate: Fate::Leaves,
            hops: vec![Hop {
                ifindex: u32::from(range) + 2,
                gateway: None,
                dead: false,
                linkdown: false,
                encap: None,
            }],
            object: None,
        };
        let routes = (0..ranges).map(route).collect();
        Coverage::new(
            Arc::new(RouteMap::new(Dump { rules: Rule::defaults(), routes, ..Dump::default() })),
            &[],
        )
    }

    /// Nodes with a letter each, and in which range each one's backends are.
    fn view(nodes: &[(char, &[u8])]) -> ClusterView {
        let mut text = String::from("nodes:\n");
        for (name, ranges) in nodes {
            let last = *name as u8;
            let backend = |range: &u8| format!("{{address: 10.{range}.0.{last}}}");
            let backends: Vec<String> = ranges.iter().map(backend).collect();
            text +=
                &format!("- {{name: {name}, address: 10.0.0.{last}, backends: [{}]}}\n", backends.join(", "));
        }
        parse(&text, false).expect("a view")
    }

    #[test]
    fn of_each_view_it_is_what_all_of_its_nodes_give() {
        let all: [&[(char, &[u8])]; 7] = [
            &[('a', &[1]), ('b', &[1]), ('c', &[2])],
            &[('a', &[1]), ('b', &[1]), ('c', &[3])],
            &[('a', &[2]), ('b', &[1, 9]), ('c', &[3])],
            &[('a', &[2]), ('b', &[9]), ('c', &[3])],
            &[('a', &[2]), ('c', &[3]), ('d', &[4])],
            &[('b', &[1]), ('c', &[3]), ('d', &[])],
            &[('a', &[1]), ('b', &[1]), ('c', &[2])],
        ];
        let mut needed = Needed::default();
        let mut uncovered = Uncovered::default();
        let mut last: Option<Arc<ClusterView>> = None;
        let mut before = (0, None);
        for (step, nodes) in all.into_iter().enumerate() {
            // Each view three times: alone, with other routes, and with the own node's pods.
            for (ranges, flagged) in [(4, false), (5, false), (5, true)] {
                let fresh = view(nodes);
                let shared = last.as_ref().map_or_else(|| fresh.clone(), |last| fresh.clone().sharing(last));
                let fresh = Arc::new(fresh);
                let shared = Arc::new(shared);
                let coverage = coverage(ranges);
                let skipped = fresh.index("a").filter(|_| !flagged);
                let same = before.0 == ranges;
                let followed = (
                    needed.look(&coverage, same, &shared, skipped),
                    uncovered.look(&coverage, same, &shared, "a", flagged),
                );
                let anew = (
                    Needed::default().look(&coverage, false, &fresh, skipped),
                    Uncovered::default().look(&coverage, false, &fresh, "a", flagged),
                );
                assert_eq!(followed, anew, "{step} {ranges} {flagged}");
                let devices = fresh.indexed().filter(|(at, _)| Some(*at) != skipped);
                let devices = devices.flat_map(|(_, node)| coverage.devices_to(node));
                assert_eq!(followed.0, devices.collect(), "{step} {ranges} {flagged}");
                let bare =
                    fresh.nodes.iter().map(|node| rows::uncovered_of(&coverage, "a", node, flagged).count());
                assert_eq!(followed.1, bare.sum::<usize>());
                before = (ranges, skipped);
                last = Some(shared);
            }
        }
    }
}
