//! Packets that IPVS would send to the flagged node again. They wait until the drain has come to their destination.
use std::{collections::HashSet, mem, sync::Arc};

use nodefence_common::RescueHead;

use crate::ledger::Pair;

/// How many packets wait at most: 2 MiB.
const MOST: usize = 1024;
/// How long (ns) a packet waits at most.
const LONGEST_NS: u64 = 400_000_000;
/// How soon (ns) packets are looked at again where nothing new is known: a connection may have been made at the moment in which its
/// destination was drained, and is gone a moment later.
const AGAIN_NS: u64 = 20_000_000;

/// The packets that wait.
#[derive(Default)]
pub(super) struct WaitingPackets {
    packets: Vec<(RescueHead, Vec<u8>)>,
    /// The balanced pairs that were known when the packets were last looked at.
    known: Arc<HashSet<Pair>>,
    /// When (ns) the packets were last looked at.
    looked: u64,
}

impl WaitingPackets {
    /// Lets a packet wait; `false` where there is no room, or the packet has waited long enough.
    pub(super) fn put(&mut self, head: &RescueHead, frame: &[u8], now: u64) -> bool {
        let young = now.saturating_sub(head.time_ns) < LONGEST_NS;
        let fits = young && self.packets.len() < MOST;
        if fits {
            self.packets.push((*head, frame.to_vec()));
        }
        fits
    }

    /// All packets that wait, where it is time to look at them again.
    pub(super) fn due(&mut self, now: u64, balanced: &Arc<HashSet<Pair>>) -> Vec<(RescueHead, Vec<u8>)> {
        if self.packets.is_empty() {
            return Vec::new();
        }
        let news = !Arc::ptr_eq(&self.known, balanced);
        if !news && now.saturating_sub(self.looked) < AGAIN_NS {
            return Vec::new();
        }
        self.known = Arc::clone(balanced);
        self.looked = now;
        mem::take(&mut self.packets)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(time_ns: u64) -> RescueHead {
        RescueHead {
            time_ns,
            ifindex: 1,
            ingress_ifindex: 2,
            node: 3,
            frame_len: 4,
            vlan_tci: 0,
            vlan_proto: 0,
            l3_offset: 14,
            zero: 0,
        }
    }

    #[test]
    fn they_are_looked_at_when_something_is_new_and_now_and_then() {
        let mut waiting = WaitingPackets::default();
        let mut known = Arc::new(HashSet::new());
        assert!(waiting.due(0, &known).is_empty() && waiting.is_empty());
        assert!(waiting.put(&head(0), &[7], 5));
        assert_eq!(waiting.due(10, &known).len(), 1, "nothing was known before");
        assert!(waiting.is_empty());
        assert!(waiting.put(&head(0), &[7], 11));
        assert!(waiting.due(12, &known).is_empty());
        known = Arc::new(HashSet::new());
        assert_eq!(waiting.due(13, &known).len(), 1);
        assert!(waiting.put(&head(0), &[7], 14));
        assert!(waiting.due(13 + AGAIN_NS - 1, &known).is_empty());
        assert_eq!(waiting.due(13 + AGAIN_NS, &known)[0].1, [7]);
    }

    #[test]
    fn neither_too_long_nor_too_many() {
        let mut waiting = WaitingPackets::default();
        assert!(!waiting.put(&head(0), &[], LONGEST_NS));
        assert!((0..MOST).all(|_| waiting.put(&head(0), &[], 1)));
        assert!(!waiting.put(&head(0), &[], 1));
    }
}
