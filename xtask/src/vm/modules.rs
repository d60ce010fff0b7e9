//! Selects the modules of a kernel that the guest gets: those of networking, and the modules that these need.

use std::collections::{BTreeSet, HashMap};

/// The folders below `/lib/modules/VERSION/` of which all modules are taken.
const FOLDERS: &[&str] = &[
    "kernel/net/8021q/",
    "kernel/net/bridge/",
    "kernel/net/core/",
    "kernel/net/ipv4/",
    "kernel/net/ipv6/",
    "kernel/net/llc/",
    "kernel/net/802/",
    "kernel/net/netfilter/",
    "kernel/net/netlink/",
    "kernel/net/packet/",
    "kernel/net/sched/",
    "kernel/net/sctp/",
    "kernel/net/unix/",
    "kernel/net/xfrm/",
    "kernel/drivers/net/vxlan/",
    "kernel/drivers/net/geneve",
];

/// Other modules that are taken, by name.
const NAMES: &[&str] = &[
    "veth",
    "vxlan",
    "tun",
    "dummy",
    "ifb",
    "macvlan",
    "virtio_net",
    "virtio_pci",
    "virtio_rng",
    "virtio_console",
    "vmxnet3",
    "bonding",
    "sch_fq",
    "crc32c_generic",
    "libcrc32c",
    // For containers, in the guests of `cluster-test`.
    "overlay",
    "crct10dif_generic",
];

/// Reads `modules.dep` (lines of `path: path path`), and returns the paths of the modules to take, and of the modules that these need.
pub(crate) fn select(modules_dep: &str) -> BTreeSet<String> {
    let needs: HashMap<&str, Vec<&str>> = modules_dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (path.trim(), needs.split_whitespace().collect()))
        .collect();
    let mut open: Vec<&str> = needs.keys().copied().filter(|path| wanted(path)).collect();
    let mut taken = BTreeSet::new();
    while let Some(path) = open.pop() {
        if taken.insert(path.to_owned()) {
            open.extend(needs.get(path).into_iter().flatten());
        }
    }
    taken
}

fn wanted(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split(".ko").next().unwrap_or(file).replace('-', "_");
    FOLDERS.iter().any(|folder| path.starts_with(folder)) || NAMES.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_brings_what_it_needs_and_no_more() {
        let dep = "kernel/net/netfilter/nft_ct.ko.xz: kernel/lib/libcrc32c.ko.xz kernel/x/deep.ko.xz\n\
            kernel/lib/libcrc32c.ko.xz:\nkernel/x/deep.ko.xz: kernel/x/deeper.ko.xz\nkernel/x/deeper.ko.xz:\n\
            kernel/sound/hda.ko.xz: kernel/x/sound.ko.xz\nkernel/drivers/net/virtio-net.ko.xz:\n";
        let taken: Vec<String> = select(dep).into_iter().collect();
        assert_eq!(
            taken,
            [
                "kernel/drivers/net/virtio-net.ko.xz",
                "kernel/lib/libcrc32c.ko.xz",
                "kernel/net/netfilter/nft_ct.ko.xz",
                "kernel/x/deep.ko.xz",
                "kernel/x/deeper.ko.xz"
            ]
        );
    }
}
