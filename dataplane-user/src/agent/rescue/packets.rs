//! Decides on one packet: rescue, refusal, or waiting.
use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{Arc, mpsc::SyncSender},
};

use nodefence_common::{Addr, RescueHead};

use super::{
    devices::Devices,
    handed::{self, length},
    refuse::refuse,
    waiting_packets::WaitingPackets,
};
use crate::{
    agent::{bell::Bell, rescue_state::RescueState, sight::Sight, world::World},
    cluster::{ClusterView, NodeSet},
    conntrack::{self, Conntrack, Flow, Tuple},
    dataplane::Injector,
    drain::pair_of,
    flags::monotonic_ns,
    ledger::Pair,
    plan::{Proxy, VirtualAddresses},
    proxy,
    rescue::{
        Fate,
        own::OwnPackets,
        packet::{Packet, ethernet},
        refusals::Refusals,
        services::{Choices, NoChoice},
        tries::{LEAST_TRIES, Sent, Spent, Tries, tries},
    },
};

/// A packet that was handed over longer ago (ns) is dropped: its sender is about to repeat it, or has done so.
const LATE_NS: u64 = 500_000_000;

/// How to handle a packet whose client kube-proxy keeps at the hung endpoint.
pub(super) enum Sticky {
    /// The packet is for the thread that may wait.
    HandOn(SyncSender<handed::Packet>),
    /// kube-proxy is to forget the client. The thread that may wait does so for many clients together.
    Forget(proxy::Forget),
}

/// The parts of the agent that the threads that rescue get.
#[derive(Clone)]
pub(in super::super) struct RescueContext {
    pub(in super::super) sight: Sight,
    /// State that these threads share with others.
    pub(in super::super) state: Arc<RescueState>,
    /// The thread that drains from IPVS.
    pub(in super::super) drain: Arc<Bell>,
    pub(in super::super) injector: Injector,
}

/// The state and the sockets that rescuing a packet needs.
pub(super) struct Helper {
    context: RescueContext,
    conntrack: Conntrack,
    own: OwnPackets,
    tries: Tries,
    refusals: Refusals,
    choices: Choices,
    devices: Devices,
    sticky: Sticky,
    /// The world at the last look.
    world: Option<Arc<World>>,
    view: Arc<ClusterView>,
    addresses: Arc<VirtualAddresses>,
    flagged: NodeSet,
    /// Since when (CLOCK_MONOTONIC, ns) these nodes and no others have been flagged.
    flagged_since: u64,
    /// How kube-proxy forwards.
    mode: proxy::Mode,
    /// IPVS: the pairs whose connections find another destination.
    balanced: Arc<HashSet<Pair>>,
    waiting: WaitingPackets,
    /// The conntrack socket failed.
    pub(super) broken: bool,
}

impl Helper {
    pub(super) fn open(context: RescueContext, sticky: Sticky) -> anyhow::Result<Self> {
        let mut conntrack = Conntrack::open(context.sight.settings.conntrack_zone)?;
        // A request for an entry that cannot exist shows whether the kernel answers at all.
        let nobody = Addr::v4([0; 4]);
        conntrack.by_reply(&Tuple { src: nobody, dst: nobody, src_port: 0, dst_port: 0, protocol: 6 })?;
        let own = OwnPackets::open().map_err(|error| anyhow::anyhow!("open a raw socket: {error}"))?;
        let world = context.sight.world();
        let view = Arc::clone(&world.view);
        let addresses = Arc::clone(&world.addresses);
        Ok(Self {
            context,
            conntrack,
            own,
            tries: Tries::default(),
            refusals: Refusals::default(),
            choices: Choices::default(),
            devices: Devices::default(),
            sticky,
            world: None,
            view,
            addresses,
            flagged: NodeSet::default(),
            flagged_since: 0,
            mode: proxy::Mode::Nftables,
            balanced: Arc::default(),
            waiting: WaitingPackets::default(),
            broken: false,
        })
    }

    /// Takes notice of the view and of the flags as they are now.
    pub(super) fn look(&mut self) {
        let world = self.context.sight.world();
        if self.world.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &world)) {
            if self.mode == proxy::Mode::Ipvs {
                self.balanced = self.context.drain.progress().balanced;
            }
            return;
        }
        let mode = world.proxy.mode.unwrap_or(self.mode);
        if mode == proxy::Mode::Ipvs {
            self.balanced = self.context.drain.progress().balanced;
        }
        let before = self.world.as_deref();
        let flagged = world.cut_nodes(before.map(|before| (before, &self.flagged)));
        let other_view = !Arc::ptr_eq(&world.view, &self.view);
        if other_view {
            self.addresses = Arc::clone(&world.addresses);
            self.view = Arc::clone(&world.view);
        }
        if other_view || mode != self.mode || flagged != self.flagged {
            // View and flags decide who is refused, and which backends there are to choose from.
            self.refusals = Refusals::default();
            self.choices = Choices::default();
        }
        if self.world.is_none() || flagged != self.flagged {
            self.flagged_since = monotonic_ns();
        }
        self.mode = mode;
        self.flagged = flagged;
        self.world = Some(world);
    }

    pub(super) fn handle(&mut self, head: &RescueHead, frame: &[u8]) {
        self.take(head, frame, Visit::First);
    }

    /// For the thread that may wait: whether the packet is to come again ([`Self::go_on`]) once kube-proxy has forgotten its client
    /// ([`Self::forget`]).
    pub(super) fn comes_again(&mut self, head: &RescueHead, frame: &[u8]) -> bool {
        self.take(head, frame, Visit::First)
    }

    /// Has kube-proxy forget the clients of all packets that are to come again. Returns whether that took a transaction of nftables. May
    /// wait for others that change rules.
    pub(super) fn forget(&mut self) -> Result<bool, proxy::Error> {
        match &mut self.sticky {
            Sticky::Forget(forget) => forget.all(),
            Sticky::HandOn(_) => Ok(false),
        }
    }

    /// Looks at a packet again whose client was forgotten.
    pub(super) fn go_on(&mut self, head: &RescueHead, frame: &[u8]) {
        self.take(head, frame, Visit::Forgotten);
    }

    /// Looks again at the packets that wait.
    pub(super) fn again(&mut self) {
        for (head, frame) in self.waiting.due(monotonic_ns(), &self.balanced) {
            self.take(&head, &frame, Visit::Waited);
        }
    }

    /// Whether any packet waits.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn take(&mut self, head: &RescueHead, frame: &[u8], visit: Visit) -> bool {
        let now = monotonic_ns();
        let late = now.saturating_sub(head.time_ns) > LATE_NS;
        let fate = match if late { Err(Stop::Late) } else { self.rescue(head, frame, visit, now) } {
            Ok(fate) => fate,
            Err(Stop::Again) => return true,
            Err(Stop::Late) => Fate::Late,
            Err(Stop::Wait) if self.waits_for(head, frame, now) => return false,
            Err(Stop::Wait) => refuse(&self.context.injector, head, frame, Fate::Tries),
            Err(Stop::HandOn) if self.hand_on(head, frame) => return false,
            Err(Stop::HandOn) => refuse(&self.context.injector, head, frame, Fate::Affinity),
            Err(Stop::Refuse(why)) => refuse(&self.context.injector, head, frame, why),
        };
        self.context.state.tally.add(fate, length(head, frame));
        false
    }

    /// Stores the packet for later, where there is room and a thread that comes back to it.
    fn waits_for(&mut self, head: &RescueHead, frame: &[u8], now: u64) -> bool {
        matches!(self.sticky, Sticky::HandOn(_)) && self.waiting.put(head, frame, now)
    }

    /// Gives the packet to the thread that may wait; `false` where that thread has no room.
    fn hand_on(&self, head: &RescueHead, frame: &[u8]) -> bool {
        match &self.sticky {
            Sticky::HandOn(packets) => packets.try_send((*head, frame.to_vec())).is_ok(),
            Sticky::Forget(_) => false,
        }
    }

    /// Rescues the packet.
    ///
    /// # Errors
    /// Why the packet is to be refused. Its conntrack entry is still there then, so that the answer is translated.
    fn rescue(&mut self, head: &RescueHead, frame: &[u8], visit: Visit, now: u64) -> Result<Fate, Stop> {
        let bytes = frame.get(usize::from(head.l3_offset)..).ok_or(Fate::Untranslated)?;
        let packet = Packet::parse(bytes).map_err(|_| Fate::Untranslated)?;
        let reply = packet.reply();
        if let Some(why) = self.refusals.why(&reply, now) {
            return Err(why.into());
        }
        let entry = self.conntrack.by_reply(&reply).map_err(|error| self.give_up(&error))?;
        let (ends, entry) = match entry {
            Some(entry) => {
                let sent = Sent { ends: entry.orig, sequence: packet.sequence };
                match self.may_move(&entry, sent, head.time_ns, visit, now)? {
                    Goes::Elsewhere => (entry.orig, Some(entry)),
                    Goes::OnItsWay => (entry.orig, None),
                }
            }
            None => {
                // The entry was deleted while this packet was on its way here: another packet of the flow was rescued, or all stale flows
                // were deleted.
                let moved = self.context.state.moved().ends(&reply, head.time_ns, now);
                let ends = moved.ok_or_else(|| {
                    self.refusals.unknown(reply, Fate::Untranslated, now);
                    Fate::Untranslated
                })?;
                (ends, None)
            }
        };
        let way = self.way(head, &packet, &ends)?;
        if let Some(entry) = entry {
            self.context.state.remember(&[entry]);
            self.conntrack.delete(&[entry]).map_err(|error| self.give_up(&error))?;
        }
        let done = match way {
            Way::Device(ifindex, frame) => {
                self.context.injector.inject(ifindex, &frame).map_err(|error| error.to_string())
            }
            Way::Socket(..) if !self.context.state.own().may_send(&ends, now) => return Ok(Fate::Repeated),
            Way::Socket(packet, to) => self.own.send(&packet, to).map_err(|error| error.to_string()),
        };
        match done {
            Ok(()) if head.ingress_ifindex == 0 => Ok(self.own_fate(&ends)),
            Ok(()) => Ok(Fate::Rescued),
            Err(error) => {
                tracing::debug!(
                    event = "rescue-not-injected",
                    error,
                    ifindex = head.ingress_ifindex,
                    "a packet was not rescued"
                );
                // The packet's entry is gone: an answer would not be translated. The sender repeats the packet.
                Ok(Fate::NotSent)
            }
        }
    }

    /// The fate of an own socket's packet that was sent again. The packet's conntrack entry shows the fate, not the kernel's version: sending
    /// returns when the packet has gone through the rules. Then the packet has an entry that is translated, or it was not balanced.
    fn own_fate(&mut self, ends: &Tuple) -> Fate {
        if !self.context.state.own().is_open(ends) {
            return Fate::Rescued;
        }
        let balanced = match self.conntrack.by_original(ends) {
            Ok(entry) => entry.is_some_and(|entry| entry.is_balanced()),
            // The next packet is looked at instead.
            Err(_) => return Fate::Rescued,
        };
        if self.context.state.own().seen(ends, balanced) {
            tracing::warn!(
                event = "own-sockets-not-rescued",
                %ends,
                "packets of own sockets are not balanced anew: they wait until their sender repeats them"
            );
        }
        if balanced { Fate::Rescued } else { Fate::Repeated }
    }

    /// Whether the packet `sent`, which met the cut at `met`, may find another backend.
    fn may_move(&mut self, entry: &Flow, sent: Sent, met: u64, visit: Visit, now: u64) -> Result<Goes, Stop> {
        let waited = visit == Visit::Waited;
        let view = Arc::clone(&self.view);
        let proxy = Proxy::of(&view, &self.context.sight.own_node, self.mode);
        let choice = self.choices.of(&self.addresses, &view, &proxy, entry, &self.flagged);
        let choice = choice.map_err(|why| {
            let why = match why {
                NoChoice::Untranslated => Fate::Untranslated,
                NoChoice::Unknown => Fate::Unknown,
                NoChoice::NothingElse => Fate::NothingElse,
            };
            self.refusals.judged(entry.reply, why, now);
            why
        })?;
        // The node was unflagged meanwhile. The client goes on by this entry, or has connected by it. A packet that met the cut since the
        // flags changed is none of these: a flagged node has its address, too.
        if choice.is_free && met < self.flagged_since {
            return Ok(Goes::OnItsWay);
        }
        if self.mode == proxy::Mode::Ipvs && !choice.all_flagged() {
            // IPVS has no call that deletes one connection. It drops a connection once its destination is drained, but not one that was
            // made at that moment: a packet that comes back waits for the next look at the tables.
            let pair = pair_of(entry);
            if !self.balanced.contains(&pair) || (!waited && self.tries.has(&sent, met)) {
                if !waited {
                    self.context.drain.urgent(pair.service);
                }
                // IPVS deletes the entry by itself, with the connection.
                self.context.state.remember(&[*entry]);
                return Err(Stop::Wait);
            }
        }
        let sticky_endpoint = choice.sticky_endpoint.as_ref().filter(|_| self.mode != proxy::Mode::Ipvs);
        match (sticky_endpoint, &mut self.sticky) {
            (None, _) => {}
            (Some(_), Sticky::HandOn(_)) => return Err(Stop::HandOn),
            // Each pick of the hung endpoint renews the client's affinity to it.
            (Some(endpoint), Sticky::Forget(forget)) if visit != Visit::Forgotten => {
                forget.add(self.mode, endpoint, entry.orig.src.into());
                return Err(Stop::Again);
            }
            (Some(_), Sticky::Forget(_)) => {}
        }
        let limit = if choice.all_flagged() { LEAST_TRIES } else { tries(choice.flagged, choice.usable) };
        match self.tries.take(sent, limit, met) {
            Ok(_) => {}
            Err(Spent::Memory) => return Err(Fate::Memory.into()),
            Err(Spent::Tries) if choice.all_flagged() => {
                self.refusals.judged(entry.reply, Fate::NothingElse, now);
                return Err(Fate::NothingElse.into());
            }
            Err(Spent::Tries | Spent::Time) => return Err(Fate::Tries.into()),
        }
        Ok(Goes::Elsewhere)
    }

    fn way(&mut self, head: &RescueHead, packet: &Packet<'_>, ends: &Tuple) -> Result<Way, Fate> {
        // Forwarding took one hop off.
        let hops = u8::from(head.ingress_ifindex != 0);
        let bytes = packet.between(ends, hops).ok_or(Fate::Untranslated)?;
        if head.ingress_ifindex == 0 {
            return Ok(Way::Socket(bytes, ends.dst.into()));
        }
        let to = self.devices.address(head.ingress_ifindex).ok_or(Fate::NotSent)?;
        Ok(Way::Device(head.ingress_ifindex, ethernet(to, &bytes)))
    }

    fn give_up(&mut self, error: &conntrack::Error) -> Fate {
        tracing::warn!(
            event = "rescue-failed",
            %error,
            "a packet could not be rescued; conntrack is opened anew"
        );
        self.broken = true;
        Fate::NotSent
    }
}

/// Why a packet is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    First,
    /// The packet has waited for IPVS.
    Waited,
    /// kube-proxy has forgotten its client.
    Forgotten,
}

/// Where a packet that is rescued goes.
enum Goes {
    /// The packet's entry is deleted, and the packet is balanced anew.
    Elsewhere,
    /// The packet goes where its entry says.
    OnItsWay,
}

/// Why a packet is not rescued.
enum Stop {
    /// Its sender is told at once.
    Refuse(Fate),
    /// The packet may be rescued a little later.
    Wait,
    /// The packet may be rescued by the thread that may wait for nftables.
    HandOn,
    /// The packet may be rescued once kube-proxy has forgotten its client.
    Again,
    /// Nobody is told: the sender is about to repeat the packet.
    Late,
}

impl From<Fate> for Stop {
    fn from(fate: Fate) -> Self {
        Self::Refuse(fate)
    }
}

/// How a packet is rescued.
enum Way {
    /// In a frame, as if the device had received the packet.
    Device(u32, Vec<u8>),
    /// By a raw socket, to this address, as if this machine had sent the packet.
    Socket(Vec<u8>, IpAddr),
}
