//! What keeps nodefence from working on nodes, as far as the API server knows. Pure.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, Node},
};
use kube::ResourceExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    lines::lines,
    replacing::{Network, networks},
};
use crate::{
    cli::output::{columns, count, or_dash},
    report::Document,
};

/// The oldest kernel on which the programs load.
const KERNEL: (u32, u32) = (5, 10);
/// The oldest API server that has all rules of nodefence's objects (ValidatingAdmissionPolicy is GA since 1.30, KEP-3488).
const SERVER: (u32, u32) = (1, 30);
/// The processors for which the agent is built.
const PROCESSORS: [&str; 2] = ["amd64", "arm64"];
/// The label that says which pods a namespace takes.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// What was read.
pub(super) struct Facts {
    /// The version of the API server.
    pub(super) server: Option<String>,
    /// All nodes.
    pub(super) nodes: Vec<Node>,
    /// All DaemonSets.
    pub(super) daemon_sets: Result<Vec<DaemonSet>, String>,
    /// kube-proxy's configuration.
    pub(super) kube_proxy: Result<Option<ConfigMap>, String>,
    /// Cilium's configuration.
    pub(super) cilium: Option<ConfigMap>,
    /// The name of the namespace for the agents.
    pub(super) namespace: String,
    /// That namespace.
    pub(super) own: Result<Option<Namespace>, String>,
}

/// A node before an install.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct PreflightRow {
    /// The name of the node.
    pub(super) node: String,
    /// The kernel. `None` if the kubelet has not said so yet.
    pub(super) kernel: Option<String>,
    /// The processor. `None` if the kubelet has not said so yet.
    pub(super) arch: Option<String>,
    /// The distribution. `None` if the kubelet has not said so yet.
    pub(super) os: Option<String>,
    /// What keeps nodefence from working on this node, in words.
    pub(super) findings: Vec<String>,
}

/// What was found before an install.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct PreflightReport {
    /// The nodes that run Linux, by name.
    pub(super) items: Vec<PreflightRow>,
    /// The requested names that no node has.
    pub(super) not_found: Vec<String>,
    /// The version of the API server. `None` if it does not say so.
    pub(super) api_server: Option<String>,
    /// The mode of kube-proxy, by its configuration. `None` if it is not known.
    pub(super) proxy: Option<String>,
    /// The pod networks that were found by the names of their DaemonSets.
    pub(super) cni: Vec<String>,
    /// What concerns all nodes, in words.
    pub(super) findings: Vec<String>,
    /// What could not be found out, and other notes, in words.
    pub(super) notes: Vec<String>,
}

impl Document for PreflightReport {
    const KIND: &'static str = "PreflightReport";
    const PRINTED_BY: &'static str = "kubectl nodefence preflight";
}

impl PreflightReport {
    /// Judges what was read. Without names all nodes are judged.
    pub(super) fn new(facts: &Facts, names: &[String]) -> Self {
        let is_linux = |node: &&Node| info(node).is_none_or(|info| info.operating_system == "linux");
        let is_wanted = |node: &&Node| names.is_empty() || names.iter().any(|name| *name == node.name_any());
        let wanted: Vec<&Node> = facts.nodes.iter().filter(is_wanted).collect();
        let mut items: Vec<PreflightRow> = wanted.iter().copied().filter(is_linux).map(row).collect();
        items.sort_by(|a, b| a.node.cmp(&b.node));
        let has = |name: &String| facts.nodes.iter().any(|node| node.name_any() == *name);
        let not_found = names.iter().filter(|name| !has(name)).cloned().collect();
        let mut notes = Vec::new();
        let others = wanted.len() - items.len();
        if others > 0 {
            notes.push(format!("{} without Linux: no agent runs there", count(others, "node")));
        }
        let mut findings = Vec::new();
        server(facts.server.as_deref(), &mut findings, &mut notes);
        let proxy = proxy(&facts.kube_proxy, &mut findings, &mut notes);
        let networks = match &facts.daemon_sets {
            Ok(sets) => networks(sets, facts.cilium.as_ref()),
            Err(why) => {
                notes.push(format!("the pod network is not known: {why}"));
                Vec::new()
            }
        };
        findings.extend(networks.iter().filter_map(|network| network.replaces.clone()));
        notes.extend(networks.iter().filter_map(|network| network.unsure.clone()));
        notes.extend(no_network(facts, &networks));
        own(facts, &mut findings, &mut notes);
        notes.push(
            "lockdown, devices and what is in the kernel only the node knows: run `nodefence doctor` there"
                .to_owned(),
        );
        let cni = networks.into_iter().map(|Network { name, .. }| name.to_owned()).collect();
        Self { items, not_found, api_server: facts.server.clone(), proxy, cni, findings, notes }
    }

    /// Whether something was found.
    pub(super) fn has_findings(&self) -> bool {
        !self.findings.is_empty() || self.items.iter().any(|row| !row.findings.is_empty())
    }
}

fn info(node: &Node) -> Option<&k8s_openapi::api::core::v1::NodeSystemInfo> {
    node.status.as_ref()?.node_info.as_ref()
}

fn row(node: &Node) -> PreflightRow {
    let Some(info) = info(node) else {
        let findings = vec!["its kubelet has not said what it is".to_owned()];
        return PreflightRow { node: node.name_any(), kernel: None, arch: None, os: None, findings };
    };
    let mut findings = Vec::new();
    match version(&info.kernel_version) {
        Some(version) if version < KERNEL => {
            findings.push(format!("the kernel is too old: expected {}.{} or later", KERNEL.0, KERNEL.1));
        }
        Some(_) => {}
        None => findings.push("the kernel's version is not understood".to_owned()),
    }
    if !PROCESSORS.contains(&info.architecture.as_str()) {
        findings.push("no agent is built for this processor: expected amd64 or arm64".to_owned());
    }
    PreflightRow {
        node: node.name_any(),
        kernel: Some(info.kernel_version.clone()),
        arch: Some(info.architecture.clone()),
        os: Some(info.os_image.clone()),
        findings,
    }
}

/// The first two numbers of a version, as of `v1.36.3` and `6.1.0-18-amd64`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn server(told: Option<&str>, findings: &mut Vec<String>, notes: &mut Vec<String>) {
    match told.and_then(version) {
        Some(version) if version < SERVER => findings.push(format!(
            "the API server is too old: expected {}.{} or later, which has ValidatingAdmissionPolicy",
            SERVER.0, SERVER.1
        )),
        Some(_) => {}
        None => notes.push("the API server's version is not known".to_owned()),
    }
}

/// The part of kube-proxy's configuration that is read.
#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    mode: String,
}

/// kube-proxy's mode, as its ConfigMap says it (kubeadm's name and key).
fn proxy(
    read: &Result<Option<ConfigMap>, String>,
    findings: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Option<String> {
    let map = match read {
        Ok(Some(map)) => map,
        Ok(None) => {
            notes.push(
                "kube-proxy's mode is not known: there is no ConfigMap kube-system/kube-proxy".to_owned(),
            );
            return None;
        }
        Err(why) => {
            notes.push(format!("kube-proxy's mode is not known: {why}"));
            return None;
        }
    };
    let text = map.data.as_ref().and_then(|data| data.get("config.conf"));
    let read = text.and_then(|text| serde_saphyr::from_str::<Configuration>(text).ok());
    let Some(Configuration { mode }) = read else {
        notes.push(
            "kube-proxy's mode is not known: ConfigMap kube-system/kube-proxy has no config.conf that is understood"
                .to_owned(),
        );
        return None;
    };
    // An empty mode is kube-proxy's default, iptables.
    let mode = if mode.is_empty() { "iptables".to_owned() } else { mode };
    if !["iptables", "ipvs", "nftables"].contains(&mode.as_str()) {
        findings.push(format!("kube-proxy's mode is {mode}: expected ipvs, nftables or iptables"));
    }
    Some(mode)
}

/// The note about a cluster that has no pod network that is known by name.
fn no_network(facts: &Facts, networks: &[Network]) -> Option<String> {
    let sets = facts.daemon_sets.as_ref().ok()?;
    if !networks.is_empty() {
        return None;
    }
    let has_proxy = sets.iter().any(|set| set.name_any() == "kube-proxy");
    Some(match (&facts.kube_proxy, has_proxy) {
        (Ok(None), false) => "there is no pod network that is known, and neither a DaemonSet nor a ConfigMap of kube-proxy: something may replace it, \
             and agents only observe there; `nodefence doctor` on a node says whether"
            .to_owned(),
        _ => "there is no pod network that is known; `nodefence doctor` on a node says whether kube-proxy is replaced".to_owned(),
    })
}

/// Whether the namespace takes the agents' pods, which are privileged.
fn own(facts: &Facts, findings: &mut Vec<String>, notes: &mut Vec<String>) {
    let namespace = &facts.namespace;
    match &facts.own {
        Ok(Some(own)) => match own.labels().get(POD_SECURITY).map(String::as_str) {
            Some("privileged") => {}
            Some(level) => findings.push(format!(
                "namespace {namespace} has {POD_SECURITY}={level}, which refuses the agents' pods: expected privileged"
            )),
            None => notes.push(format!(
                "namespace {namespace} has no label {POD_SECURITY}: the API server's default must allow privileged pods"
            )),
        },
        Ok(None) => notes.push(format!(
            "namespace {namespace} is not there yet: create it with the label {POD_SECURITY}=privileged"
        )),
        Err(why) => notes.push(format!("namespace {namespace} was not read: {why}")),
    }
}

/// The report as text.
pub(super) fn text(report: &PreflightReport) -> String {
    let cni = (!report.cni.is_empty()).then(|| report.cni.join(","));
    let table = columns(
        ["NODE", "KERNEL", "ARCH", "OS", "PROXY", "CNI", "FINDINGS"],
        report.items.iter().map(|row| {
            [
                row.node.clone(),
                or_dash(row.kernel.as_ref()),
                or_dash(row.arch.as_ref()),
                or_dash(row.os.as_ref()),
                or_dash(report.proxy.as_ref()),
                or_dash(cni.as_ref()),
                or_dash((!row.findings.is_empty()).then(|| row.findings.join("; "))),
            ]
        }),
    );
    let findings = report.findings.iter().map(|finding| format!("cluster: {finding}"));
    [table, lines(findings)].join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, kernel: &str, arch: &str, os: &str) -> Node {
        let info = json!({
            "kernelVersion": kernel, "architecture": arch, "operatingSystem": os, "osImage": "Debian 12",
            "bootID": "", "containerRuntimeVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
            "machineID": "", "systemUUID": "",
        });
        read(json!({ "metadata": { "name": name }, "status": { "nodeInfo": info } }))
    }

    fn read<T: for<'de> Deserialize<'de>>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn set(name: &str) -> DaemonSet {
        read(json!({ "metadata": { "name": name } }))
    }

    fn good() -> Facts {
        let config =
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";
        Facts {
            server: Some("v1.36.3".to_owned()),
            nodes: vec![node("a", "6.1.0-18-amd64", "amd64", "linux")],
            daemon_sets: Ok(vec![set("kindnet")]),
            kube_proxy: Ok(Some(read(json!({ "data": { "config.conf": config } })))),
            cilium: None,
            namespace: "nodefence".to_owned(),
            own: Ok(Some(read(json!({ "metadata": { "labels": { POD_SECURITY: "privileged" } } })))),
        }
    }

    #[test]
    fn nothing_is_found_on_good_nodes() {
        let report = PreflightReport::new(&good(), &[]);
        assert!(!report.has_findings(), "{report:#?}");
        assert_eq!(report.proxy.as_deref(), Some("ipvs"));
        assert_eq!(report.notes.len(), 1, "{report:#?}");
    }

    #[test]
    fn kernels_and_processors_are_judged() {
        for (kernel, arch, finding) in [
            ("5.10.0", "arm64", None),
            ("5.9.16", "amd64", Some("expected 5.10")),
            ("4.18.0-553.el8.x86_64", "amd64", Some("expected 5.10")),
            ("10.0", "amd64", None),
            ("new", "amd64", Some("not understood")),
            ("6.1.0", "riscv64", Some("amd64 or arm64")),
        ] {
            let facts = Facts { nodes: vec![node("a", kernel, arch, "linux")], ..good() };
            let report = PreflightReport::new(&facts, &[]);
            let found = report.items[0].findings.join("; ");
            assert_eq!(report.has_findings(), finding.is_some(), "{kernel}: {found}");
            assert!(found.contains(finding.unwrap_or_default()), "{kernel}: {found}");
        }
    }

    #[test]
    fn nodes_without_linux_are_left_out_and_unknown_names_told() {
        let nodes = vec![node("w", "10.0.1", "amd64", "windows"), node("b", "6.1.0", "amd64", "linux")];
        let facts = Facts { nodes, ..good() };
        let report = PreflightReport::new(&facts, &[]);
        assert_eq!(
            (report.items.len(), report.notes[0].as_str()),
            (1, "1 node without Linux: no agent runs there")
        );
        let report = PreflightReport::new(&facts, &["b".to_owned(), "c".to_owned()]);
        assert_eq!((report.items[0].node.as_str(), report.not_found), ("b", vec!["c".to_owned()]));
        let blank: Node = read(json!({ "metadata": { "name": "new" } }));
        let report = PreflightReport::new(&Facts { nodes: vec![blank], ..good() }, &[]);
        assert!(report.has_findings(), "{report:#?}");
    }

    #[test]
    fn the_cluster_is_judged_too() {
        let old = Facts { server: Some("v1.29.9".to_owned()), ..good() };
        let userspace = "mode: userspace\n";
        let userspace = Ok(Some(read(json!({ "data": { "config.conf": userspace } }))));
        let other = Facts { kube_proxy: userspace, ..good() };
        let strict = json!({ "metadata": { "labels": { POD_SECURITY: "baseline" } } });
        let strict = Facts { own: Ok(Some(read(strict))), ..good() };
        for (facts, finding) in [(old, "1.30"), (other, "userspace"), (strict, "baseline")] {
            let report = PreflightReport::new(&facts, &[]);
            assert!(report.has_findings() && report.findings[0].contains(finding), "{report:#?}");
        }
    }

    #[test]
    fn a_cluster_without_a_known_network_is_told() {
        let notes = |sets: Vec<DaemonSet>, kube_proxy| {
            let facts = Facts { daemon_sets: Ok(sets), kube_proxy, ..good() };
            let report = PreflightReport::new(&facts, &[]);
            assert!(!report.has_findings(), "{report:#?}");
            report.notes.join("\n")
        };
        let may_be_replaced = |text: &str| text.contains("something may replace it");
        let found = notes(vec![set("custom"), set("kube-proxy")], Ok(None));
        assert!(found.contains("no pod network that is known;") && !may_be_replaced(&found), "{found}");
        let found = notes(vec![set("custom")], good().kube_proxy);
        assert!(found.contains("no pod network that is known;") && !may_be_replaced(&found), "{found}");
        let found = notes(vec![set("custom")], Ok(None));
        assert!(may_be_replaced(&found), "{found}");
        let found = notes(vec![set("kindnet")], Ok(None));
        assert!(!found.contains("no pod network"), "{found}");
    }

    #[test]
    fn what_cannot_be_read_is_a_note() {
        let facts = Facts {
            server: None,
            daemon_sets: Err("forbidden".to_owned()),
            kube_proxy: Err("forbidden".to_owned()),
            own: Ok(None),
            ..good()
        };
        let report = PreflightReport::new(&facts, &[]);
        assert!(!report.has_findings(), "{report:#?}");
        assert_eq!(report.notes.len(), 5, "{report:#?}");
        assert_eq!(report.proxy, None);
        for map in [json!({}), json!({ "data": { "config.conf": "mode: [1" } })] {
            let facts = Facts { kube_proxy: Ok(Some(read(map))), ..good() };
            let report = PreflightReport::new(&facts, &[]);
            assert!(report.notes[0].contains("no config.conf"), "{report:#?}");
        }
        let facts =
            Facts { kube_proxy: Ok(Some(read(json!({ "data": { "config.conf": "mode: ''" } })))), ..good() };
        assert_eq!(PreflightReport::new(&facts, &[]).proxy.as_deref(), Some("iptables"));
    }
}
