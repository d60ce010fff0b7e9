//! Reads kube-proxy's nftables table (pkg/proxy/nftables/proxier.go, 1.36) from `nft -j`.
//!
//! Maps lead from virtual addresses to chains. Without affinity a chain picks an address by `numgen`. With affinity it picks the chain of an endpoint by
//! `numgen`.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::way::{Virtual, Way};

/// The table.
#[derive(Debug)]
pub struct Table {
    /// The elements of each map: the words of the key, and the verdict.
    maps: HashMap<String, Vec<(Vec<String>, Value)>>,
    /// The rules of each chain, each as its expressions.
    chains: HashMap<String, Vec<Vec<Value>>>,
}

impl Table {
    /// Parses the output of `nft -j list table` for `ip kube-proxy` or `ip6 kube-proxy`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text).context("nft printed no JSON")?;
        let mut this = Self { maps: HashMap::new(), chains: HashMap::new() };
        for item in json["nftables"].as_array().context("nft printed no list")? {
            if let Some(map) = item.get("map") {
                let elements = map["elem"].as_array().into_iter().flatten();
                let elements = elements.map(|element| (words(&element[0]), element[1].clone())).collect();
                this.maps.insert(name(&map["name"])?, elements);
            } else if let Some(chain) = item.get("chain") {
                this.chains.entry(name(&chain["name"])?).or_default();
            } else if let Some(rule) = item.get("rule") {
                let expressions = rule["expr"].as_array().cloned().unwrap_or_default();
                this.chains.entry(name(&rule["chain"])?).or_default().push(expressions);
            }
        }
        Ok(this)
    }

    pub(super) fn way(&self, protocol: &str, to: Virtual) -> Result<Way> {
        let (key, endpoints, none) = match to {
            Virtual::Service(address, port) => (
                vec![address.to_string(), protocol.into(), port.to_string()],
                "service-ips",
                "no-endpoint-services",
            ),
            Virtual::NodePort(port) => {
                (vec![protocol.into(), port.to_string()], "service-nodeports", "no-endpoint-nodeports")
            }
        };
        // The filter chains come first. A packet that they refuse is refused even if a chain for local clients exists.
        if let Some(verdict) = self.element(none, &key)? {
            return match target(verdict) {
                Some("reject-chain") => Ok(Way::Reject),
                None if verdict.get("drop").is_some() => Ok(Way::Drop),
                _ => bail!("map {none}, {key:?}: {verdict}"),
            };
        }
        let Some(verdict) = self.element(endpoints, &key)? else { return Ok(Way::Nothing) };
        let chain = target(verdict).with_context(|| format!("map {endpoints}, {key:?}: {verdict}"))?;
        let mut found = BTreeSet::new();
        self.follow(chain, &mut found)?;
        Ok(Way::To(found))
    }

    fn element(&self, map: &str, key: &[String]) -> Result<Option<&Value>> {
        let elements = self.maps.get(map).with_context(|| format!("kube-proxy's table has no map {map}"))?;
        Ok(elements.iter().find(|(words, _)| words == key).map(|(_, verdict)| verdict))
    }

    /// Collects the destinations of a packet from another machine that enters `chain`.
    fn follow(&self, chain: &str, found: &mut BTreeSet<SocketAddr>) -> Result<()> {
        let rules = self.chains.get(chain).with_context(|| format!("no chain {chain}"))?;
        for rule in rules.iter().filter(|rule| for_all(rule)) {
            for expression in rule {
                if let Some(chain) = target(expression) {
                    self.follow(chain, found)?;
                } else if let Some(picks) = expression.get("vmap") {
                    for element in elements(picks)? {
                        let chain = target(&element[1]).with_context(|| format!("no chain: {element}"))?;
                        self.follow(chain, found)?;
                    }
                } else if let Some(dnat) = expression.get("dnat") {
                    match dnat["addr"].get("map") {
                        Some(picks) => {
                            for element in elements(picks)? {
                                found.insert(socket(&element[1]["concat"][0], &element[1]["concat"][1])?);
                            }
                        }
                        None => {
                            found.insert(socket(&dnat["addr"], &dnat["port"])?);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a rule matches nothing but the protocol. Other rules are for clients of this node, or for clients with an affinity.
fn for_all(rule: &[Value]) -> bool {
    let matches = rule.iter().filter_map(|expression| expression.get("match"));
    matches.into_iter().all(|condition| condition["left"]["meta"]["key"] == "l4proto")
}

/// The elements of an anonymous map.
fn elements(map: &Value) -> Result<&Vec<Value>> {
    map["data"]["set"].as_array().with_context(|| format!("a map without elements: {map}"))
}

fn target(expression: &Value) -> Option<&str> {
    ["goto", "jump"].iter().find_map(|verdict| expression.get(verdict)?["target"].as_str())
}

fn socket(address: &Value, port: &Value) -> Result<SocketAddr> {
    let address: IpAddr = address.as_str().context("dnat to no address")?.parse()?;
    let port = port.as_u64().and_then(|port| u16::try_from(port).ok()).context("dnat to no port")?;
    Ok((address, port).into())
}

/// The words of a map's key. nft wraps a key that has a comment.
fn words(key: &Value) -> Vec<String> {
    let key = key.get("elem").map_or(key, |element| &element["val"]);
    let parts = key["concat"].as_array().cloned().unwrap_or_else(|| vec![key.clone()]);
    parts.iter().map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect()
}

fn name(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).context("something without a name in nft's JSON")
}
