//! What single values of a cluster file may be.

use std::net::IpAddr;

use jiff::Timestamp;

/// A moment. The end of the year 9999, which many write for "never", lies a day beyond what [`Timestamp`] can hold.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let pieces = jiff::fmt::temporal::Pieces::parse(text).ok()?;
    let whole = pieces.time().is_some() && pieces.offset().is_some();
    (whole && pieces.date() >= Timestamp::MAX.to_zoned(jiff::tz::TimeZone::UTC).date())
        .then_some(Timestamp::MAX)
}

/// A number as it is usually written, and only so: `+80` and `080` parse as well, and YAML has numbers with `_` and `0x`.
pub(super) fn parse_number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse::<T>().ok().filter(|number| number.to_string() == text)
}

/// A port.
pub(super) fn parse_port(text: &str) -> Result<u16, String> {
    match parse_number(text) {
        Some(port) if port != 0 => Ok(port),
        _ => Err(format!("`{text}` is no port: expected 1 to 65535")),
    }
}

/// One part of a DNS name: RFC 1123.
pub(super) fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
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
    let short = |part: &str| part.len() <= 63 && is_label(part);
    match name.split_once('/') {
        Some((namespace, service)) if short(namespace) && short(service) => Ok(()),
        _ => Err(format!(
            "`{name}` names no Service: expected its namespace and name as in default/web, each at most 63 lower-case \
             letters, digits and `-`"
        )),
    }
}

/// An address that a node, a backend or a Service can have.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, String> {
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
    Err(format!("{ip} is {kind}, which no node, backend or Service can have"))
}
