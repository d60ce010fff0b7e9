//! Which flows `flows` lists, and its rows.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{cluster::Protocol, conntrack::TcpState};

/// Which flows a request is for: all, where no field is set. A field that is not set is not sent: an agent refuses fields that it does
/// not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowFilter {
    /// Only flows to this node's backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only flows to this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Place>,
    /// Only flows through this Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceFilter>,
    /// Only flows of this protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// How many flows are listed at most: the first ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// An address, and one of its ports or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Place {
    address: IpAddr,
    port: Option<u16>,
}

impl Place {
    /// Whether that socket is at this place.
    pub fn has(&self, socket: SocketAddr) -> bool {
        self.address == socket.ip() && self.port.is_none_or(|port| port == socket.port())
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let socket =
            text.parse().map(|socket: SocketAddr| Self { address: socket.ip(), port: Some(socket.port()) });
        socket.or_else(|_| text.parse().map(|address| Self { address, port: None })).map_err(|_| {
            format!("`{text}`: expected ADDRESS or ADDRESS:PORT, as in 10.244.2.7, 10.244.2.7:8080 or [fd00::7]:8080")
        })
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

/// A Service: by its name, or by what flows are addressed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ServiceFilter {
    /// The Service's name, as in `default/web`.
    Name(String),
    /// The place that flows are addressed to.
    At(Place),
}

impl From<String> for ServiceFilter {
    fn from(text: String) -> Self {
        text.parse().map_or(Self::Name(text), Self::At)
    }
}

impl From<ServiceFilter> for String {
    fn from(filter: ServiceFilter) -> Self {
        match filter {
            ServiceFilter::Name(name) => name,
            ServiceFilter::At(place) => place.to_string(),
        }
    }
}

/// The state of a TCP flow in conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Conntrack saw no packet that sets a state.
    None,
    /// Conntrack saw a SYN.
    SynSent,
    /// Conntrack saw a SYN|ACK.
    SynRecv,
    /// The handshake is complete.
    Established,
    /// One side sent a FIN.
    FinWait,
    /// The other side acknowledged the FIN.
    CloseWait,
    /// Both sides sent a FIN. The last ACK is missing.
    LastAck,
    /// The connection was closed in order.
    TimeWait,
    /// The connection was reset.
    Close,
    /// Both sides sent a SYN (simultaneous open).
    SynSent2,
    /// The kernel is newer than this version and has a state that this version does not know.
    Unknown,
}

impl From<TcpState> for FlowState {
    fn from(state: TcpState) -> Self {
        match state {
            TcpState::None => Self::None,
            TcpState::SynSent => Self::SynSent,
            TcpState::SynRecv => Self::SynRecv,
            TcpState::Established => Self::Established,
            TcpState::FinWait => Self::FinWait,
            TcpState::CloseWait => Self::CloseWait,
            TcpState::LastAck => Self::LastAck,
            TcpState::TimeWait => Self::TimeWait,
            TcpState::Close => Self::Close,
            TcpState::SynSent2 => Self::SynSent2,
            TcpState::Unknown(_) => Self::Unknown,
        }
    }
}

/// As `conntrack -L` has it.
impl fmt::Display for FlowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "NONE",
            Self::SynSent => "SYN_SENT",
            Self::SynRecv => "SYN_RECV",
            Self::Established => "ESTABLISHED",
            Self::FinWait => "FIN_WAIT",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::SynSent2 => "SYN_SENT2",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// A flow to a backend, as conntrack lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowRow {
    /// The transport protocol. `None` if it is not TCP, UDP or SCTP.
    pub protocol: Option<Protocol>,
    /// The number of the IP protocol (IANA).
    pub protocol_number: u8,
    /// The address and port of the client, which began the flow.
    pub client: SocketAddr,
    /// The address and port that the client sent to.
    pub service: SocketAddr,
    /// The address and port of the backend.
    pub backend: SocketAddr,
    /// The node of the backend.
    pub node: String,
    /// The TCP state. `None` for other protocols.
    pub state: Option<FlowState>,
    /// The conntrack zone. 0 is the default zone.
    pub zone: u16,
    /// Seconds until conntrack deletes the flow if no packet comes.
    pub timeout_seconds: u32,
}

/// The flows to backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowList {
    /// The flows, by node, backend and client.
    pub items: Vec<FlowRow>,
    /// What this list does not show, in words.
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_with_or_without_its_port() {
        for (text, socket, other) in [
            ("10.1.1.1", "10.1.1.1:80", "10.1.1.2:80"),
            ("10.1.1.1:80", "10.1.1.1:80", "10.1.1.1:81"),
            ("fd00::1", "[fd00::1]:80", "[fd00::2]:80"),
            ("[fd00::1]:80", "[fd00::1]:80", "[fd00::1]:8080"),
        ] {
            let place: Place = text.parse().unwrap();
            assert!(place.has(socket.parse().unwrap()) && !place.has(other.parse().unwrap()), "{text}");
            assert_eq!(place.to_string(), text);
        }
        for text in ["", "b", "10.1.1.1:", "10.1.1.1:65536", "10.1.1.0/24", "[fd00::1]", "10.1.1.1:http"] {
            let error = text.parse::<Place>().unwrap_err();
            assert!(error.contains("expected ADDRESS or ADDRESS:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn a_service_is_a_name_or_a_place() {
        let named = |text: &str| ServiceFilter::from(text.to_owned());
        assert_eq!(named("default/web"), ServiceFilter::Name("default/web".to_owned()));
        assert_eq!(named("10.96.0.10"), ServiceFilter::At("10.96.0.10".parse().unwrap()));
        assert_eq!(named("[fd00::1]:80"), ServiceFilter::At("[fd00::1]:80".parse().unwrap()));
    }
}
