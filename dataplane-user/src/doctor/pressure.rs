//! How near conntrack is to dropping packets: its table, and what it counts while somebody looks.
use std::{
    error::Error as _,
    thread,
    time::{Duration, Instant},
};

use super::{AS_ROOT, Check};
use crate::{
    conntrack::{Conntrack, Stats},
    sysctl,
};

/// From so many percent of conntrack's maximum on the table is nearly full: a burst would fill it, and then new flows are dropped
/// (`__nf_conntrack_alloc`, net/netfilter/nf_conntrack_core.c).
const NEARLY_FULL: u64 = 90;
/// The counters are read twice, so far apart at least: what they had before anybody looked is history.
const APART: Duration = Duration::from_secs(1);

/// Conntrack of the calling thread's network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pressure {
    /// Entries in its table.
    pub entries: u64,
    /// How many there may be; 0 for any number.
    pub most: u64,
    /// What it had counted, and a second later; `Err` with the reason where it could not be asked.
    pub counted: Result<[Stats; 2], String>,
}

/// A first reading of the counters.
#[derive(Debug)]
pub struct Counting {
    at: Instant,
    /// `None` where conntrack is not loaded: asking for its counters would load a module.
    first: Option<Result<Stats, String>>,
}

impl Counting {
    /// Reads what conntrack has counted so far. A second later [`Self::end`] reads it again without waiting.
    pub fn begin() -> Self {
        Self { at: Instant::now(), first: entries().map(|_| stats()) }
    }

    /// Reads once more, a second after the first time or later; `None` where conntrack is not loaded. Blocks until then.
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
    Conntrack::open_all_zones().and_then(|mut conntrack| conntrack.stats()).map_err(|error| {
        match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        }
    })
}

/// What it means.
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
    // A CPU that went away takes its counts with it: that is no growth.
    let grown = counters.map(|(name, before, after)| (name, after.saturating_sub(before)));
    let told = |counts: &[(&str, u64)]| {
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let (now, ever) = (told(&grown), told(&counters.map(|(name, _, after)| (name, after))));
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
