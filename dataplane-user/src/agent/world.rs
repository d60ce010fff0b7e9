//! The world: what the agent knows and holds at one moment. Most actors only read it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::watch;

use super::coverage::Coverage;
use crate::{
    cluster::{ClusterView, NodeName, NodeSet},
    dataplane::probe::Findings,
    enforce::{self, Bearer, Bearers, Member, NewView, Now, ShownClaim, Standing},
    plan::{Exemptions, Slot, VirtualAddresses},
    proxy::Judgement,
};

/// The nodes that have a place in the maps. Views that follow each other share this where it did not change.
pub(super) type Members = Arc<BTreeMap<NodeName, Member>>;

/// Where so many nodes changed, it costs less to look at all of them.
const FEW: usize = 8;

/// A snapshot of one moment. It never changes: a reader clones the `Arc`.
///
/// A verdict is in the snapshot before it is in the maps, and until it has been withdrawn from them: whoever gets a packet that was cut
/// finds why.
#[derive(Clone)]
pub(super) struct World {
    /// The snapshot that `verdicts` last made known.
    pub(super) held: Arc<enforce::World>,
    /// Which nodes, backends and Services exist.
    pub(super) view: Arc<ClusterView>,
    /// Where the view's virtual addresses lead.
    pub(super) addresses: Arc<VirtualAddresses>,
    /// When the view's source was read.
    pub(super) loaded: Now,
    /// The nodes that have a place in the maps.
    members: Members,
    /// Which device leads to which backend.
    pub(super) coverage: Arc<Coverage>,
    /// How kube-proxy forwards.
    pub(super) proxy: Arc<Judgement>,
    /// The findings of the probes on this kernel.
    pub(super) findings: Arc<Findings>,
}

impl World {
    /// The world before `verdicts` has made anything known.
    pub(super) fn first(view: &NewView, proxy: Judgement, findings: Findings) -> Self {
        Self {
            held: Arc::default(),
            view: Arc::clone(&view.view),
            addresses: Arc::clone(&view.addresses),
            loaded: view.read,
            members: Arc::clone(&view.members),
            coverage: Arc::default(),
            proxy: Arc::new(proxy),
            findings: Arc::new(findings),
        }
    }

    /// Takes over what `verdicts` made known.
    pub(super) fn take(&mut self, held: Arc<enforce::World>) {
        if let Some(view) = &held.view {
            self.view = Arc::clone(&view.view);
            self.addresses = Arc::clone(&view.addresses);
            self.loaded = view.read;
            self.members = Arc::clone(&view.members);
        }
        self.held = held;
    }

    /// The nodes that have a place in the maps.
    pub(super) fn members(&self) -> Members {
        Arc::clone(&self.members)
    }

    /// Whether `members` is what this world has; `false` also for equal members of another reading.
    pub(super) fn has_members(&self, members: &Members) -> bool {
        Arc::ptr_eq(&self.members, members)
    }

    /// A node's place in the maps.
    pub(super) fn slot(&self, node: &str) -> Option<Slot> {
        self.members.get(node).map(|member| member.slot)
    }

    /// The exemptions: what is not cut though its node is. Costs in proportion to them.
    pub(super) fn exemptions(&self) -> Exemptions {
        self.held.exemptions()
    }

    /// Nodes whose backends are cut, or are about to be.
    pub(super) fn enforced(&self) -> impl Iterator<Item = (&NodeName, &Bearer)> {
        named(&self.held.enforced)
    }

    /// Nodes for which packets that would be cut are counted.
    pub(super) fn observed(&self) -> impl Iterator<Item = (&NodeName, &Bearer)> {
        named(&self.held.observed)
    }

    /// Whether the node's backends are cut.
    pub(super) fn enforces(&self, node: &str) -> bool {
        self.is_among(node, &self.held.enforced)
    }

    /// Whether packets to the node that would be cut are counted.
    pub(super) fn observes(&self, node: &str) -> bool {
        self.is_among(node, &self.held.observed)
    }

    /// A node's verdict, where its backends are cut.
    pub(super) fn bearer(&self, node: &str) -> Option<&Bearer> {
        self.find(node, &self.held.enforced)
    }

    fn is_among(&self, node: &str, bearers: &Bearers) -> bool {
        self.find(node, bearers).is_some()
    }

    fn find<'a>(&self, node: &str, bearers: &'a Bearers) -> Option<&'a Bearer> {
        bearers.get(self.slot(node)?)
    }

    /// Nodes of the view whose backends are cut.
    pub(super) fn enforced_nodes(&self) -> NodeSet {
        self.enforced().filter_map(|(name, _)| self.view.index(name)).collect()
    }

    /// As [`Self::enforced_nodes`], and nodes that may be cut still, since their verdict could not be withdrawn and lapses. `before`: an
    /// earlier moment, and the nodes that were cut then. Only nodes that changed since are looked at, where these are few.
    pub(super) fn cut_nodes(&self, before: Option<(&Self, &NodeSet)>) -> NodeSet {
        let names = || self.enforced().chain(named(&self.held.lapsing)).map(|(name, _)| name);
        if let Some((before, cut)) = before.filter(|(before, _)| self.has_members(&before.members)) {
            let enforced = self.held.enforced.changed_since(&before.held.enforced);
            let lapsing = self.held.lapsing.changed_since(&before.held.lapsing);
            let bearers = enforced.chain(lapsing).flat_map(|(before, now)| [before, now]).flatten();
            let changed: BTreeSet<&NodeName> = bearers.filter_map(|bearer| bearer.name.as_ref()).collect();
            if changed.len() <= FEW {
                let mut cut = cut.clone();
                for node in changed {
                    if let Some(index) = self.view.index(node) {
                        // Found by name, not by place: a verdict may lapse at a place that its node no longer has.
                        cut.set(index, names().any(|name| name == node));
                    }
                }
                return cut;
            }
        }
        names().filter_map(|name| self.view.index(name)).collect()
    }

    /// All claims on a node, in the order of their sources.
    pub(super) fn claims_on(&self, node: &str) -> &[ShownClaim] {
        self.held.claims.of(node)
    }

    /// Whether a claim on the node is carried out that has not ended since.
    pub(super) fn holds(&self, node: &str, now: Now) -> bool {
        self.claims_on(node).iter().any(|shown| is_carried_out(shown) && !shown.claim.ended(now))
    }

    /// Whether a claim on the node is carried out, or will be as soon as it can be.
    pub(super) fn is_claimed(&self, node: &str) -> bool {
        self.claims_on(node).iter().any(is_carried_out)
    }
}

fn is_carried_out(shown: &ShownClaim) -> bool {
    matches!(shown.standing, Standing::Enforced | Standing::Observed)
}

fn named(bearers: &Bearers) -> impl Iterator<Item = (&NodeName, &Bearer)> {
    bearers.iter().filter_map(|bearer| Some((bearer.name.as_ref()?, bearer)))
}

/// Reads the world. Never blocks.
#[derive(Clone)]
pub(super) struct Reader(watch::Receiver<Arc<World>>);

impl Reader {
    /// The world as of now.
    pub(super) fn now(&self) -> Arc<World> {
        Arc::clone(&self.0.borrow())
    }
}

/// Makes the world known. Several actors change it, each a part of its own.
pub(super) struct Published(watch::Sender<Arc<World>>);

impl Published {
    /// Begins with this world.
    pub(super) fn new(world: World) -> Self {
        Self(watch::Sender::new(Arc::new(world)))
    }

    /// A reader of the world.
    pub(super) fn reader(&self) -> Reader {
        Reader(self.0.subscribe())
    }

    /// The world as of now. Never blocks.
    pub(super) fn now(&self) -> Arc<World> {
        Arc::clone(&self.0.borrow())
    }

    /// Changes a part of the world.
    pub(super) fn change(&self, change: impl FnOnce(&mut World)) {
        let mut before = None;
        self.0.send_modify(|world| {
            let mut next = World::clone(world);
            change(&mut next);
            before = Some(std::mem::replace(world, Arc::new(next)));
        });
        // What the old world alone held is freed here, where nobody waits for it.
        drop(before);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        agent::builder::Builder,
        cluster::parse,
        dataplane::probe::Finding,
        enforce::Epoch,
        plan::{Answer, Indices, Mode, Policy},
    };

    /// A world of `count` nodes, `a` and those that follow, in which no node is claimed.
    pub(in super::super) fn nodes(count: u8) -> World {
        of(&(b'a'..b'a' + count).map(char::from).collect::<Vec<_>>())
    }

    /// A world of these nodes, in which no node is claimed.
    fn of(names: &[char]) -> World {
        let node = |(at, name): (usize, &char)| format!("- {{name: {name}, address: 10.0.0.{}}}\n", at + 1);
        let nodes: String = names.iter().enumerate().map(node).collect();
        let view = parse(&format!("nodes:\n{nodes}"), false).unwrap();
        let policy = Policy { own_node: "a", mode: Mode::Enforce, answer: Answer::Refuse };
        let view = Builder::new(&policy, None, Indices::default()).take(Arc::new(view), Epoch(0)).unwrap();
        let unknown = || "not looked at".to_owned();
        let findings = Findings {
            conntrack: Finding::NotNeeded(unknown()),
            ipvs_translates: Finding::NotNeeded(unknown()),
            deletes_by_filter: Finding::NotNeeded(unknown()),
            milliseconds: 0,
        };
        let mut world = World::first(&view, Judgement::default(), findings);
        world.take(Arc::new(enforce::World { view: Some(view), ..enforce::World::default() }));
        world
    }

    /// The same world, in which verdicts on the nodes of these bits are enforced, or lapse.
    fn cut(world: &World, enforced: u32, lapsing: u32) -> World {
        let names: Vec<&NodeName> = world.members.keys().collect();
        let bearers = |bits: u32| -> Bearers {
            let of = |(at, name): (usize, &&NodeName)| Bearer {
                name: Some((*name).clone()),
                slot: world.slot(name).unwrap(),
                action: nodefence_common::Action::Refuse,
                since: at as u64,
                challenge_since: 0,
            };
            names.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(of).collect()
        };
        let mut world = world.clone();
        let held = enforce::World {
            enforced: bearers(enforced),
            lapsing: bearers(lapsing),
            view: world.held.view.clone(),
            ..enforce::World::default()
        };
        world.take(Arc::new(held));
        world
    }

    #[test]
    fn who_is_cut_is_the_same_by_what_changed_and_by_looking_at_all() {
        let few = nodes(3);
        for before in 0..64 {
            let before = cut(&few, before & 7, before >> 3);
            for now in 0..64 {
                let now = cut(&few, now & 7, now >> 3);
                let changed = now.cut_nodes(Some((&before, &before.cut_nodes(None))));
                assert_eq!(changed, now.cut_nodes(None));
            }
        }
        // Many at once, and others than before.
        let many = cut(&nodes(20), 0, 0);
        let all = cut(&many, 0xf_ffff, 0);
        assert_eq!(all.cut_nodes(Some((&many, &NodeSet::default()))).iter().count(), 20);
        // Another view, in which they stand elsewhere.
        let before = cut(&nodes(4), 0b1000, 0);
        let now = cut(&of(&['b', 'c', 'd']), 0b100, 0);
        assert_eq!(now.cut_nodes(Some((&before, &before.cut_nodes(None)))), now.cut_nodes(None));
    }
}
