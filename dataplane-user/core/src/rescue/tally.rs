//! What became of the packets that the kernel handed over.
use std::sync::atomic::{AtomicU64, Ordering};

use nodefence_common::Counter;

macro_rules! fates {
    ($($(#[doc = $doc:literal])+ $variant:ident, $name:literal;)+) => {
        /// What became of a packet that was handed over to be rescued. Counted in user space, since the agent started.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Fate { $($(#[doc = $doc])+ $variant),+ }

        impl Fate {
            /// All fates.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name shown by `counters`, beside the kernel's own.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// One line on what it means.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!("Of those to rescue:", $($doc),+, " (Since the agent started.)")),+ }
            }
        }
    };
}

fates! {
    /// balanced anew; a packet that met the cut again is counted again.
    Rescued, "rescued";
    /// refused, sent to the backend itself.
    Untranslated, "rescue_untranslated";
    /// refused, sent to no virtual address of a known Service.
    Unknown, "rescue_unknown";
    /// refused, the Service keeps clients at one endpoint, and that could not be taken back, or too many wait for that.
    Affinity, "rescue_affinity";
    /// refused, all endpoints that kube-proxy may pick are on flagged nodes.
    NothingElse, "rescue_nothing_else";
    /// refused, each of its tries met a flagged node.
    Tries, "rescue_tries";
    /// refused, too many packets are being rescued at once.
    Memory, "rescue_memory";
    /// refused, or dropped where its conntrack entry is gone: the device that it came from is gone, or the kernel did not take it.
    NotSent, "rescue_not_sent";
    /// of this machine's own sockets, left to be repeated: sent once more it is not balanced here.
    Repeated, "rescue_repeated";
    /// dropped, handed over too long ago.
    Late, "rescue_late";
    /// dropped without answer, since the ICMP budget for the second was spent, the machine's or its sender's.
    IcmpLimited, "rescue_icmp_limited";
}

/// Packets and bytes by [`Fate`].
#[derive(Debug, Default)]
pub struct Tally([[AtomicU64; 2]; Fate::ALL.len()]);

impl Tally {
    /// Counts a packet of so many bytes from its IP header on.
    pub fn add(&self, fate: Fate, bytes: usize) {
        let [packets, sum] = &self.0[fate as usize];
        packets.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All counts.
    pub fn get(&self) -> impl Iterator<Item = (Fate, Counter)> {
        Fate::ALL.iter().map(|fate| {
            let [packets, bytes] = &self.0[*fate as usize];
            let counter =
                Counter { packets: packets.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) };
            (*fate, counter)
        })
    }
}
