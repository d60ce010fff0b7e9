//! Single values as a file spells them. An error in one is reported at the reader's place in the file.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use serde::Deserialize;

use super::super::protocol::Protocol;

/// The longest affinity that Kubernetes allows, in seconds (`validateClientIPAffinityConfig`, pkg/apis/core/validation).
const MAX_AFFINITY: u32 = 86_400;

/// An address. IPv4-mapped ones are IPv4: the tables hold IPv4 as mapped addresses, so the two spellings are one.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Address(pub(super) IpAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let ip = text.parse::<IpAddr>();
        let ip =
            ip.map_err(|_| format!("`{text}` is no IP address: expected one as in 10.2.0.12 or fd00::12"))?;
        Ok(Self(ip.to_canonical()))
    }
}

/// A cluster IP, or `None` as Kubernetes writes it for a Service without one (`ClusterIPNone`, pkg/apis/core/types.go).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct ClusterIp(pub(super) Option<IpAddr>);

impl TryFrom<String> for ClusterIp {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "None" { Ok(Self(None)) } else { Address::try_from(text).map(|ip| Self(Some(ip.0))) }
    }
}

/// A port.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Port(pub(super) u16);

impl TryFrom<String> for Port {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match parse_number(&text) {
            Some(port) if port != 0 => Ok(Self(port)),
            _ => Err(format!("`{text}` is no port: expected 1 to 65535")),
        }
    }
}

/// A protocol, in letters of any case.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Transport(pub(super) Protocol);

impl TryFrom<String> for Transport {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

/// How long affinity lasts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct AffinitySeconds(pub(super) Duration);

impl TryFrom<String> for AffinitySeconds {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match parse_number(&text) {
            Some(seconds) if (1..=MAX_AFFINITY).contains(&seconds) => {
                Ok(Self(Duration::from_secs(seconds.into())))
            }
            _ => Err(format!("`{text}`: expected 1 to {MAX_AFFINITY}")),
        }
    }
}

/// `sessionAffinity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Affinity {
    None,
    #[serde(rename = "ClientIP")]
    ClientIp,
}

/// A moment. The end of the year 9999, which many write for "never", lies a day beyond what [`Timestamp`] can hold.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Time(pub(super) Timestamp);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let time = text.parse().ok().or_else(|| is_beyond(&text).then_some(Timestamp::MAX));
        let time =
            time.ok_or_else(|| format!("`{text}` is no time: expected RFC 3339 as in 2026-12-01T00:00:00Z"));
        time.map(Self)
    }
}

fn is_beyond(text: &str) -> bool {
    let Ok(pieces) = jiff::fmt::temporal::Pieces::parse(text) else { return false };
    let whole = pieces.time().is_some() && pieces.offset().is_some();
    whole && pieces.date() >= Timestamp::MAX.to_zoned(jiff::tz::TimeZone::UTC).date()
}

/// A number in its usual spelling only: Rust also parses `+80` and `080`, and YAML has numbers with `_` and `0x`.
fn parse_number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse::<T>().ok().filter(|number| number.to_string() == text)
}
