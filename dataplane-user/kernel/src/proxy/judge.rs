use std::fmt;

use serde::{Deserialize, Serialize};

use nodefence_core::proxy::Mode;

use super::facts::{Facts, ModeReply};

/// The operator's choice of kube-proxy's mode (`--proxy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProxyChoice {
    /// The agent finds the mode out.
    #[default]
    Auto,
    /// kube-proxy runs in IPVS mode.
    Ipvs,
    /// kube-proxy runs in iptables mode.
    Iptables,
    /// kube-proxy runs in nftables mode.
    Nftables,
    /// kube-proxy's tables are not to be touched.
    None,
}

/// How kube-proxy forwards, as far as the agent knows, and how the agent knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Judgement {
    /// The mode of kube-proxy. `None` if it is not known or not to be used: the agent then leaves the tables of kube-proxy alone, and only the datapath cuts.
    pub mode: Option<Mode>,
    /// How the agent knows, or why it does not know, in words.
    pub why: String,
}

/// The reason of a judgement that follows the operator's choice.
const TOLD: &str = "--proxy says so";

impl Judgement {
    /// Whether the judgement follows the operator's choice.
    pub fn is_told(&self) -> bool {
        self.why == TOLD
    }
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

/// The trace that kube-proxy leaves in the kernel in this mode.
const fn trace(mode: Mode) -> &'static str {
    match mode {
        Mode::Ipvs => "the device kube-ipvs0",
        Mode::Iptables => "the iptables chain KUBE-SERVICES",
        Mode::Nftables => "the nftables table kube-proxy",
    }
}

/// The mode that kube-proxy's port names, or the reason why the answer does not count. Any process of the host network may listen
/// at that port while kube-proxy does not. So an answer counts only while the named mode's own trace is there. kube-proxy itself
/// answers before it has programmed anything: its answer does not count before its first sync.
fn word(facts: &Facts) -> Result<Mode, String> {
    match (&facts.answer, facts.told()) {
        (_, Some(mode)) if facts.has_trace(mode) => Ok(mode),
        (_, Some(mode)) => Err(format!(
            "who answers at its port says {mode}, which is not believed: {} is not there",
            trace(mode)
        )),
        (ModeReply::Said(other), None) => {
            Err(format!("who answers at its port says {other:?}, which is not known here"))
        }
        (ModeReply::Silent(why), None) => Err(format!("it does not answer: {why}")),
    }
}

/// Judges by the operator's choice, then by kube-proxy's own answer, then by kube-proxy's traces in the kernel.
///
/// In IPVS mode kube-proxy has iptables chains as well (`iptablesJumpChain`, pkg/proxy/ipvs/proxier.go), so chains count only where
/// the IPVS device is missing. There may be traces of several modes: kube-proxy was switched to another mode and could not clean up.
pub fn judge(wanted: ProxyChoice, facts: &Facts) -> Judgement {
    let told = |mode| Judgement { mode, why: TOLD.to_owned() };
    match wanted {
        ProxyChoice::Ipvs => return told(Some(Mode::Ipvs)),
        ProxyChoice::Iptables => return told(Some(Mode::Iptables)),
        ProxyChoice::Nftables => return told(Some(Mode::Nftables)),
        ProxyChoice::None => return told(None),
        ProxyChoice::Auto => {}
    }
    match word(facts) {
        Ok(mode) => Judgement { mode: Some(mode), why: "kube-proxy says so".to_owned() },
        Err(why) => by_traces(facts, &why),
    }
}

/// Judges by traces alone. `why` says why no answer of kube-proxy counts.
fn by_traces(facts: &Facts, why: &str) -> Judgement {
    let traces = [
        (facts.kube_ipvs0, Mode::Ipvs),
        (facts.table, Mode::Nftables),
        (facts.chains && !facts.kube_ipvs0, Mode::Iptables),
    ];
    let found: Vec<Mode> = traces.iter().filter_map(|(there, mode)| there.then_some(*mode)).collect();
    match found[..] {
        [] => Judgement { mode: None, why: format!("no trace of kube-proxy here, and {why}") },
        [mode] => Judgement { mode: Some(mode), why: format!("by {}; {why}", trace(mode)) },
        _ => {
            let traces: Vec<&str> = found.iter().map(|mode| trace(*mode)).collect();
            let why =
                format!("traces of several modes: {}; say which with --proxy; {why}", traces.join(", "));
            Judgement { mode: None, why }
        }
    }
}

/// The mode that kube-proxy named last. kube-proxy does not answer while it starts, or on a busy node. By traces alone a device or
/// table that an earlier mode left would then be taken for the mode, and traces of several modes for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said(Option<Mode>);

impl Said {
    /// As [`judge`], but while no answer of kube-proxy counts, the mode that it named last holds as long as that mode's own trace is
    /// there.
    pub fn judge(&mut self, wanted: ProxyChoice, facts: &Facts) -> Judgement {
        match word(facts) {
            Ok(mode) => self.0 = (wanted == ProxyChoice::Auto).then_some(mode),
            Err(why) => {
                self.0 = self.0.filter(|mode| facts.has_trace(*mode));
                if let Some(mode) = self.0.filter(|_| wanted == ProxyChoice::Auto) {
                    return Judgement { mode: Some(mode), why: format!("kube-proxy said so before; {why}") };
                }
            }
        }
        judge(wanted, facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(answer: Option<&str>, kube_ipvs0: bool, table: bool, chains: bool) -> Facts {
        let silent = || ModeReply::Silent("connection refused".to_owned());
        let answer = answer.map_or_else(silent, |mode| ModeReply::Said(mode.to_owned()));
        Facts { answer, kube_ipvs0, table, chains, replacement: None }
    }

    #[test]
    fn modes_are_judged_by_word_then_by_traces() {
        use Mode::{Iptables, Ipvs, Nftables};
        for (answer, kube_ipvs0, table, chains, mode, why) in [
            // kube-proxy's answer holds, whatever an earlier mode left.
            (Some("ipvs"), true, true, true, Some(Ipvs), "says so"),
            (Some("iptables"), true, true, true, Some(Iptables), "says so"),
            (Some("nftables"), true, true, true, Some(Nftables), "says so"),
            // Without the named mode's trace any process may have answered: then traces count, as they do while nobody answers.
            (
                Some("ipvs"),
                false,
                true,
                false,
                Some(Nftables),
                "says ipvs, which is not believed: the device kube-ipvs0",
            ),
            (Some("iptables"), true, false, false, Some(Ipvs), "not believed: the iptables chain"),
            (Some("nftables"), false, false, true, Some(Iptables), "not believed: the nftables table"),
            (Some("ipvs"), false, true, true, None, "several"),
            // Before kube-proxy's first sync.
            (Some("iptables"), false, false, false, None, "no trace of kube-proxy here, and who answers"),
            (Some("kernelspace"), true, false, true, Some(Ipvs), "\"kernelspace\", which is not known"),
            // kube-proxy's chains are there in IPVS mode too.
            (None, true, false, true, Some(Ipvs), "kube-ipvs0"),
            (None, true, false, false, Some(Ipvs), "kube-ipvs0"),
            (None, false, true, false, Some(Nftables), "table"),
            (None, false, false, true, Some(Iptables), "KUBE-SERVICES"),
            (None, false, false, false, None, "connection refused"),
            (None, true, true, true, None, "several"),
            (None, true, true, false, None, "kube-ipvs0, the nftables table"),
            (None, false, true, true, None, "several"),
            (None, false, true, false, Some(Nftables), "connection refused"),
        ] {
            let judgement = judge(ProxyChoice::Auto, &facts(answer, kube_ipvs0, table, chains));
            assert_eq!(judgement.mode, mode, "{answer:?} {kube_ipvs0} {table} {chains}");
            assert!(judgement.why.contains(why), "{judgement}");
        }
    }

    #[test]
    fn the_operator_s_word_is_the_last() {
        let all = facts(Some("iptables"), true, true, true);
        for (wanted, mode) in [
            (ProxyChoice::Ipvs, Some(Mode::Ipvs)),
            (ProxyChoice::Iptables, Some(Mode::Iptables)),
            (ProxyChoice::Nftables, Some(Mode::Nftables)),
            (ProxyChoice::None, None),
        ] {
            assert_eq!(judge(wanted, &all).mode, mode);
        }
        assert!(judge(ProxyChoice::None, &all).to_string().starts_with("datapath only"));
    }
    #[test]
    fn what_it_said_holds_while_it_is_silent() {
        use Mode::{Iptables, Ipvs, Nftables};
        let mut said = Said::default();
        let mut mode = |answer, kube_ipvs0, table, chains| {
            said.judge(ProxyChoice::Auto, &facts(answer, kube_ipvs0, table, chains)).mode
        };
        // kube-proxy has not answered yet: traces count.
        assert_eq!(mode(None, true, true, true), None);
        assert_eq!(mode(None, true, false, true), Some(Ipvs));
        for (word, told, own) in [
            ("iptables", Iptables, [false, false, true]),
            ("nftables", Nftables, [false, true, false]),
            ("ipvs", Ipvs, [true, false, false]),
        ] {
            assert_eq!(mode(Some(word), true, true, true), Some(told));
            assert_eq!(mode(None, true, true, true), Some(told), "{word}: others left theirs");
            // An answer that names an unknown mode does not count either.
            assert_eq!(mode(Some("kernelspace"), true, true, true), Some(told), "{word}");
            assert_eq!(mode(None, own[0], own[1], own[2]), Some(told), "{word}");
            // Once the mode's own trace is gone, the mode is forgotten.
            let [kube_ipvs0, table, chains] = own.map(|own| !own);
            let by_traces = judge(ProxyChoice::Auto, &facts(None, kube_ipvs0, table, chains)).mode;
            assert_eq!(mode(None, kube_ipvs0, table, chains), by_traces, "{word}");
            assert_eq!(mode(None, true, true, true), None, "{word}: forgotten");
        }
        // kube-proxy is started anew in another mode, whose trace comes with the first sync.
        assert_eq!(mode(Some("nftables"), false, true, false), Some(Nftables));
        assert_eq!(mode(Some("iptables"), false, true, false), Some(Nftables));
        assert_eq!(mode(Some("iptables"), false, true, true), Some(Iptables));
        assert_eq!(mode(None, false, true, true), Some(Iptables));
    }

    #[test]
    fn what_it_said_is_not_the_operator_s_word() {
        let mut said = Said::default();
        assert_eq!(
            said.judge(ProxyChoice::Auto, &facts(Some("iptables"), true, false, true)).mode,
            Some(Mode::Iptables)
        );
        let silent = facts(None, true, false, true);
        assert_eq!(said.judge(ProxyChoice::Nftables, &silent).mode, Some(Mode::Nftables));
        assert_eq!(said.judge(ProxyChoice::None, &silent).mode, None);
        let judgement = said.judge(ProxyChoice::Auto, &silent);
        assert!(judgement.why.contains("said so before") && judgement.why.contains("refused"), "{judgement}");
    }
}
