//! Reads kube-proxy's iptables chains (pkg/proxy/iptables/proxier.go, 1.36) from `iptables-save`.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
};

use anyhow::{Context as _, Result, bail};

use super::way::{Virtual, Way};

/// The chains of the tables `nat` and `filter`.
#[derive(Debug)]
pub struct Chains {
    nat: HashMap<String, Vec<Rule>>,
    filter: HashMap<String, Vec<Rule>>,
}

/// The words of a rule, without its comment.
#[derive(Debug)]
struct Rule(Vec<String>);

impl Rule {
    /// The word after an option.
    fn after(&self, option: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == option)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn has(&self, word: &str) -> bool {
        self.0.iter().any(|this| this == word)
    }

    /// Whether the rule is only for clients of this node or for clients with an affinity.
    fn for_some(&self) -> bool {
        ["-s", "--src-type", "--rcheck"].iter().any(|option| self.has(option))
    }

    fn is_for(&self, protocol: &str, to: Virtual) -> bool {
        let (address, port) = match to {
            Virtual::Service(address, port) => {
                (Some(format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })), port)
            }
            Virtual::NodePort(port) => (None, port),
        };
        self.after("-p") == Some(protocol)
            && self.after("--dport") == Some(port.to_string().as_str())
            && self.after("-d").map(str::to_owned) == address
    }
}

impl Chains {
    /// Parses the output of `iptables-save` for the two tables.
    pub(super) fn parse(nat: &str, filter: &str) -> Self {
        Self { nat: chains(nat), filter: chains(filter) }
    }

    pub(super) fn way(&self, protocol: &str, to: Virtual) -> Result<Way> {
        // The filter table sees packets after the translation. It refuses those that still have this address, since they have no endpoint.
        for chain in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"] {
            let refused = self.filter.get(chain).into_iter().flatten().find(|rule| rule.is_for(protocol, to));
            match refused.and_then(|rule| rule.after("-j")) {
                None => {}
                Some("REJECT") => return Ok(Way::Reject),
                Some("DROP") => return Ok(Way::Drop),
                Some(other) => bail!("filter {chain}, {to:?}: {other}"),
            }
        }
        let entry = match to {
            Virtual::Service(..) => "KUBE-SERVICES",
            Virtual::NodePort(_) => "KUBE-NODEPORTS",
        };
        let rules = self.nat.get(entry).with_context(|| format!("no chain {entry}"))?;
        let Some(rule) = rules.iter().find(|rule| rule.is_for(protocol, to)) else { return Ok(Way::Nothing) };
        let mut found = BTreeSet::new();
        self.follow(rule, &mut found)?;
        Ok(Way::To(found))
    }

    /// Collects the destinations of a packet from another machine that meets `rule`.
    fn follow(&self, rule: &Rule, found: &mut BTreeSet<SocketAddr>) -> Result<()> {
        match rule.after("-j") {
            None | Some("KUBE-MARK-MASQ") => {}
            Some("DNAT") => {
                let to = rule.after("--to-destination").context("DNAT to nothing")?;
                found.insert(to.parse().with_context(|| format!("DNAT to {to}"))?);
            }
            Some(chain) => {
                let rules = self.nat.get(chain).with_context(|| format!("no chain {chain}"))?;
                for rule in rules.iter().filter(|rule| !rule.for_some()) {
                    self.follow(rule, found)?;
                }
            }
        }
        Ok(())
    }
}

fn chains(text: &str) -> HashMap<String, Vec<Rule>> {
    let mut chains: HashMap<String, Vec<Rule>> = HashMap::new();
    for line in text.lines() {
        if let Some(chain) = line.strip_prefix(':') {
            chains.entry(chain.split(' ').next().unwrap_or_default().to_owned()).or_default();
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let mut words = words(rule).into_iter();
            let chain = words.next().unwrap_or_default();
            chains.entry(chain).or_default().push(Rule(words.collect()));
        }
    }
    chains
}

/// Splits a rule at spaces. Leaves out comments, which are in quotes, and the option `--comment`.
fn words(rule: &str) -> Vec<String> {
    let unquoted: String = rule.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    unquoted.split_whitespace().filter(|word| *word != "--comment").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_hides_nothing_and_adds_nothing() {
        let rule = Rule(words(
            r#"KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "a -j DROP" -m tcp --dport 80 -j KUBE-SVC-1"#,
        ));
        assert_eq!(rule.after("-j"), Some("KUBE-SVC-1"));
        assert!(rule.is_for("tcp", Virtual::Service([10, 96, 0, 1].into(), 80)));
        assert!(!rule.is_for("udp", Virtual::Service([10, 96, 0, 1].into(), 80)));
        assert!(!rule.is_for("tcp", Virtual::NodePort(80)), "an address is asked for");
        let rule = Rule(words("KUBE-SERVICES -d fd00:96::1/128 -p udp -m udp --dport 53 -j KUBE-SVC-1"));
        assert!(rule.is_for("udp", Virtual::Service("fd00:96::1".parse().expect("an address"), 53)));
    }
}
