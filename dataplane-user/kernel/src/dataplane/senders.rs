//! Tells this node's packets to a backend from those of others: by the source MAC address, and by the VLAN in which a packet leaves.
use std::{
    collections::{BTreeMap, BTreeSet, HashMap as Found},
    time::{Duration, Instant},
};

use aya::{
    Pod,
    maps::{HashMap, MapData},
};
use nodefence_common::{MacKey, RouteVlan};

use super::{
    entries::{drop_key, each, insert, is_full},
    error::Error,
    interfaces::Interface,
    names,
};

/// How often the maps are compared with what was last written. All other maps are compared too.
const COMPARED_EVERY: Duration = Duration::from_secs(600);
/// How many VLAN tags the programs look behind.
const MAX_TAGS: usize = 2;
/// How many devices on top of each other are followed at most. The kernel allows no circle of devices.
const MAX_DEPTH: usize = 8;

/// The maps of this node's MAC addresses and VLANs. A packet whose MAC address or VLAN is not in them passes.
pub(super) struct Senders {
    pub(super) macs: HashMap<MapData, MacKey, u32>,
    pub(super) route_vlans: HashMap<MapData, RouteVlan, MacKey>,
    /// The content last written. `None` if some of it had no room, or if a write failed.
    pub(super) written: Option<Written>,
    /// How many entries had no room at the last look.
    pub(super) left_out: usize,
}

/// The content of both maps.
pub(super) struct Written {
    macs: BTreeMap<MacKey, u32>,
    /// `None`: the pinned content.
    route_vlans: Option<BTreeMap<RouteVlan, MacKey>>,
    at: Instant,
}

/// The devices by which routes to backends leave.
#[derive(Clone, Debug)]
pub(super) enum LeaveBy {
    /// Any device: nobody follows routes.
    Any,
    /// Not known yet: what an earlier agent wrote stays in force.
    AsPinned,
    /// These devices.
    Devices(BTreeSet<u32>),
}

impl Senders {
    /// Brings the maps to the state of these devices. `leave_by` says by which of them routes to backends leave. From time to time this
    /// also mends what others changed in the maps.
    pub(super) fn write(&mut self, devices: &[Interface], leave_by: &LeaveBy) -> Result<(), Error> {
        let macs: BTreeMap<MacKey, u32> = devices.iter().filter_map(own_mac).map(|mac| (mac, 1)).collect();
        let vlans = match leave_by {
            LeaveBy::Any => {
                Some(route_vlans(devices, &devices.iter().map(|device| device.ifindex).collect()))
            }
            LeaveBy::AsPinned => None,
            LeaveBy::Devices(leave_by) => Some(route_vlans(devices, leave_by)),
        };
        let same = |written: &Written| written.macs == macs && written.route_vlans == vlans;
        if self.written.as_ref().is_some_and(|written| same(written) && written.at.elapsed() < COMPARED_EVERY)
        {
            return Ok(());
        }
        // After an error the content of the maps is not known.
        self.written = None;
        let mut left_out = bring(&mut self.macs, &macs, names::MACS)?;
        let vlans_now = match &vlans {
            Some(vlans) => vlans.clone(),
            // The pinned VLANs stay in force. A pinned MAC address stays only if one of these devices has it.
            None => {
                let mut pinned = BTreeMap::new();
                each(&self.route_vlans, names::ROUTE_VLANS, |vlan, mac: MacKey| {
                    pinned.insert(vlan, if macs.contains_key(&mac) { mac } else { MacKey::NONE });
                })?;
                pinned
            }
        };
        left_out += bring(&mut self.route_vlans, &vlans_now, names::ROUTE_VLANS)?;
        if left_out > self.left_out {
            tracing::warn!(
                event = "senders-left-out",
                left_out,
                "MAC addresses of devices, or VLANs by which routes leave, do not fit in the maps: what is sent from or by these may not be cut"
            );
        }
        self.left_out = left_out;
        self.written = (left_out == 0).then(|| Written { macs, route_vlans: vlans, at: Instant::now() });
        Ok(())
    }
}

/// The MAC address from which this node sends by the device. `None` for a macvtap device, whose MAC address is its guest's.
fn own_mac(device: &Interface) -> Option<MacKey> {
    device.mac.filter(|_| !device.macvtap).map(MacKey::new)
}

/// Brings a map to this content. Inserts what is new before it deletes what is no longer wanted. Returns how many entries had no room.
fn bring<K: Pod + Ord, V: Pod + PartialEq>(
    map: &mut HashMap<MapData, K, V>,
    wanted: &BTreeMap<K, V>,
    name: &'static str,
) -> Result<usize, Error> {
    let mut there = BTreeMap::new();
    each(map, name, |key, value: V| {
        there.insert(key, value);
    })?;
    let mut left_out = 0;
    for (key, value) in wanted.iter().filter(|(key, value)| there.get(key) != Some(value)) {
        match insert(map, key, value) {
            Ok(()) => {}
            Err(error) if is_full(&error) => left_out += 1,
            Err(error) => return Err(Error::map(name)(error)),
        }
    }
    for key in there.keys().filter(|key| !wanted.contains_key(key)) {
        drop_key(map, key, name)?;
    }
    Ok(left_out)
}

/// Finds the devices and VLANs by which packets leave that a route sends out by one of `leave_by`. Such a packet leaves by the device that
/// the route names. If a device on this way is a VLAN device, the packet also leaves by the device below, with the VLAN's tag. If it is a
/// bond or bridge, the packet also leaves by the ports, with the same tags. Each result has the MAC address of the device that the route
/// names.
pub fn route_vlans(devices: &[Interface], leave_by: &BTreeSet<u32>) -> BTreeMap<RouteVlan, MacKey> {
    let by_index: Found<u32, &Interface> = devices.iter().map(|device| (device.ifindex, device)).collect();
    let mut ports: Found<u32, Vec<u32>> = Found::new();
    for device in devices {
        if let Some(master) = device.master {
            ports.entry(master).or_default().push(device.ifindex);
        }
    }
    let mut found = BTreeMap::new();
    for named in leave_by {
        let mac = by_index.get(named).and_then(|device| own_mac(device)).unwrap_or(MacKey::NONE);
        let mut waiting: Vec<(u32, Vec<u16>, usize)> = vec![(*named, Vec::new(), 0)];
        while let Some((ifindex, tags, depth)) = waiting.pop() {
            let tag = |at: usize| tags.get(at).copied().unwrap_or_default();
            // If several routes lead here, the MAC address of any of them will do.
            found.entry(RouteVlan { ifindex, outer: tag(0), inner: tag(1) }).or_insert(mac);
            if depth == MAX_DEPTH {
                continue;
            }
            let below = ports.get(&ifindex).into_iter().flatten();
            waiting.extend(below.map(|port| (*port, tags.clone(), depth + 1)));
            let vlan = by_index.get(&ifindex).and_then(|device| Some((device.parent?, device.vlan?)));
            if let Some((parent, vlan)) = vlan
                && tags.len() < MAX_TAGS
            {
                waiting.push((parent, [&[vlan][..], &tags].concat(), depth + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ifindex: u32, vlan_of: Option<(u32, u16)>, master: Option<u32>) -> Interface {
        Interface {
            ifindex,
            parent: vlan_of.map(|(parent, _)| parent),
            vlan: vlan_of.map(|(_, id)| id),
            master,
            ..Interface::default()
        }
    }

    fn leaves(devices: &[Interface], by: &[u32]) -> Vec<(u32, u16, u16)> {
        let found = route_vlans(devices, &by.iter().copied().collect());
        found.into_keys().map(|vlan| (vlan.ifindex, vlan.outer, vlan.inner)).collect()
    }

    #[test]
    fn a_route_names_the_device_whose_address_its_packets_bear() {
        let with_mac = |device: Interface, last: u8| Interface { mac: Some([2, 0, 0, 0, 0, last]), ..device };
        let devices = [
            with_mac(device(2, None, None), 2),
            with_mac(device(5, Some((2, 200)), None), 5),
            Interface { macvtap: true, ..with_mac(device(6, Some((2, 300)), None), 6) },
            device(7, None, None),
        ];
        let found = route_vlans(&devices, &[2, 5, 6, 7].into());
        let mac = |ifindex, outer| found.get(&RouteVlan { ifindex, outer, inner: 0 }).copied();
        let own = |last: u8| Some(MacKey::new([2, 0, 0, 0, 0, last]));
        assert_eq!((mac(2, 0), mac(5, 0), mac(2, 200)), (own(2), own(5), own(5)));
        assert_eq!([mac(6, 0), mac(2, 300), mac(7, 0)], [Some(MacKey::NONE); 3], "a guest's, or none");
    }

    #[test]
    fn a_route_leaves_below_its_device_with_the_tags_that_lie_between() {
        let devices = [
            device(2, None, None),
            device(5, Some((2, 200)), None),
            device(6, Some((5, 7)), None),
            device(7, Some((6, 8)), None),
            device(9, None, None),
        ];
        assert_eq!(leaves(&devices, &[]), []);
        assert_eq!(leaves(&devices, &[2]), [(2, 0, 0)]);
        assert_eq!(leaves(&devices, &[5]), [(2, 200, 0), (5, 0, 0)]);
        assert_eq!(leaves(&devices, &[6]), [(2, 200, 7), (5, 7, 0), (6, 0, 0)]);
        // The programs do not look behind three tags.
        assert_eq!(leaves(&devices, &[7]), [(5, 7, 8), (6, 8, 0), (7, 0, 0)]);
        assert_eq!(leaves(&devices, &[5, 9]), [(2, 200, 0), (5, 0, 0), (9, 0, 0)]);
        assert_eq!(leaves(&devices, &[99]), [(99, 0, 0)], "one that is gone");
    }

    #[test]
    fn a_bond_or_a_bridge_leaves_by_its_ports() {
        let devices = [
            device(2, None, Some(4)),
            device(3, None, Some(4)),
            device(4, None, None),
            device(5, Some((4, 200)), None),
            // A bridge with a VLAN device as a port.
            device(6, Some((9, 300)), Some(8)),
            device(8, None, None),
            device(9, None, None),
        ];
        assert_eq!(leaves(&devices, &[4]), [(2, 0, 0), (3, 0, 0), (4, 0, 0)]);
        assert_eq!(leaves(&devices, &[5]), [(2, 200, 0), (3, 200, 0), (4, 200, 0), (5, 0, 0)]);
        assert_eq!(leaves(&devices, &[8]), [(6, 0, 0), (8, 0, 0), (9, 300, 0)]);
        // The kernel allows no such devices, but the search must end all the same.
        let circle = [device(2, None, Some(3)), device(3, None, Some(2))];
        assert_eq!(leaves(&circle, &[2]), [(2, 0, 0), (3, 0, 0)]);
    }
}
