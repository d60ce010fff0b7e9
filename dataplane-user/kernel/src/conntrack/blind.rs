//! Reasons why flows are invisible to conntrack, so that their clients cannot be challenged and are cut only when they next send.
use std::{fmt, fs, path::Path};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::{
    netlink::{Broken, Channel, attributes, str_of},
    nfnetlink::{NFGEN_LEN, message},
    nftables::{GET_RULE, NEW_RULE},
    sysctl,
};

const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_TARGET_NAME: u16 = 1;

/// A reason why flows may be missing from conntrack's list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blind {
    /// The kernel has no conntrack, or does not list it.
    NoConntrack,
    /// conntrack's table is empty: no flow has come by yet, or no rule makes the kernel track any.
    Empty,
    /// `net.ipv4.vs.conntrack` is 0: IPVS hides its flows.
    IpvsWithout,
    /// A rule, named by its table and chain, exempts packets from conntrack.
    NoTrack(String),
    /// iptables-legacy has a raw table; its rules cannot be read here and may exempt packets.
    LegacyRawTable,
}

impl fmt::Display for Blind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConntrack => {
                write!(
                    f,
                    "all flows: this kernel does not list conntrack's entries (no nf_conntrack_netlink)"
                )
            }
            Self::Empty => write!(
                f,
                "all flows at present: conntrack's table is empty (the kernel fills it only where a NAT or a stateful rule \
                 is loaded)"
            ),
            Self::IpvsWithout => write!(f, "flows through IPVS: net.ipv4.vs.conntrack is 0"),
            Self::NoTrack(rule) => write!(f, "flows that a notrack rule exempts (nftables {rule})"),
            Self::LegacyRawTable => {
                write!(f, "flows that iptables-legacy's raw table may exempt; its rules cannot be read here")
            }
        }
    }
}

/// Looks for such reasons in the calling thread's network namespace. A file or list that cannot be
/// read is no reason, except conntrack's count.
pub fn blind() -> Vec<Blind> {
    let mut reasons = Vec::new();
    match sysctl::number("net/netfilter/nf_conntrack_count") {
        None => reasons.push(Blind::NoConntrack),
        Some(0) => reasons.push(Blind::Empty),
        Some(_) => {}
    }
    if sysctl::number("net/ipv4/vs/conntrack") == Some(0) {
        reasons.push(Blind::IpvsWithout);
    }
    match exempting_rules() {
        Ok(rules) => reasons.extend(rules.into_iter().map(Blind::NoTrack)),
        Err(error) => tracing::debug!(event = "notrack-unknown", %error, "cannot look for notrack rules"),
    }
    let legacy =
        ["ip_tables_names", "ip6_tables_names"].map(|name| Path::new("/proc/thread-self/net").join(name));
    if legacy
        .iter()
        .any(|names| fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "raw")))
    {
        reasons.push(Blind::LegacyRawTable);
    }
    reasons
}

/// Table and chain of each nftables rule with `notrack`, or with iptables-nft's targets of that effect; each chain once.
fn exempting_rules() -> Result<Vec<String>, Error> {
    let mut channel = Channel::open(NETLINK_NETFILTER).map_err(Error::Open)?;
    let request = message(GET_RULE, NLM_F_REQUEST | NLM_F_DUMP, 0, 0, channel.next_sequence(), |_| {});
    let mut rules = Vec::new();
    let read = channel.exchange(&request, |kind, body| {
        if kind == NEW_RULE {
            rules.extend(exempting(body));
        }
    });
    match read {
        // A list that changed while it was read has the rules that stayed. A kernel without nftables has no rule.
        Ok(_) | Err(Broken::Retry | Broken::Refused(_)) => {
            rules.sort();
            rules.dedup();
            Ok(rules)
        }
        Err(Broken::Io(source)) => Err(Error::Io { request: "list of nftables rules", source }),
    }
}

/// Table and chain of the rule, if it exempts packets.
pub(super) fn exempting(body: &[u8]) -> Option<String> {
    let mut table = "";
    let mut chain = "";
    let mut exempts = false;
    for (kind, value) in attributes(body.get(NFGEN_LEN..)?) {
        match kind {
            NFTA_RULE_TABLE => table = str_of(value).unwrap_or_default(),
            NFTA_RULE_CHAIN => chain = str_of(value).unwrap_or_default(),
            NFTA_RULE_EXPRESSIONS => {
                exempts = attributes(value)
                    .filter(|(kind, _)| *kind == NFTA_LIST_ELEM)
                    .any(|(_, expression)| is_exempting(expression));
            }
            _ => {}
        }
    }
    exempts.then(|| format!("{table} {chain}"))
}

fn is_exempting(expression: &[u8]) -> bool {
    let mut name = "";
    let mut data: &[u8] = &[];
    for (kind, value) in attributes(expression) {
        match kind {
            NFTA_EXPR_NAME => name = str_of(value).unwrap_or_default(),
            NFTA_EXPR_DATA => data = value,
            _ => {}
        }
    }
    match name {
        "notrack" => true,
        // iptables-nft: -j NOTRACK or -j CT --notrack (struct xt_ct_target_info begins with the flags; bit 0 means notrack).
        "target" => {
            let of = |wanted| attributes(data).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
            match of(NFTA_TARGET_NAME).and_then(str_of) {
                Some("NOTRACK") => true,
                Some("CT") => of(3).and_then(|info| info.first()).is_some_and(|flags| flags & 1 != 0),
                _ => false,
            }
        }
        _ => false,
    }
}
