//! What the agent knows and holds at one moment, for all who only read it.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::watch;

use super::coverage::Coverage;
use crate::{
    cluster::{ClusterView, NodeName, NodeSet},
    dataplane::probe::Findings,
    enforce::{self, Bearer, Bearers, Member, NewView, Now, ShownClaim, Standing},
    plan::{Keep, Slot, VirtualAddresses},
    proxy::Judgement,
};

/// One moment. It never changes: whoever reads it clones the `Arc` and lets go.
///
/// A verdict is in it before it is written, and until it has been taken back: whoever gets a packet that was cut finds why.
#[derive(Clone)]
pub(super) struct World {
    /// What the owner of verdicts made known.
    pub(super) held: Arc<enforce::World>,
    /// Who exists.
    pub(super) view: Arc<ClusterView>,
    /// Where its virtual addresses lead.
    pub(super) addresses: Arc<VirtualAddresses>,
    /// When that was read.
    pub(super) loaded: Now,
    /// Who has which place in the maps.
    members: Arc<BTreeMap<NodeName, Member>>,
    /// Which device leads to which backend.
    pub(super) coverage: Arc<Coverage>,
    /// How kube-proxy forwards.
    pub(super) proxy: Arc<Judgement>,
    /// What was found out about this kernel.
    pub(super) findings: Arc<Findings>,
}

impl World {
    /// Before the owner of verdicts has made anything known.
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

    /// Takes over what the owner of verdicts made known.
    pub(super) fn take(&mut self, held: Arc<enforce::World>) {
        if let Some(view) = &held.view {
            self.view = Arc::clone(&view.view);
            self.addresses = Arc::clone(&view.addresses);
            self.loaded = view.read;
            self.members = Arc::clone(&view.members);
        }
        self.held = held;
    }

    /// A node's place in the maps.
    pub(super) fn slot(&self, node: &str) -> Option<Slot> {
        self.members.get(node).map(|member| member.slot)
    }

    /// Ports that are not cut though their node is. Costs in proportion to them.
    pub(super) fn keep(&self) -> Keep {
        self.held.exempt.keep()
    }

    /// Nodes whose backends are cut, or are about to be.
    pub(super) fn enforced(&self) -> impl Iterator<Item = (&NodeName, &Bearer)> {
        named(&self.held.enforced)
    }

    /// Nodes of which is counted what would be cut.
    pub(super) fn observed(&self) -> impl Iterator<Item = (&NodeName, &Bearer)> {
        named(&self.held.observed)
    }

    /// Whether the node's backends are cut.
    pub(super) fn enforces(&self, node: &str) -> bool {
        self.is_among(node, &self.held.enforced)
    }

    /// Whether what would be cut of the node is counted.
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

    /// The same, and those that may be cut still, since their verdict could not be taken back and lapses.
    pub(super) fn cut_nodes(&self) -> NodeSet {
        let cut = self.enforced().chain(named(&self.held.lapsing));
        cut.filter_map(|(name, _)| self.view.index(name)).collect()
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

/// Reads it. Waits for nobody.
#[derive(Clone)]
pub(super) struct Reader(watch::Receiver<Arc<World>>);

impl Reader {
    /// As of now.
    pub(super) fn now(&self) -> Arc<World> {
        Arc::clone(&self.0.borrow())
    }
}

/// Makes it known. Several change it, each a part of its own.
pub(super) struct Published(watch::Sender<Arc<World>>);

impl Published {
    /// Beginning with this.
    pub(super) fn new(world: World) -> Self {
        Self(watch::Sender::new(Arc::new(world)))
    }

    /// For whoever only reads.
    pub(super) fn reader(&self) -> Reader {
        Reader(self.0.subscribe())
    }

    /// As of now. Waits for nobody.
    pub(super) fn now(&self) -> Arc<World> {
        Arc::clone(&self.0.borrow())
    }

    /// Changes a part of it.
    pub(super) fn change(&self, change: impl FnOnce(&mut World)) {
        let mut before = None;
        self.0.send_modify(|world| {
            let mut next = World::clone(world);
            change(&mut next);
            before = Some(std::mem::replace(world, Arc::new(next)));
        });
        // Whatever it alone held is freed here, where nobody waits for it.
        drop(before);
    }
}
