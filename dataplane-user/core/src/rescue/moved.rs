//! The ends of flows whose entries were deleted, for the packets that were on their way then. Pure.
use super::tries::Recent;
use crate::conntrack::{Flow, Tuple};

/// How long (ns) flows are remembered at least; twice as long at most.
const HOLDS_NS: u64 = 1_000_000_000;
/// How many flows each half of the memory holds: 12 MiB.
const CAPACITY: usize = 65_536;
/// How long (ns) after a flow was remembered its packets may still meet the cut: its entry is deleted right after, with few others. A packet that comes later has
/// the same ends, but may be another client's: where sources are translated, the next client may be given the same port.
const ON_ITS_WAY_NS: u64 = 200_000_000;

/// A flow's ends as its client knows them, and when it was remembered.
#[derive(Clone, Copy, Debug)]
struct Ends {
    orig: Tuple,
    at: u64,
}

/// Flows, by the direction that answers take.
#[derive(Debug)]
pub struct Moved(Recent<Tuple, Ends>);

impl Default for Moved {
    fn default() -> Self {
        Self(Recent::new(HOLDS_NS, CAPACITY))
    }
}

impl Moved {
    /// Takes note at `now` (CLOCK_MONOTONIC ns) of an entry that is about to be deleted. Where there is no room for it, packets on their way are refused.
    pub fn remember(&mut self, flow: &Flow, now: u64) {
        if flow.is_balanced() {
            self.0.put(flow.reply, Ends { orig: flow.orig, at: now }, now);
        }
    }

    /// The ends of the flow of a packet that met the cut at `met` and has no entry at `now`. `None` where the packet may be of another flow than the remembered one.
    pub fn ends(&mut self, reply: &Tuple, met: u64, now: u64) -> Option<Tuple> {
        let ends = self.0.get(reply, now)?;
        (met <= ends.at.saturating_add(ON_ITS_WAY_NS)).then_some(ends.orig)
    }
}

#[cfg(test)]
mod tests {
    use nodefence_common::Addr;

    use super::*;

    /// A flow by the Service of a client that is masqueraded as this machine, to the same backend from the same port as every other of these.
    fn flow(client: u8, port: u16) -> Flow {
        let [service, node, backend] = [[10, 96, 0, 10], [192, 0, 2, 1], [10, 244, 2, 2]].map(Addr::v4);
        let src = Addr::v4([10, 244, 1, client]);
        let orig = Tuple { src, dst: service, src_port: 40_000, dst_port: 53, protocol: 17 };
        let reply = Tuple { src: backend, dst: node, src_port: 53, dst_port: port, protocol: 17 };
        Flow { orig, reply, tcp: None, liberal: false, status: 0, zone: None, id: 1, timeout: 30 }
    }

    const START: u64 = 10_000_000_000;

    #[test]
    fn a_packet_that_was_on_its_way_has_the_ends_of_its_flow() {
        let mut moved = Moved::default();
        let flow = flow(1, 40_000);
        assert_eq!(moved.ends(&flow.reply, START, START), None);
        moved.remember(&flow, START);
        for (met, now) in [(START - 1, START), (START, START + 1), (START - 300_000_000, START + 900_000_000)]
        {
            assert_eq!(moved.ends(&flow.reply, met, now), Some(flow.orig), "{met}, {now}");
        }
        // The entry goes a moment after it was remembered.
        assert_eq!(moved.ends(&flow.reply, START + ON_ITS_WAY_NS, START + ON_ITS_WAY_NS), Some(flow.orig));
    }

    #[test]
    fn a_packet_that_came_later_is_another_flow_s() {
        let mut moved = Moved::default();
        let flow = flow(1, 40_000);
        moved.remember(&flow, START);
        let later = START + ON_ITS_WAY_NS + 1;
        assert_eq!(moved.ends(&flow.reply, later, later), None);
    }

    #[test]
    fn the_younger_flow_s_ends_are_given() {
        let mut moved = Moved::default();
        let (older, younger) = (flow(1, 40_000), flow(2, 40_000));
        moved.remember(&older, START);
        moved.remember(&younger, START + 1);
        assert_eq!(moved.ends(&younger.reply, START, START + 2), Some(younger.orig));
    }

    #[test]
    fn where_there_is_no_room_for_it_an_older_one_s_ends_are_not_given() {
        let mut moved = Moved::default();
        let (older, younger) = (flow(1, 40_000), flow(2, 40_000));
        moved.remember(&older, START);
        // The half that it lies in is the older one now, and the younger one is full.
        let later = START + HOLDS_NS;
        for port in (0..=u16::MAX).filter(|port| *port != 40_000) {
            moved.remember(&flow(3, port), later);
        }
        let other = flow(3, 1);
        moved.remember(&Flow { reply: Tuple { src_port: 54, ..other.reply }, ..other }, later);
        moved.remember(&younger, later);
        assert_eq!(moved.ends(&younger.reply, START, later), None);
    }
}
