//! The counters of conntrack, which each CPU has (`struct ip_conntrack_stat`, include/linux/netfilter/nf_conntrack_common.h).
use super::{
    Conntrack, Error, codec,
    socket::{MAX_ATTEMPTS, each, fatal},
};
use crate::{netlink::attributes, nfnetlink::NFGEN_LEN};

const CTA_STATS_INVALID: u16 = 4;
const CTA_STATS_INSERT_FAILED: u16 = 9;
const CTA_STATS_DROP: u16 = 10;
const CTA_STATS_EARLY_DROP: u16 = 11;

/// Counters of one network namespace since its creation, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets found INVALID.
    pub invalid: u64,
    /// Entries that could not be inserted; the packet is dropped (`__nf_conntrack_confirm`, nf_conntrack_core.c).
    pub insert_failed: u64,
    /// Packets dropped for want of an entry: no room, or no memory.
    pub drop: u64,
    /// Entries deleted early to make room.
    pub early_drop: u64,
}

impl Stats {
    /// Adds the counters of one CPU. A missing counter counts as 0.
    pub(super) fn add(&mut self, body: &[u8]) {
        let Some(body) = body.get(NFGEN_LEN..) else { return };
        for (kind, value) in attributes(body) {
            let counter = match kind {
                CTA_STATS_INVALID => &mut self.invalid,
                CTA_STATS_INSERT_FAILED => &mut self.insert_failed,
                CTA_STATS_DROP => &mut self.drop,
                CTA_STATS_EARLY_DROP => &mut self.early_drop,
                _ => continue,
            };
            *counter += u64::from(codec::be32(value).unwrap_or(0));
        }
    }
}

impl Conntrack {
    /// The counters of this socket's network namespace.
    ///
    /// # Errors
    /// As [`Self::dump`].
    pub fn stats(&mut self) -> Result<Stats, Error> {
        let stats = self.channel.again(MAX_ATTEMPTS, |channel| {
            let request = codec::stats_request(channel.next_sequence());
            let mut stats = Stats::default();
            each(channel, &request, codec::CT_STATS_CPU, |body| stats.add(body))?;
            Ok(stats)
        });
        stats.map_err(|broken| fatal("count", broken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counters of a CPU as `struct nlattr`s, in the kernel's order (`ctnetlink_ct_stat_cpu_fill_info`).
    fn cpu(values: [u32; 5]) -> Vec<u8> {
        let mut body = vec![0, 0, 0, 1];
        for (kind, value) in [4u16, 8, 9, 10, 11].into_iter().zip(values) {
            body.extend_from_slice(&8u16.to_ne_bytes());
            body.extend_from_slice(&kind.to_ne_bytes());
            body.extend_from_slice(&value.to_be_bytes());
        }
        body
    }

    #[test]
    fn cpus_are_added_up() {
        let mut stats = Stats::default();
        stats.add(&cpu([5, 1, 2, 3, 4]));
        stats.add(&cpu([50, 10, 20, 30, u32::MAX]));
        let expected =
            Stats { invalid: 55, insert_failed: 22, drop: 33, early_drop: 4 + u64::from(u32::MAX) };
        assert_eq!(stats, expected);
        for len in 0..8 {
            stats.add(&cpu([5, 1, 2, 3, 4])[..len]);
        }
        assert_eq!(stats, expected, "half an answer counts nothing");
    }
}
