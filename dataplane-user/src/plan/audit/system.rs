//! Sysctls and conntrack's counters.
use std::time::Duration;

use super::{Difference, Found, Grace, Kind, Mend, Subject};
use crate::{conntrack::Stats, proxy::Mode};

/// From so many percent of conntrack's maximum on the table is nearly full: a burst would fill it, and then new flows are dropped
/// (`__nf_conntrack_alloc`, net/netfilter/nf_conntrack_core.c).
const NEARLY_FULL: u64 = 90;

/// A sysctl that breaks the promise where it is 0.
struct Rule {
    /// As a path below `/proc/sys`.
    path: &'static str,
    name: &'static str,
    ipvs: bool,
    zero: &'static str,
}

/// `nf_conntrack_tcp_be_liberal` is none of these: the cut's RSTs are exact and idle clients are asked with either value.
const RULES: [Rule; 4] = [
    Rule {
        path: "net/netfilter/nf_conntrack_tcp_loose",
        name: "net.netfilter.nf_conntrack_tcp_loose",
        ipvs: false,
        zero: "TCP entries of flagged nodes cannot be let go: the client's next packet would be INVALID and dropped, and it would hang",
    },
    Rule {
        path: "net/ipv4/vs/conntrack",
        name: "net.ipv4.vs.conntrack",
        ipvs: true,
        zero: "flows through IPVS are not in conntrack: idle clients of a flagged node cannot be asked",
    },
    Rule {
        path: "net/ipv4/vs/expire_nodest_conn",
        name: "net.ipv4.vs.expire_nodest_conn",
        ipvs: true,
        zero: "IPVS keeps the connections of a destination that is deleted, and drops their packets: flagged nodes get weight 0 alone",
    },
    Rule {
        path: "net/ipv4/vs/expire_quiescent_template",
        name: "net.ipv4.vs.expire_quiescent_template",
        ipvs: true,
        zero: "clients with affinity stay with a destination of weight 0",
    },
];

/// What the kernel says of itself. A field that could not be read is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct System {
    /// How kube-proxy forwards; `None` where that is not known.
    pub mode: Option<Mode>,
    /// Values of [`System::paths`], in their order.
    pub sysctls: Vec<Option<u32>>,
    /// Entries in conntrack's table.
    pub entries: Option<u64>,
    /// How many there may be.
    pub most: Option<u64>,
    /// Counters.
    pub counts: Option<Stats>,
}

impl System {
    /// The sysctls that matter, as paths below `/proc/sys`.
    pub fn paths() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|rule| rule.path)
    }
}

/// Which of conntrack's counters have grown of late.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Drops {
    last: Option<Stats>,
    grown: [Option<Grown>; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grown {
    at: Duration,
    /// Since it began to grow.
    by: u64,
}

impl Drops {
    const NAMES: [(&'static str, &'static str); 3] = [
        ("insert_failed", "entries could not be inserted, their packets were dropped"),
        ("drop", "packets were dropped without an entry"),
        ("early_drop", "entries of other flows were thrown away to make room"),
    ];

    /// Takes a reading; forgets what has not grown for longer than `window`.
    pub fn note(&mut self, counts: Stats, now: Duration, window: Duration) {
        let values = |counts: &Stats| [counts.insert_failed, counts.drop, counts.early_drop];
        let last = self.last.replace(counts);
        let more = last.map_or([0; 3], |last| {
            // A CPU that went away takes its counts with it.
            let (before, after) = (values(&last), values(&counts));
            std::array::from_fn(|at| after[at].saturating_sub(before[at]))
        });
        for (grown, more) in self.grown.iter_mut().zip(more) {
            if more > 0 {
                let before = grown.map_or(0, |grown| grown.by);
                *grown = Some(Grown { at: now, by: before + more });
            } else if grown.is_some_and(|grown| grown.at + window < now) {
                *grown = None;
            }
        }
    }
}

/// What of it is wrong. What kube-proxy's mode does not need is not looked at.
pub fn judge(system: &System, drops: &Drops, out: &mut Found) {
    for (rule, value) in RULES.iter().zip(&system.sysctls) {
        let matters = system.mode.is_some_and(|mode| (mode == Mode::Ipvs) == rule.ipvs);
        if matters && *value == Some(0) {
            add(Kind::Sysctl, rule.name, format!("0: {}", rule.zero), Some(Mend::Set(rule.path, 1)), out);
        }
    }
    if let (Some(entries), Some(most)) = (system.entries, system.most.filter(|most| *most > 0))
        && entries * 100 >= most * NEARLY_FULL
    {
        let detail = format!("{entries} of {most} entries ({} %)", entries * 100 / most);
        add(Kind::ConntrackFull, "net.netfilter.nf_conntrack_max", detail, None, out);
    }
    for ((name, what), grown) in Drops::NAMES.iter().zip(drops.grown) {
        if let Some(grown) = grown {
            add(Kind::ConntrackDrops, name, format!("{} {what}", grown.by), None, out);
        }
    }
}

fn add(kind: Kind, name: &'static str, detail: String, mend: Option<Mend>, out: &mut Found) {
    out.add(kind, || Difference {
        kind,
        subject: Subject::Named(name),
        service: None,
        detail,
        grace: Grace::Sync,
        mend,
    });
}
