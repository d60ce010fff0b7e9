use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::facts::{Answer, Facts};

/// How kube-proxy forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Virtual servers of IPVS.
    Ipvs,
    /// Chains of iptables, legacy or nft.
    Iptables,
    /// A table of nftables.
    Nftables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}

/// What the operator says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Wanted {
    /// Find out.
    #[default]
    Auto,
    /// It runs in IPVS mode.
    Ipvs,
    /// It runs in iptables mode.
    Iptables,
    /// It runs in nftables mode.
    Nftables,
    /// Its tables are not to be touched.
    None,
}

/// Which mode the agent goes by, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// `None`: tables stay as they are, the datapath alone cuts.
    pub mode: Option<Mode>,
    /// Why, in words.
    pub why: String,
}

impl Default for Judgement {
    fn default() -> Self {
        Self { mode: None, why: "not looked at yet".to_owned() }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Some(mode) => write!(f, "{mode} ({})", self.why),
            None => write!(f, "datapath only ({})", self.why),
        }
    }
}

/// Judges by what the operator says, then by what kube-proxy says of itself, then by what it left in the kernel.
///
/// In IPVS mode it has iptables chains as well (`iptablesJumpChain`, pkg/proxy/ipvs/proxier.go), so these count only where the IPVS device is
/// missing. Where it was switched from one mode to another and could not clean up there may be traces of several.
pub fn judge(wanted: Wanted, facts: &Facts) -> Judgement {
    let told = |mode| Judgement { mode, why: "--proxy says so".to_owned() };
    match wanted {
        Wanted::Ipvs => return told(Some(Mode::Ipvs)),
        Wanted::Iptables => return told(Some(Mode::Iptables)),
        Wanted::Nftables => return told(Some(Mode::Nftables)),
        Wanted::None => return told(None),
        Wanted::Auto => {}
    }
    let silent = match &facts.answer {
        Answer::Said(mode) => {
            let why = "kube-proxy says so".to_owned();
            return match mode.as_str() {
                "ipvs" => Judgement { mode: Some(Mode::Ipvs), why },
                "iptables" => Judgement { mode: Some(Mode::Iptables), why },
                "nftables" => Judgement { mode: Some(Mode::Nftables), why },
                other => Judgement { mode: None, why: format!("kube-proxy says that its mode is {other:?}") },
            };
        }
        Answer::Silent(why) => why,
    };
    let traces = [
        (facts.kube_ipvs0, Mode::Ipvs, "the device kube-ipvs0"),
        (facts.table, Mode::Nftables, "the nftables table kube-proxy"),
        (facts.chains && !facts.kube_ipvs0, Mode::Iptables, "the iptables chain KUBE-SERVICES"),
    ];
    let found: Vec<(Mode, &str)> =
        traces.iter().filter_map(|(there, mode, trace)| there.then_some((*mode, *trace))).collect();
    match found[..] {
        [] => Judgement {
            mode: None,
            why: format!("no trace of kube-proxy here, and it does not answer: {silent}"),
        },
        [(mode, trace)] => Judgement { mode: Some(mode), why: format!("by {trace}") },
        _ => {
            let traces: Vec<&str> = found.iter().map(|(_, trace)| *trace).collect();
            let why = format!("traces of several modes: {}; say which with --proxy", traces.join(", "));
            Judgement { mode: None, why }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(answer: Option<&str>, kube_ipvs0: bool, table: bool, chains: bool) -> Facts {
        let silent = || Answer::Silent("connection refused".to_owned());
        let answer = answer.map_or_else(silent, |mode| Answer::Said(mode.to_owned()));
        Facts { answer, kube_ipvs0, table, chains }
    }

    #[test]
    fn modes_are_judged_by_word_then_by_traces() {
        use Mode::{Iptables, Ipvs, Nftables};
        for (answer, kube_ipvs0, table, chains, mode, why) in [
            // Its own word holds, whatever an earlier mode left.
            (Some("ipvs"), false, true, true, Some(Ipvs), "says so"),
            (Some("iptables"), true, true, false, Some(Iptables), "says so"),
            (Some("nftables"), false, false, true, Some(Nftables), "says so"),
            (Some("kernelspace"), true, false, true, None, "kernelspace"),
            // Its chains are there in IPVS mode too.
            (None, true, false, true, Some(Ipvs), "kube-ipvs0"),
            (None, true, false, false, Some(Ipvs), "kube-ipvs0"),
            (None, false, true, false, Some(Nftables), "table"),
            (None, false, false, true, Some(Iptables), "KUBE-SERVICES"),
            (None, false, false, false, None, "connection refused"),
            (None, true, true, true, None, "several"),
            (None, true, true, false, None, "kube-ipvs0, the nftables table"),
            (None, false, true, true, None, "several"),
        ] {
            let judgement = judge(Wanted::Auto, &facts(answer, kube_ipvs0, table, chains));
            assert_eq!(judgement.mode, mode, "{answer:?} {kube_ipvs0} {table} {chains}");
            assert!(judgement.why.contains(why), "{judgement}");
        }
    }

    #[test]
    fn the_operator_s_word_is_the_last() {
        let all = facts(Some("iptables"), true, true, true);
        for (wanted, mode) in [
            (Wanted::Ipvs, Some(Mode::Ipvs)),
            (Wanted::Iptables, Some(Mode::Iptables)),
            (Wanted::Nftables, Some(Mode::Nftables)),
            (Wanted::None, None),
        ] {
            assert_eq!(judge(wanted, &all).mode, mode);
        }
        assert!(judge(Wanted::None, &all).to_string().starts_with("datapath only"));
    }
}
