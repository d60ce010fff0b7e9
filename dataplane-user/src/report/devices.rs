//! Devices, and the next hops to flagged nodes.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dataplane::{LinkLayer, TcMode, XdpStatus, hold::Holding};

/// A program or filter that sees packets of a device before the programs of the agent do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramRow {
    /// The id of the program in the kernel. 0 if the filter is no BPF program.
    pub id: u32,
    /// The name of the program, or the name or kind of the filter.
    pub name: String,
    /// Where the program sits, such as `tcx egress` or `clsact egress prio 1`.
    pub place: String,
}

/// A network device, and the programs of the agent on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceRow {
    /// The name of the device.
    pub name: String,
    /// The interface index of the device. 0 if the device does not exist.
    pub ifindex: u32,
    /// The header that packets of the device begin with. `None` if it is not known.
    pub link_layer: Option<LinkLayer>,
    /// How the TC programs are attached. `None` if they are not attached.
    pub tc: Option<TcMode>,
    /// Whether the XDP program runs, and why not.
    pub xdp: XdpStatus,
    /// Programs of others that see packets before the programs of the agent do.
    pub programs_ahead: Vec<ProgramRow>,
    /// The number of virtual functions (SR-IOV) of the device and of the devices below it. Traffic that a pod sends by a virtual function is not cut.
    #[serde(default)]
    pub virtual_functions: u32,
    /// The bridge that the device is, or is a port of. Traffic that pods and guests on other ports send is switched there and not cut. `None` if there is no bridge.
    pub bridge: Option<String>,
    /// Why the programs could not be attached. `None` if nothing failed.
    pub error: Option<String>,
}

/// A next hop to the backends of a flagged node, as the neighbour table has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeighbourRow {
    /// The device that leads to the next hop.
    pub interface: String,
    /// The address of the next hop.
    pub address: IpAddr,
    /// What the agent does with the neighbour entry, so that packets still reach the cut when the link of the node is down.
    pub state: Holding,
    /// Whether packets to this next hop are lost before they reach the cut, because its link-layer address was never seen.
    pub dies_before_the_cut: bool,
}
