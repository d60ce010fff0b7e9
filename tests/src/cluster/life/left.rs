//! What of nodefence is left on the nodes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    super::{KubeCluster, wire},
    check::Check,
};
use crate::incident::{Cluster as _, ipvs};

/// IPVS's rows of each node. Empty where kube-proxy does not use IPVS.
pub(super) type Tables = BTreeMap<String, BTreeSet<String>>;

/// Prints a line for each thing of nodefence that is not in bpftool's lists: pins, filters and their qdisc, programs at a device's XDP hook, mounts and processes.
const LIST: &str = r#"
    find /sys/fs/bpf -mindepth 1 | sed 's/^/pin /'
    for device in $(ls /sys/class/net); do
        tc qdisc show dev $device | grep -E 'clsact|ingress' | sed "s/^/qdisc of $device /"
        for side in ingress egress; do
            tc filter show dev $device $side | grep -v '^$' | sed "s/^/filter of $device /"
        done
    done
    ip -d link show | grep prog/ | sed 's/^/xdp /'
    grep nodefence /proc/mounts | sed 's/^/mount /'
    for process in /proc/[0-9]*; do
        readlink $process/exe
    done 2>/dev/null | grep -x /nodefence | sed 's/^/process /'
    true"#;

/// The files of the run folder.
const FILES: &str = "ls -A /run/nodefence 2>/dev/null; true";

impl KubeCluster {
    /// IPVS's rows of each node.
    pub(super) fn tables(&self) -> Result<Tables> {
        let of = |node: String| {
            let rows = self.ipvs(&node)?.map(|listing| ipvs::rows(&listing)).unwrap_or_default();
            Ok((node, rows))
        };
        wire::NODES.map(wire::name).map(of).collect()
    }

    /// While nodefence runs the lists show it. Otherwise empty lists would prove nothing.
    pub(super) fn shown_on_nodes(&self) -> Result<Check> {
        let mut missing = Vec::new();
        for node in wire::NODES.map(wire::name) {
            let found = self.found_on(&node)?;
            let is_shown = |kind: &&&str| !found.iter().any(|line| line.split(' ').next() == Some(**kind));
            missing.extend(SHOWN.iter().filter(is_shown).map(|kind| format!("{node}: no {kind}")));
        }
        let evidence = format!("{} of {}", missing.len(), SHOWN.len() * wire::NODES.count());
        let what = "before the removal the lists of each node show pins, links, programs, maps and processes; missing";
        Ok(Check::of(what, missing.is_empty(), format!("{evidence} {}", missing.join(", "))))
    }

    /// After `helm uninstall` the nodes are as without nodefence: no pin, no program and no map, IPVS as it was, and in the run folder only what the docs name.
    pub(super) fn left_on_nodes(&self, before: &Tables) -> Result<Vec<Check>> {
        let after = self.tables()?;
        let mut in_kernel = Vec::new();
        let mut files = Vec::new();
        for node in wire::NODES.map(wire::name) {
            in_kernel.extend(self.found_on(&node)?.into_iter().map(|line| format!("{node}: {line}")));
            let names = self.on(&node, FILES)?;
            files.extend(
                names.lines().filter(|name| !KEPT.contains(name)).map(|name| format!("{node}: {name}")),
            );
        }
        let rows: usize = before.values().map(BTreeSet::len).sum();
        let none = BTreeSet::new();
        let differ: Vec<String> = before
            .iter()
            .flat_map(|(node, rows)| {
                let lines = ipvs::differences(rows, after.get(node).unwrap_or(&none));
                lines.into_iter().map(move |line| format!("{node}: {line}"))
            })
            .collect();
        Ok(vec![
            Check::of(
                "after helm uninstall no pin, link, program, map, filter, mount or process is left on a node",
                in_kernel.is_empty(),
                counted(&in_kernel, "on three nodes"),
            ),
            Check::of(
                "after helm uninstall IPVS's rows and weights are those that kube-proxy wrote",
                differ.is_empty(),
                counted(&differ, &format!("of {rows} rows on three nodes differ")),
            ),
            Check::of(
                "after helm uninstall the run folders have only what agents keep for the next install",
                files.is_empty(),
                counted(&files, "other files on three nodes"),
            ),
        ])
    }

    /// A line for each thing of nodefence on a node, which begins with its kind.
    fn found_on(&self, node: &str) -> Result<Vec<String>> {
        let mut found: Vec<String> = self.on(node, LIST)?.lines().map(str::to_owned).collect();
        for list in ["prog", "map", "link", "net"] {
            let text = self.on(node, &format!("bpftool -j {list} list"))?;
            let objects = serde_json::from_str(&text).with_context(|| format!("{list}: {text:?}"))?;
            found.extend(left(list, &objects));
        }
        Ok(found)
    }
}

/// The kinds of things that a node has where an agent cuts.
const SHOWN: [&str; 5] = ["pin", "prog", "map", "link", "process"];

/// What agents leave in their run folder: locks, flags, the last view, the word of the settings, and which pods had the node.
const KEPT: [&str; 10] = [
    "agent.lock",
    "agent.next",
    "agent.pods.json",
    "flags.json",
    "ledger.apart",
    "ledger.guard",
    "ledger.waits",
    "off.settings.json",
    "view-confirmed.json",
    "view.json",
];

/// What of a list of `bpftool` is not the kubelet's: each container has a nameless program that says which devices it may use (runc).
fn left(list: &str, objects: &Value) -> Vec<String> {
    let is_of_runc = |object: &Value| list == "prog" && object["type"] == "cgroup_device";
    let all = objects.as_array().map(Vec::as_slice).unwrap_or_default();
    if list == "net" {
        let attached = all.iter().filter_map(Value::as_object).flatten();
        let attached = attached.flat_map(|(kind, programs)| {
            programs.as_array().into_iter().flatten().map(move |program| format!("{kind} {program}"))
        });
        return attached.collect();
    }
    all.iter().filter(|object| !is_of_runc(object)).map(|object| format!("{list} {object}")).collect()
}

fn counted(lines: &[String], what: &str) -> String {
    let mut text = format!("{} {what}", lines.len());
    for line in lines {
        text += &format!("\n{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_programs_of_containers_are_not_ours() {
        let of_runc = json!({"id": 7, "type": "cgroup_device"});
        let ours = json!({"id": 8, "type": "sched_cls", "name": "nodefence_egress"});
        assert_eq!(left("prog", &json!([of_runc, ours])), [format!("prog {ours}")]);
        assert_eq!(left("map", &json!([{"id": 1, "type": "hash"}])).len(), 1);
        assert_eq!(left("link", &json!([])), Vec::<String>::new());
        let attached = json!([{"xdp": [], "tc": [{"devname": "eth0"}], "flow_dissector": []}]);
        assert_eq!(left("net", &attached), ["tc {\"devname\":\"eth0\"}"]);
    }
}
