//! `plan::usable` beside a real kube-proxy: the same Services and EndpointSlices, once through the API to kube-proxy and once
//! through the cluster file to us, must lead to the same endpoints, for each virtual address, on each node.

mod cases;

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use cases::{Case, NODES, PORT};
use nodefence::{
    cluster::{self, ClusterView, Family, TrafficPolicy},
    plan::{Proxy, Target, usable},
};
use serde_json::json;

use super::{ControlPlane, KubeProxy, Mode, Rules, Virtual, Way, objects::Slice};
use crate::Netns;

/// Random cases beside those of the table.
const RANDOM: usize = 80;

/// Of each outcome there must be so many comparisons, else this shows little.
const ENOUGH: usize = 40;

/// How often each outcome was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    all: usize,
    some: usize,
    reject: usize,
    drop: usize,
}

fn write(control: &ControlPlane, cases: &[Case]) -> Result<()> {
    for node in NODES {
        control.node(node.name, node.address.parse()?, node.zone)?;
    }
    for case in cases {
        let service = case.service();
        control.service(&service)?;
        control.slice(&Slice::new(&service, case.endpoints.clone()))?;
    }
    Ok(())
}

/// The same as a cluster file says it.
fn view(cases: &[Case]) -> Result<ClusterView> {
    let nodes =
        NODES.iter().map(|node| json!({"name": node.name, "address": node.address, "zone": node.zone}));
    let services = cases.iter().map(Case::file);
    let file = json!({"nodes": nodes.collect::<Vec<_>>(), "services": services.collect::<Vec<_>>()});
    cluster::parse(&file.to_string(), false).map_err(|problem| anyhow::anyhow!("{problem}: {file:#}"))
}

/// Holds one virtual address of a case against what is programmed for it.
fn compare(
    case: &Case,
    view: &ClusterView,
    proxy: &Proxy<'_>,
    (rules, to): (&Rules, Virtual),
    local: bool,
    seen: &mut Seen,
) -> Result<()> {
    let services = view.services.as_deref().context("no Services")?;
    let name = format!("default/{}", case.name);
    let service = services.iter().find(|service| service.name == name).context("not in the view")?;
    let policy = if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let target = Target { service, port: 0, family: Family::V4, policy };
    let ours: BTreeSet<_> = target.sockets(&usable(&target, proxy, |_| true)).into_iter().collect();
    let theirs = rules.way("tcp", to)?;
    let same = match &theirs {
        Way::To(endpoints) => *endpoints == ours && !ours.is_empty(),
        Way::Reject | Way::Drop => ours.is_empty(),
        Way::Nothing => false,
    };
    ensure!(same, "on {}, {to:?}: kube-proxy {theirs:?}, we {ours:?}; {case:?}", proxy.node);
    match theirs {
        Way::To(endpoints) if endpoints.len() == case.endpoints.len() => seen.all += 1,
        Way::To(_) => seen.some += 1,
        Way::Reject => seen.reject += 1,
        Way::Drop => seen.drop += 1,
        Way::Nothing => {}
    }
    Ok(())
}

/// Whether it is so in this mode.
///
/// # Errors
/// Where it is not, with every address for which endpoints differ.
pub fn holds(mode: Mode) -> Result<()> {
    let (cases, seed) = cases::all(RANDOM);
    let view = view(&cases)?;
    let ns = Arc::new(Netns::new("kube-usable")?);
    // Node ports are those of addresses that are not loopback's.
    ns.ip("addr add 10.2.0.1/32 dev lo")?;
    let control = ControlPlane::start(&ns)?;
    write(&control, &cases)?;
    let (mut seen, mut different) = (Seen::default(), Vec::new());
    for node in NODES {
        different.extend(on(node.name, mode, (&cases, &view), (&ns, &control), &mut seen)?);
    }
    println!("{mode}: {} Services (seed {seed}) on {} nodes: {seen:?}", cases.len(), NODES.len());
    if !different.is_empty() {
        bail!("{} differ (seed {seed}):\n{}", different.len(), different.join("\n"));
    }
    let mut wanted = vec![("all", seen.all), ("some", seen.some), ("reject", seen.reject)];
    // A virtual server without real servers refuses, whatever the policy is.
    if mode != Mode::Ipvs {
        wanted.push(("drop", seen.drop));
    }
    for (outcome, count) in wanted {
        ensure!(count >= ENOUGH, "only {count} comparisons end in `{outcome}`: {seen:?}");
    }
    Ok(())
}

/// Starts kube-proxy for a node, and gives what differs there; nothing of it is left afterwards.
fn on(
    node: &str,
    mode: Mode,
    (cases, view): (&[Case], &ClusterView),
    (ns, control): (&Arc<Netns>, &ControlPlane),
    seen: &mut Seen,
) -> Result<Vec<String>> {
    let mut different = Vec::new();
    let kube_proxy = KubeProxy::start(control, ns, node, mode)?;
    let rules = Rules::read(ns, mode)?;
    let proxy = Proxy::of(view, node, mode);
    for case in cases {
        let service = case.service();
        let mut addresses = vec![(Virtual::Service(service.cluster_ip, PORT), case.internal_local)];
        let outside = service.external_ips.iter().map(|ip| Virtual::Service(*ip, PORT));
        let outside = outside.chain(service.ports[0].node_port.map(Virtual::NodePort));
        addresses.extend(outside.map(|to| (to, case.external_local)));
        for (to, local) in addresses {
            if let Err(error) = compare(case, view, &proxy, (&rules, to), local, seen) {
                different.push(format!("{error:#}"));
            }
        }
    }
    kube_proxy.stop()?;
    // The next one is another node's: nothing of this one may be left for it.
    ns.exec("nft flush ruleset")?;
    if mode == Mode::Ipvs {
        ns.exec("ipvsadm -C")?;
        ns.ip("link del kube-ipvs0")?;
    }
    Ok(different)
}
