//! Checks of single values of objects, whatever their source.

use std::net::IpAddr;

/// One part of a DNS name: RFC 1123.
fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// A label of at most 63 letters.
fn is_short_label(label: &str) -> bool {
    label.len() <= 63 && is_label(label)
}

/// A DNS-1123 subdomain, the rule that Kubernetes has for node names.
pub(super) fn check_node_name(name: &str) -> Result<(), String> {
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is no node name: expected at most 253 lower-case letters, digits, `-` and `.`, \
         each part between dots beginning and ending with a letter or digit"
    ))
}

/// Namespace and name, each a DNS-1123 label as Kubernetes wants it.
pub(super) fn check_service_name(name: &str) -> Result<(), String> {
    match name.split_once('/') {
        Some((namespace, service)) if is_short_label(namespace) && is_short_label(service) => Ok(()),
        _ => Err(format!(
            "`{name}` names no Service: expected its namespace and name as in default/web, each at most 63 lower-case \
             letters, digits and `-`"
        )),
    }
}

/// The name of a port of a Service that has `of` ports.
pub(super) fn check_port_name(name: &str, of: usize) -> Result<(), String> {
    match name {
        // As EndpointSlices have it.
        "" if of == 1 => Ok(()),
        "" => Err("missing; where a Service has several ports, each has a name".to_owned()),
        name if is_short_label(name) => Ok(()),
        name => Err(format!(
            "`{name}` is no name of a port: expected at most 63 lower-case letters, digits and `-`"
        )),
    }
}

/// An address that a node, a backend or a Service can have.
///
/// # Errors
/// Says which kind of address it is that none of them can have.
pub fn check_address(ip: IpAddr) -> Result<(), String> {
    let kind = match ip {
        ip if ip.is_unspecified() => "the unspecified address",
        ip if ip.is_loopback() => "a loopback address",
        ip if ip.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
        IpAddr::V4(v4) if v4.octets()[0] == 0 => "an address of \"this network\" (0.0.0.0/8)",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        // The tables hold IPv4 as mapped addresses, so the two spellings would be one.
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4 address that is spelled as IPv6",
        _ => return Ok(()),
    };
    Err(format!("{ip} is {kind}, which no node, backend or Service can have"))
}
