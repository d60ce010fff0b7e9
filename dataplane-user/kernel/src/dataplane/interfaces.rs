//! Lists network devices, and says which programs can be attached to them.
use std::fmt;

use super::{
    error::Error,
    netlink::{Netlink, RTM_GETLINK, Request},
};
use crate::netlink::{attributes, text_of, u16_of, u32_of};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VRF_TABLE: u16 = 1;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
/// Present if the parent is in another network namespace.
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;

/// From include/uapi/linux/if_arp.h; libc lacks it.
const ARPHRD_RAWIP: u16 = 519;

/// The header that packets of a device begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// An Ethernet header.
    L2,
    /// An IP header.
    L3,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L2 => "l2",
            Self::L3 => "l3",
        })
    }
}

/// One network device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// The device's index in this network namespace.
    pub ifindex: u32,
    /// The device's name.
    pub name: String,
    /// ARPHRD type (include/uapi/linux/if_arp.h).
    pub hardware: u16,
    /// The device's MAC address, if it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// The MTU: bytes above the link-layer header.
    pub mtu: u32,
    /// The index of the device below, if this is a VLAN device: packets leave by that device with a tag.
    pub parent: Option<u32>,
    /// The VLAN's id, if this is a VLAN device.
    pub vlan: Option<u16>,
    /// The index of the bond, team or bridge to which the device belongs.
    pub master: Option<u32>,
    /// Whether a VLAN device of this network namespace is on top of the device or of its master.
    pub vlans: bool,
    /// Whether the device is one end of a veth pair.
    pub veth: bool,
    /// Whether the device is a macvtap device, whose MAC address is that of the guest which sends by it.
    pub macvtap: bool,
    /// Whether the device is a bridge.
    pub bridge: bool,
    /// Whether the device is a bridge that puts its ports into VLANs. Packets may leave by these ports with other tags than by the bridge.
    pub vlan_filtering: bool,
    /// Whether the device belongs to Open vSwitch: its datapath (`ovs-system`), or a bridge's own port.
    pub ovs: bool,
    /// If the device is a VRF, the table by which packets of its ports are routed.
    pub vrf: Option<u32>,
    /// The XDP program on the device: mode (1 native, 2 generic, 3 hardware, 4 several; `IFLA_XDP_ATTACHED`) and id.
    pub xdp: Option<(u8, u32)>,
}

impl Interface {
    /// Which of our programs fit the device, or why none does.
    pub fn link_layer(&self) -> Result<LinkLayer, String> {
        link_layer(self.hardware)
    }
}

fn link_layer(hardware: u16) -> Result<LinkLayer, String> {
    match hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(LinkLayer::L2),
        libc::ARPHRD_NONE
        | libc::ARPHRD_TUNNEL
        | libc::ARPHRD_TUNNEL6
        | libc::ARPHRD_SIT
        | ARPHRD_RAWIP
        | libc::ARPHRD_PPP => Ok(LinkLayer::L3),
        other => Err(format!(
            "its packets start with neither an Ethernet nor an IP header (ARPHRD type {other}); attach to a device \
             of type Ethernet, tunnel, tun, WireGuard or PPP instead"
        )),
    }
}

/// Every device of the calling thread's network namespace.
pub fn list() -> Result<Vec<Interface>, Error> {
    let mut netlink = Netlink::open()?;
    let answers = netlink
        .ask(&Request::list(RTM_GETLINK, &[0; 16]))
        .map_err(|refusal| refusal.into_error("list the network interfaces"))?;
    let mut devices = answers.iter().filter_map(|body| parse(body)).collect::<Vec<_>>();
    mark_vlans(&mut devices);
    Ok(devices)
}

fn mark_vlans(devices: &mut [Interface]) {
    let parents: Vec<u32> = devices.iter().filter_map(|device| device.parent).collect();
    for device in devices {
        device.vlans = parents.iter().any(|on| *on == device.ifindex || Some(*on) == device.master);
    }
}

/// `struct ifinfomsg` (family, padding, type, index, flags, change) and its attributes.
fn parse(body: &[u8]) -> Option<Interface> {
    let mut interface = Interface {
        ifindex: body.get(4..).and_then(u32_of)?,
        hardware: body.get(2..).and_then(u16_of)?,
        ..Interface::default()
    };
    let mut link = None;
    let mut elsewhere = false;
    let mut vlan = false;
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_IFNAME => interface.name = text_of(value),
            IFLA_ADDRESS => interface.mac = value.try_into().ok(),
            IFLA_MTU => interface.mtu = u32_of(value)?,
            IFLA_XDP => interface.xdp = parse_xdp(value),
            IFLA_LINK => link = u32_of(value),
            IFLA_MASTER => interface.master = u32_of(value),
            IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_LINKINFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                let kind = kind.map(|(_, value)| text_of(value)).unwrap_or_default();
                let is = |name: &str| kind == name;
                vlan = is("vlan");
                interface.veth = is("veth");
                interface.ovs = is("openvswitch");
                interface.bridge = is("bridge");
                interface.macvtap = is("macvtap");
                let data = |name: &str, wanted: u16| {
                    let data = attributes(value).find(|(kind, _)| is(name) && *kind == IFLA_INFO_DATA);
                    data.and_then(|(_, data)| attributes(data).find(|(kind, _)| *kind == wanted))
                        .map(|(_, value)| value)
                };
                interface.vrf = data("vrf", IFLA_VRF_TABLE).and_then(u32_of);
                interface.vlan = data("vlan", IFLA_VLAN_ID).and_then(u16_of);
                interface.vlan_filtering =
                    data("bridge", IFLA_BR_VLAN_FILTERING).is_some_and(|value| value.first() == Some(&1));
            }
            _ => {}
        }
    }
    interface.parent = link.filter(|_| vlan && !elsewhere);
    interface.vlan = interface.vlan.filter(|_| interface.parent.is_some());
    Some(interface)
}

fn parse_xdp(nested: &[u8]) -> Option<(u8, u32)> {
    let mut mode = 0;
    let mut id = 0;
    for (kind, value) in attributes(nested) {
        match kind {
            IFLA_XDP_ATTACHED => mode = value.first().copied()?,
            IFLA_XDP_PROG_ID => id = u32_of(value)?,
            _ => {}
        }
    }
    (mode != 0).then_some((mode, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_sorted_by_their_header() {
        assert_eq!(link_layer(1), Ok(LinkLayer::L2), "Ethernet");
        assert_eq!(link_layer(772), Ok(LinkLayer::L2), "loopback");
        for l3 in [0xfffe, 768, 769, 776, 519, 512] {
            assert_eq!(link_layer(l3), Ok(LinkLayer::L3), "{l3}");
        }
        for other in [32, 778, 801, 824, 280] {
            let reason = link_layer(other).unwrap_err();
            assert!(reason.contains(&other.to_string()), "{reason}");
        }
    }

    #[test]
    fn a_vlan_device_marks_what_it_stands_on() {
        // The index, the master, and the device below a VLAN device.
        let mut devices = [
            (1, None, None),
            (2, Some(4), None),
            (3, None, None),
            (4, None, None),
            (5, None, Some(4)),
            (6, None, Some(3)),
        ]
        .map(|(ifindex, master, parent)| Interface {
            ifindex,
            hardware: 1,
            mtu: 1500,
            parent,
            master,
            ..Interface::default()
        });
        mark_vlans(&mut devices);
        let marked: Vec<u32> =
            devices.iter().filter(|device| device.vlans).map(|device| device.ifindex).collect();
        assert_eq!(marked, [2, 3, 4]);
    }

    #[test]
    fn the_list_has_the_loopback_device() {
        let lo = list().unwrap().into_iter().find(|device| device.name == "lo").unwrap();
        assert_eq!((lo.ifindex, lo.link_layer()), (1, Ok(LinkLayer::L2)));
        assert!(lo.mtu > 0);
    }
}
