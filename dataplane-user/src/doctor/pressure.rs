//! How near conntrack is to dropping packets: how full its table is, and how its counters grow within a second.
use std::{
    thread,
    time::{Duration, Instant},
};

use super::{AS_ROOT, Check};
use crate::{
    causes::causes,
    conntrack::{Conntrack, Stats},
    sysctl,
};

/// The percentage of conntrack's maximum from which on the table is nearly full. A burst would fill the table, and then the kernel
/// drops new flows (`__nf_conntrack_alloc`, net/netfilter/nf_conntrack_core.c).
const NEARLY_FULL: u64 = 90;
/// The shortest time between the two readings of the counters. Only growth in that time matters: older counts are history.
const APART: Duration = Duration::from_secs(1);

/// Conntrack of the calling thread's network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pressure {
    /// The number of entries in its table.
    pub entries: u64,
    /// The largest number of entries. 0: no maximum.
    pub most: u64,
    /// Its counters, and the same counters a second later. `Err` has the reason why they could not be read.
    pub counted: Result<[Stats; 2], String>,
}

/// The first of two readings of the counters.
#[derive(Debug)]
pub struct Counting {
    at: Instant,
    /// `None` where conntrack is not loaded. It is not asked then: the request for its counters would load a module.
    first: Option<Result<Stats, String>>,
}

impl Counting {
    /// Reads conntrack's counters. From a second later on [`Self::end`] reads them again without waiting.
    pub fn begin() -> Self {
        Self { at: Instant::now(), first: entries().map(|_| stats()) }
    }

    /// Reads the counters again. Blocks until a second after the first reading. `None` where conntrack is not loaded.
    pub fn end(self) -> Option<Pressure> {
        let counted = self.first?.and_then(|first| {
            thread::sleep(APART.saturating_sub(self.at.elapsed()));
            Ok([first, stats()?])
        });
        Some(Pressure {
            entries: entries()?,
            most: sysctl::number("net/netfilter/nf_conntrack_max")?,
            counted,
        })
    }
}

fn entries() -> Option<u64> {
    sysctl::number("net/netfilter/nf_conntrack_count")
}

fn stats() -> Result<Stats, String> {
    Conntrack::open_all_zones()
        .and_then(|mut conntrack| conntrack.stats())
        .map_err(|error| causes(&error.into()))
}

/// Judges how full the table is and how the counters grow.
pub(super) fn judge(pressure: &Pressure) -> [Check; 2] {
    [table(pressure.entries, pressure.most), drops(&pressure.counted)]
}

fn table(entries: u64, most: u64) -> Check {
    const NAME: &str = "conntrack table";
    let Some(percent) = (entries * 100).checked_div(most) else {
        return Check::ok(NAME, "without a maximum");
    };
    if percent < NEARLY_FULL {
        return Check::ok(NAME, format!("{percent} % of {most} entries"));
    }
    Check::warn(
        NAME,
        format!("nearly full, new flows are dropped then: {entries} of {most} entries ({percent} %)"),
        format!(
            "sysctl -w net.netfilter.nf_conntrack_max={}  # kube-proxy sets it (conntrack.maxPerCore); or find who opens so many flows",
            most.saturating_mul(2)
        ),
    )
}

fn drops(counted: &Result<[Stats; 2], String>) -> Check {
    const NAME: &str = "conntrack drops";
    let [before, after] = match counted {
        Ok(counted) => counted,
        Err(why) => return Check::warn(NAME, format!("unknown: {why}"), AS_ROOT),
    };
    let counters = [
        ("insert_failed", before.insert_failed, after.insert_failed),
        ("drop", before.drop, after.drop),
        ("early_drop", before.early_drop, after.early_drop),
    ];
    // A CPU that goes offline takes its counts with it. A smaller count is no growth.
    let grown = counters.map(|(name, before, after)| (name, after.saturating_sub(before)));
    let told = |counts: &[(&str, u64)]| {
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let now = told(&grown);
    let ever = told(&counters.map(|(name, _, after)| (name, after)));
    match (now.is_empty(), ever.is_empty()) {
        (true, true) => Check::ok(NAME, "none"),
        (true, false) => {
            Check::ok(NAME, format!("none just now; since this network namespace began: {ever}"))
        }
        (false, _) => Check::warn(
            NAME,
            format!("packets are being dropped: {now} within about a second"),
            "conntrack -S  # insert_failed: ports of the masquerade run out or clash; drop and early_drop: the table is full",
        ),
    }
}
