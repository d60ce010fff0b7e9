//! Deletes what keeps clients at a flagged node where kube-proxy forwards by nftables or iptables: kube-proxy's affinity, and conntrack
//! entries. kube-proxy's rules are never touched, and go on naming the node's endpoints. So affinity and flows that become stale anew are
//! deleted again as long as the flag holds.
use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{
    backends::add_backends, chain::chain, follow_up::FollowUp, reader::Reader, rescue_state::RescueState,
    sight::Sight, world::World,
};
use crate::{
    cluster::{Backends, ClusterView, NodeName, Protocol},
    conntrack::{Conntrack, Deleted, Dump, Error, Family, Flow, Protocols, WantedFlow, of_backends},
    plan::{self, Slot},
    proxy::{self, Affinity, Mode, endpoints},
    report::StaleRow,
    sysctl,
};

/// How often deleting is tried again where one of the nodes was unflagged meanwhile.
const TRIES: u32 = 8;

/// Whether TCP packets in the middle of a flow may begin an entry.
const LOOSE: &str = "net/netfilter/nf_conntrack_tcp_loose";

/// The parts of the agent that deleting stale flows needs.
#[derive(Clone)]
pub(super) struct StaleFlows {
    pub(super) sight: Sight,
    /// Deleted flows are remembered there, for packets on their way.
    pub(super) rescue: Arc<RescueState>,
    pub(super) follow_up: Arc<FollowUp>,
    pub(super) reader: Reader,
}

/// kube-proxy's mode, where there is anything to delete: not in observe mode, and not where IPVS or something unknown forwards.
pub(super) fn mode(sight: &Sight) -> Option<Mode> {
    let world = sight.world();
    let mode = world.proxy.mode.filter(|mode| *mode != Mode::Ipvs)?;
    (world.held.mode == plan::Mode::Enforce).then_some(mode)
}

/// Whose flows are to be deleted: backends of flagged nodes except those that are exempt, with their view and their verdicts.
pub(super) struct Flagged {
    view: Arc<ClusterView>,
    /// Each with its node's place in `nodes`.
    backends: Backends<usize>,
    nodes: Vec<Bears>,
}

/// A node that is flagged.
#[derive(PartialEq, Eq)]
struct Bears {
    name: NodeName,
    /// Where the node's entry is.
    slot: Slot,
    /// Since when (CLOCK_MONOTONIC, ns) the node has borne its verdict without a break.
    since: u64,
}

impl Bears {
    /// Whether the node still bears the same verdict. Where it was unflagged in between, a client may have connected to it, and answers
    /// reach that client by the flow's entry alone.
    fn holds(&self, world: &World) -> bool {
        world.bearer(&self.name).is_some_and(|bearer| bearer.slot == self.slot && bearer.since == self.since)
    }
}

impl Flagged {
    /// The backends of all `wanted` nodes that are cut now; `None` where there are none.
    pub(super) fn of(sight: &Sight, wanted: impl Fn(&NodeName) -> bool) -> Option<Self> {
        let world = sight.world();
        let mut backends = Backends::new();
        let mut nodes = Vec::new();
        let exemptions = world.exemptions();
        for (name, verdict) in world.enforced().filter(|(name, _)| wanted(name)) {
            if add_backends(&mut backends, &world.view, name, &exemptions, nodes.len()) {
                nodes.push(Bears { name: name.clone(), slot: verdict.slot, since: verdict.since });
            }
        }
        (!backends.is_empty()).then(|| Self { view: Arc::clone(&world.view), backends, nodes })
    }

    /// The flagged nodes.
    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().map(|node| &node.name)
    }

    /// Whether these are the same backends, under the same verdicts.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.nodes == other.nodes && self.backends == other.backends
    }

    /// Leaves out flows of nodes that do not bear the same verdict any more. Returns whether flows are left, or all nodes still bear theirs.
    fn keep_to(&self, world: &World, flows: &mut Vec<Flow>) -> bool {
        let holds: Vec<bool> = self.nodes.iter().map(|node| node.holds(world)).collect();
        flows.retain(|flow| self.backends.of_flow(flow).is_some_and(|node| holds[*node]));
        !flows.is_empty() || holds.iter().all(|holds| *holds)
    }

    fn contains(&self, protocol: Protocol, socket: SocketAddr) -> bool {
        self.backends.of(socket.ip().into(), socket.port(), protocol.number()).is_some()
    }

    /// The endpoints of Services with affinity among the backends.
    fn affinity(&self) -> Affinity<'_> {
        let mut known = Affinity::default();
        let services = self.view.services.iter().flatten().filter(|service| service.affinity.is_some());
        for service in services {
            let ours = endpoints(service, |protocol, socket| self.contains(protocol, socket));
            ours.for_each(|endpoint| known.add(&endpoint));
        }
        known
    }

    /// Deletes the clients' affinity to these endpoints.
    pub(super) fn unstick(&self, mode: Mode) -> Result<proxy::Flushed, proxy::Error> {
        proxy::flush(mode, &|protocol, socket| self.contains(protocol, socket), &self.affinity())
    }

    /// Deletes entries that the kernel deletes by filter. Returns the backends whose entries are to be listed and deleted one by one.
    fn delete_by_filter(
        &self,
        ours: &StaleFlows,
        which: Protocols,
    ) -> Result<(Deleted, Arc<Backends<()>>), String> {
        if ours.rescue.takes() {
            // Rescue remembers each entry before it is deleted, so all entries must be listed.
            return Ok((Deleted::default(), Arc::new(self.backends.at(|_| true))));
        }
        let by_filter = ours.sight.world().findings.by_filter();
        let may = || self.keep_to(&ours.sight.world(), &mut Vec::new());
        let (done, rest) = Conntrack::open(ours.reader.zone())
            .and_then(|mut conntrack| conntrack.delete_by_filter(&self.backends, which, by_filter, may))
            .map_err(chain)?;
        Ok((done, Arc::new(rest)))
    }

    fn delete_listed(&self, ours: &StaleFlows, listed: &[Dump]) -> Result<Deleted, String> {
        let may = |flows: &mut Vec<Flow>| {
            if ours.rescue.takes() {
                // A packet that is handed over just now is rescued by its entry, or by what is remembered of the entry.
                ours.rescue.remember(flows);
            }
            self.keep_to(&ours.sight.world(), flows)
        };
        let mut conntrack = Conntrack::open(ours.reader.zone()).map_err(chain)?;
        let mut done = Deleted::default();
        for dump in listed {
            done.add(conntrack.delete_listed(dump, may).map_err(chain)?);
            if done.stopped {
                break;
            }
        }
        Ok(done)
    }

    /// Deletes by filter, lists the rest once, and deletes what was listed.
    pub(super) fn delete(&self, ours: &StaleFlows, which: Protocols) -> Result<Deleted, String> {
        let (mut done, rest) = self.delete_by_filter(ours, which)?;
        let wanted = of_backends(&rest, Some(which));
        if !done.stopped && !wanted.is_empty() {
            let listed = ours.reader.list_while(wanted, || {}).map_err(chain)?;
            done.add(self.delete_listed(ours, &listed)?);
        }
        Ok(done)
    }
}

/// The deletion of stale flows of nodes whose clients are about to be challenged. Affinity is deleted already, and so are the entries that
/// the kernel deletes by filter.
pub(super) struct Begun {
    flagged: Flagged,
    row: StaleRow,
    filtered: Result<(Deleted, Arc<Backends<()>>), String>,
}

impl Begun {
    /// The flows that must be listed for the rest.
    pub(super) fn wanted(&self) -> Vec<(Family, WantedFlow)> {
        match &self.filtered {
            Ok((done, rest)) if !done.stopped => of_backends(rest, Some(Protocols::Datagrams)),
            _ => Vec::new(),
        }
    }
}

impl StaleFlows {
    /// Deletes at once what no RST can end: affinity of clients at the nodes' endpoints, then their UDP and SCTP flows. Blocking.
    pub(super) fn begin(&self, nodes: &BTreeSet<NodeName>) -> Option<Begun> {
        let mode = mode(&self.sight)?;
        let flagged = Flagged::of(&self.sight, |name| nodes.contains(name))?;
        let mut row = StaleRow { nodes: flagged.nodes.len(), ..StaleRow::default() };
        match flagged.unstick(mode) {
            Ok(flushed) => {
                row.affinity = flushed.emptied;
                row.affinity_unknown = flushed.unknown;
            }
            Err(error) => row.problem = Some(chain(error)),
        }
        let filtered = flagged.delete_by_filter(self, Protocols::Datagrams);
        Some(Begun { flagged, row, filtered })
    }

    /// Goes on with what was listed, as [`Begun::wanted`] requested. Blocking.
    pub(super) fn before_challenge(&self, begun: Begun, listed: Result<&[Dump], &Arc<Error>>) {
        let Begun { flagged, mut row, filtered } = begun;
        let done = filtered.and_then(|(mut done, rest)| {
            if !done.stopped && !rest.is_empty() {
                let listed = listed.map_err(|error| chain(Arc::clone(error)))?;
                done.add(flagged.delete_listed(self, listed)?);
            }
            if done.stopped {
                // One of the nodes was unflagged: deleting begins anew for the others.
                let names = flagged.nodes.iter().map(|node| node.name.clone()).collect();
                done.stopped = false;
                done.add(self.delete(&names, Protocols::Datagrams)?);
            }
            Ok(done)
        });
        match done {
            Ok(done) => {
                row.datagrams = done.deleted;
                note(&mut row, done);
            }
            Err(error) => row.problem = Some(error),
        }
        tracing::info!(
            event = "stale-flows-deleted",
            node = match &flagged.nodes[..] {
                [one] => Some(one.name.as_str()),
                _ => None,
            },
            nodes = row.nodes,
            affinity = row.affinity,
            datagrams = row.datagrams,
            by_filter = row.by_filter,
            "stale flows were deleted"
        );
        for node in &flagged.nodes {
            self.follow_up.note_stale(&node.name, |noted| *noted = row.clone());
        }
    }

    /// Deletes TCP flows once their clients were challenged. Until then these entries translate the challenges and their answers. Blocking.
    pub(super) fn after_challenge(&self, nodes: &BTreeSet<NodeName>) {
        if nodes.is_empty() || mode(&self.sight).is_none() {
            return;
        }
        let done = match sysctl::number(LOOSE) {
            // Without its entry the flow's next packet would be INVALID, and kube-proxy would drop it. With the entry the packet
            // meets the cut, and is answered with a RST.
            Some(0) => Err("TCP entries stay: net.netfilter.nf_conntrack_tcp_loose is 0".to_owned()),
            _ => self.delete(nodes, Protocols::Tcp),
        };
        for node in nodes {
            self.follow_up.note_stale(node, |row| match &done {
                Ok(done) => {
                    row.tcp = done.deleted;
                    note(row, *done);
                }
                Err(error) => row.problem = Some(error.clone()),
            });
        }
    }

    /// Deletes entries of the flagged nodes among `nodes`. Where one is unflagged before filters are used, deleting begins anew with the
    /// others.
    fn delete(&self, nodes: &BTreeSet<NodeName>, which: Protocols) -> Result<Deleted, String> {
        let mut done = Deleted::default();
        for _ in 0..TRIES {
            let Some(flagged) = Flagged::of(&self.sight, |name| nodes.contains(name)) else {
                return Ok(done);
            };
            let more = flagged.delete(self, which)?;
            done.add(more);
            if !more.stopped {
                return Ok(done);
            }
        }
        Err("nodes were flagged no more again and again meanwhile; entries of others may be left".to_owned())
    }
}

fn note(row: &mut StaleRow, done: Deleted) {
    row.by_filter += done.filtered;
    row.refused += done.refused;
    if done.incomplete {
        row.problem = Some("conntrack changed too fast to be listed whole; entries may be left".to_owned());
    }
}
