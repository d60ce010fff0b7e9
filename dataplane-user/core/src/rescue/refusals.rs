//! Flows that were refused a moment ago: a client that goes on sending datagrams straight to a hung pod gets its answers, and no datagram needs a
//! lookup in conntrack. Pure.
use super::{Fate, tries::Recent};
use crate::conntrack::Tuple;

/// How long (ns) a refusal holds at least; twice as long at most.
const HOLDS_NS: u64 = 500_000_000;
/// How many flows each half of the memory holds: half a megabyte. A flow without a place is looked up each time.
const CAPACITY: usize = 4096;

/// Why a flow was refused.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    why: Fate,
    /// Whether the refusal holds for the next packet.
    holds: bool,
}

/// Refusals, by the tuple of the flow's answers. The view and flags by which flows were judged are not stored: when these change, the owner begins with
/// new refusals.
#[derive(Debug)]
pub struct Refusals(Recent<Tuple, Refusal>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Recent::new(HOLDS_NS, CAPACITY))
    }
}

impl Refusals {
    /// Why a packet of this flow is refused again at `now` (CLOCK_MONOTONIC ns). `None` where the flow must be looked up.
    pub fn why(&mut self, reply: &Tuple, now: u64) -> Option<Fate> {
        self.0.get(reply, now).filter(|refusal| refusal.holds).map(|refusal| refusal.why)
    }

    /// Remembers a refusal that was judged by the flow's entry.
    pub fn judged(&mut self, reply: Tuple, why: Fate, now: u64) {
        self.0.put(reply, Refusal { why, holds: true }, now);
    }

    /// Remembers that the flow had no entry. The refusal holds from the second time on: a flow whose entry was deleted at that moment has one again with
    /// the client's next packet, and may move then.
    pub fn unknown(&mut self, reply: Tuple, why: Fate, now: u64) {
        let holds = self.0.get(&reply, now).is_some();
        self.0.put(reply, Refusal { why, holds }, now);
    }
}

#[cfg(test)]
mod tests {
    use nodefence_common::Addr;

    use super::*;

    fn reply(port: u16) -> Tuple {
        let (src, dst) = (Addr::v4([10, 244, 2, 2]), Addr::v4([192, 0, 2, 2]));
        Tuple { src, dst, src_port: 53, dst_port: port, protocol: 17 }
    }

    #[test]
    fn what_was_judged_is_not_looked_up_again_for_a_while() {
        let mut refusals = Refusals::default();
        let start = 10_000_000_000;
        assert_eq!(refusals.why(&reply(1), start), None);
        refusals.judged(reply(1), Fate::Untranslated, start);
        refusals.judged(reply(2), Fate::NothingElse, start);
        let mut looked_up = 0;
        // Ten thousand datagrams a second, for ten seconds.
        for at in 0..100_000 {
            let now = start + at * 100_000;
            if refusals.why(&reply(1), now) != Some(Fate::Untranslated) {
                refusals.judged(reply(1), Fate::Untranslated, now);
                looked_up += 1;
            }
        }
        assert!((9..=20).contains(&looked_up), "{looked_up}");
        assert_eq!(refusals.why(&reply(2), start + 10_000_000_000), None);
    }

    #[test]
    fn what_has_no_entry_is_looked_up_twice() {
        let mut refusals = Refusals::default();
        refusals.unknown(reply(1), Fate::Untranslated, 1);
        assert_eq!(refusals.why(&reply(1), 2), None);
        refusals.unknown(reply(1), Fate::Untranslated, 2);
        assert_eq!(refusals.why(&reply(1), 3), Some(Fate::Untranslated));
        assert_eq!(refusals.why(&reply(2), 3), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut refusals = Refusals::default();
        for port in 0..=u16::MAX {
            refusals.judged(reply(port), Fate::Unknown, 1);
        }
        assert_eq!(refusals.0.len(), CAPACITY);
        assert_eq!(refusals.why(&reply(u16::MAX), 1), None);
    }
}
