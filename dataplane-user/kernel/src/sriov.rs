//! Counts virtual functions (SR-IOV). Packets that leave by a virtual function do not pass the host's programs.

use std::{fs, path::Path};

/// The number of virtual functions of a device and of the devices below it (ports of a bond, the device below a VLAN). `sysfs` is the mount
/// point (`/sys`). It shows the network namespace in which it was mounted.
pub fn functions(sysfs: &Path, device: &str) -> u32 {
    let folder = sysfs.join("class/net").join(device);
    let text = fs::read_to_string(folder.join("device/sriov_numvfs")).unwrap_or_default();
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let below = entries.filter_map(|entry| {
        let name = entry.file_name();
        Some(functions(sysfs, name.to_str()?.strip_prefix("lower_")?))
    });
    text.trim().parse().unwrap_or(0) + below.sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_bond_s_ports_count() {
        let sysfs = std::env::temp_dir().join(format!("nodefence-sriov-{}", std::process::id()));
        let make = |path: &str| fs::create_dir_all(sysfs.join("class/net").join(path)).unwrap();
        for (device, count) in [("eth0", "4\n"), ("eth1", "2\n"), ("eth2", "0\n")] {
            make(&format!("{device}/device"));
            let file = sysfs.join("class/net").join(device).join("device/sriov_numvfs");
            fs::write(file, count).unwrap();
        }
        for path in ["bond0/lower_eth0", "bond0/lower_eth1", "bond0.7/lower_bond0", "veth1"] {
            make(path);
        }
        let found =
            ["eth0", "eth2", "bond0", "bond0.7", "veth1", "gone"].map(|device| functions(&sysfs, device));
        fs::remove_dir_all(&sysfs).unwrap();
        assert_eq!(found, [4, 0, 6, 6, 0, 0]);
    }
}
