use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
};

use jiff::Timestamp;
use nodefence_common::MAX_NODES;
use serde_saphyr::Spanned;

use super::{
    error::Problem,
    file::{RawBackend, refused},
    view::{Backend, ClusterView, FileFlag, Node, Protocol, Scope},
};

/// Who holds a backend address, and where the file says so.
struct Owner {
    node: usize,
    line: u64,
    port_scoped: bool,
}

/// Takes a file's values one by one and holds each against all before it.
#[derive(Default)]
pub(super) struct Checker {
    nodes: Vec<Node>,
    names: HashMap<String, u64>,
    addresses: HashMap<IpAddr, (usize, u64)>,
    owners: HashMap<IpAddr, Owner>,
    backends: HashMap<Backend, u64>,
    flags: Vec<FileFlag>,
    flagged: HashMap<String, u64>,
}

impl Checker {
    pub(super) fn node(
        &mut self,
        n: usize,
        name: &Spanned<String>,
        address: &Spanned<String>,
        zone: Option<String>,
    ) -> Result<(), Problem> {
        let field = |what: &str| format!("nodes[{n}].{what}");
        if n >= MAX_NODES as usize {
            return Err(refused(name, field("name"), format_args!("more than {MAX_NODES} nodes")));
        }
        check_name(&name.value).map_err(|why| refused(name, field("name"), why))?;
        if let Some(line) = self.names.insert(name.value.clone(), name.referenced.line()) {
            return Err(refused(
                name,
                field("name"),
                format_args!("node `{}` stands on line {line} already", name.value),
            ));
        }
        let ip = parse_address(&address.value).map_err(|why| refused(address, field("address"), why))?;
        if let Some((other, line)) = self.addresses.insert(ip, (n, address.referenced.line())) {
            return Err(refused(
                address,
                field("address"),
                format_args!("{ip} is the address of `{}` (line {line}) already", self.nodes[other].name),
            ));
        }
        self.nodes.push(Node { name: name.value.clone(), address: ip, zone, backends: Vec::new() });
        Ok(())
    }

    pub(super) fn backend(&mut self, n: usize, b: usize, raw: &RawBackend) -> Result<(), Problem> {
        let field = |what: &str| format!("nodes[{n}].backends[{b}].{what}");
        let ip =
            parse_address(&raw.address.value).map_err(|why| refused(&raw.address, field("address"), why))?;
        let node_of = self.addresses.get(&ip);
        let scope = if raw.host_network {
            Scope::Port(self.port(raw, &field)?, protocol(raw, &field)?)
        } else {
            for (value, what) in [(&raw.port, "port"), (&raw.protocol, "protocol")] {
                if let Some(value) = value {
                    return Err(refused(
                        value,
                        field(what),
                        "only a hostNetwork backend has one; a pod's address is its own, whatever the port",
                    ));
                }
            }
            if let Some((owner, _)) = node_of {
                let message = format!(
                    "{ip} is the address of node `{}`; a backend that shares it needs hostNetwork: true, \
                     port and protocol",
                    self.nodes[*owner].name
                );
                return Err(refused(&raw.address, field("address"), message));
            }
            Scope::Address
        };
        if let Some((owner, _)) = node_of.filter(|(owner, _)| *owner != n) {
            let message = format!(
                "{ip} is the address of `{}`, not of `{}`",
                self.nodes[*owner].name, self.nodes[n].name
            );
            return Err(refused(&raw.address, field("address"), message));
        }
        self.own(n, ip, raw, scope, &field)?;
        let backend = Backend { address: ip, scope };
        if let Some(line) = self.backends.insert(backend, raw.address.referenced.line()) {
            let message = format!("backend {backend} stands on line {line} already");
            return Err(refused(&raw.address, field("address"), message));
        }
        self.nodes[n].backends.push(backend);
        Ok(())
    }

    /// One address has one node and one kind of backend.
    fn own(
        &mut self,
        n: usize,
        ip: IpAddr,
        raw: &RawBackend,
        scope: Scope,
        field: &impl Fn(&str) -> String,
    ) -> Result<(), Problem> {
        let port_scoped = matches!(scope, Scope::Port(..));
        let owner = match self.owners.entry(ip) {
            Entry::Vacant(free) => {
                free.insert(Owner { node: n, line: raw.address.referenced.line(), port_scoped });
                return Ok(());
            }
            Entry::Occupied(owner) => owner.into_mut(),
        };
        if owner.node != n {
            let message = format!(
                "{ip} is a backend of `{}` (line {}) and of `{}`",
                self.nodes[owner.node].name, owner.line, self.nodes[n].name
            );
            return Err(refused(&raw.address, field("address"), message));
        }
        if owner.port_scoped != port_scoped {
            let message = format!("{ip} stands with and without hostNetwork (line {})", owner.line);
            return Err(refused(&raw.address, field("address"), message));
        }
        Ok(())
    }

    fn port(&self, raw: &RawBackend, field: &impl Fn(&str) -> String) -> Result<u16, Problem> {
        let Some(port) = &raw.port else {
            return Err(refused(
                &raw.address,
                field("port"),
                "missing; a hostNetwork backend is cut by its port",
            ));
        };
        match port.value.parse::<u16>() {
            // One spelling only: `+80` and `080` parse as well, and YAML has numbers with `_` and `0x`.
            Ok(number) if number != 0 && number.to_string() == port.value => Ok(number),
            _ => Err(refused(
                port,
                field("port"),
                format_args!("`{}` is no port: expected 1 to 65535", port.value),
            )),
        }
    }

    pub(super) fn flag(
        &mut self,
        f: usize,
        node: &Spanned<String>,
        until: Option<&Spanned<String>>,
        reason: String,
    ) -> Result<(), Problem> {
        let field = |what: &str| format!("flags[{f}].{what}");
        if !self.names.contains_key(&node.value) {
            return Err(refused(
                node,
                field("node"),
                format_args!("`{}` is not among the nodes", node.value),
            ));
        }
        if let Some(line) = self.flagged.insert(node.value.clone(), node.referenced.line()) {
            let message = format!("`{}` is flagged on line {line} already", node.value);
            return Err(refused(node, field("node"), message));
        }
        let until = match until {
            None => None,
            Some(text) => Some(parse_time(&text.value).ok_or_else(|| {
                let message =
                    format!("`{}` is no time: expected RFC 3339 as in 2026-12-01T00:00:00Z", text.value);
                refused(text, field("until"), message)
            })?),
        };
        self.flags.push(FileFlag { node: node.value.clone(), until, reason });
        Ok(())
    }

    pub(super) fn finish(mut self) -> ClusterView {
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        for node in &mut self.nodes {
            node.backends.sort_unstable();
        }
        self.flags.sort_by(|a, b| a.node.cmp(&b.node));
        ClusterView { nodes: self.nodes, flags: self.flags }
    }
}

fn protocol(raw: &RawBackend, field: &impl Fn(&str) -> String) -> Result<Protocol, Problem> {
    let Some(protocol) = &raw.protocol else {
        let message = "missing; a hostNetwork backend needs tcp, udp or sctp";
        return Err(refused(&raw.address, field("protocol"), message));
    };
    protocol.value.parse().map_err(|why: String| refused(protocol, field("protocol"), why))
}

/// A moment. The end of the year 9999, which many write for "never", lies a day beyond what [`Timestamp`] can hold.
fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let pieces = jiff::fmt::temporal::Pieces::parse(text).ok()?;
    let whole = pieces.time().is_some() && pieces.offset().is_some();
    (whole && pieces.date() >= Timestamp::MAX.to_zoned(jiff::tz::TimeZone::UTC).date())
        .then_some(Timestamp::MAX)
}

/// A DNS-1123 subdomain, the rule that Kubernetes has for node names.
fn check_name(name: &str) -> Result<(), String> {
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() <= 253 && name.split('.').all(label) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is no node name: expected at most 253 lower-case letters, digits, `-` and `.`, \
         each part between dots beginning and ending with a letter or digit"
    ))
}

/// An address that a node or a backend can have.
fn parse_address(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| format!("`{text}` is no IP address: expected one as in 10.2.0.12 or fd00::12"))?;
    // The tables hold IPv4 as mapped addresses, so the two spellings are one.
    let ip = ip.to_canonical();
    let kind = match ip {
        ip if ip.is_unspecified() => "the unspecified address",
        ip if ip.is_loopback() => "a loopback address",
        ip if ip.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
        IpAddr::V4(v4) if v4.octets()[0] == 0 => "an address of \"this network\" (0.0.0.0/8)",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        ip => return Ok(ip),
    };
    Err(format!("{ip} is {kind}, which no node or backend can have"))
}
