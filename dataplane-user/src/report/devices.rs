//! Devices, and the next hops to flagged nodes.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dataplane::{LinkLayer, TcMode, XdpStatus, hold::Holding};

/// A program that runs ahead of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramRow {
    /// The kernel's id of it; 0 where there is none.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub place: String,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceRow {
    /// Its name.
    pub name: String,
    /// Its index; 0 where it does not exist.
    pub ifindex: u32,
    /// What its packets start with.
    pub link_layer: Option<LinkLayer>,
    /// How the TC programs are attached; `None` where nothing is.
    pub tc: Option<TcMode>,
    /// What runs in XDP, and why nothing does.
    pub xdp: XdpStatus,
    /// Programs that see packets before ours do.
    pub programs_ahead: Vec<ProgramRow>,
    /// Virtual functions (SR-IOV) of it and of what it stands on: who was given one sends past the cut.
    #[serde(default)]
    pub virtual_functions: u32,
    /// The bridge that it is, or is a port of: what other ports' pods and guests send is switched there, and not cut.
    pub bridge: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// The next hop to a flagged node's backends, as the neighbour table has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeighbourRow {
    /// The device.
    pub interface: String,
    /// The next hop's address.
    pub address: IpAddr,
    /// What the agent does with its entry, so that packets still reach the cut when the node's link is down.
    pub state: Holding,
    /// Packets die there and do not reach the cut: its link-layer address was never seen.
    pub dies_before_the_cut: bool,
}
