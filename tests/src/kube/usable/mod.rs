//! Compares `plan::usable` with a real kube-proxy. kube-proxy gets Services and EndpointSlices through the API, and nodefence gets the same through the cluster
//! file. Both must use the same endpoints, for each virtual address and on each node.

mod cases;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use cases::{Case, NODES};
use nodefence::{
    cluster::{self, ClusterView, Family, TrafficPolicy},
    plan::{Proxy, Target, usable},
};
use serde_json::json;

use super::{
    ControlPlane, KubeProxy, Mode, Rules, Virtual, Way,
    objects::{Port, Service},
};
use crate::{Netns, emulated, long};

/// The number of random cases beside those of the table.
const RANDOM: usize = 80;

/// The least number of comparisons with each outcome in each IP version. With fewer the test would show little.
const ENOUGH: usize = 40;

/// How long differences may last. kube-proxy learns its node's zone after its first sync, and then syncs again.
fn settle_limit() -> Duration {
    // The time of a sync of all cases on an emulated processor was not measured, so it has a generous limit. Only the long run has all cases there.
    Duration::from_secs(if emulated() && long() { 120 } else { 20 })
}

/// How often each outcome was seen in each IP version: all endpoints, some endpoints, reject, drop, nothing.
type Seen = BTreeMap<(Family, &'static str), usize>;

/// Writes the nodes and the cases to the API server.
fn write(control: &ControlPlane, cases: &[Case]) -> Result<()> {
    for node in NODES {
        control.node(node.name, node.address.parse()?, node.zone)?;
    }
    for case in cases {
        control.service(&case.service())?;
        for slice in case.slices() {
            control.slice(&slice)?;
        }
    }
    Ok(())
}

/// The nodes and the cases as a cluster file has them, parsed by nodefence.
fn view(cases: &[Case]) -> Result<ClusterView> {
    let nodes =
        NODES.iter().map(|node| json!({"name": node.name, "address": node.address, "zone": node.zone}));
    let services = cases.iter().map(Case::file);
    let file = json!({"nodes": nodes.collect::<Vec<_>>(), "services": services.collect::<Vec<_>>()});
    cluster::parse(&file.to_string(), false).map_err(|problem| anyhow::anyhow!("{problem}: {file:#}"))
}

/// A virtual address of a port of a Service, and whether its policy is Local.
#[derive(Clone, Copy)]
struct Address<'a> {
    family: Family,
    port: &'a Port,
    to: Virtual,
    local: bool,
}

/// All virtual addresses of a Service.
fn addresses(service: &Service) -> impl Iterator<Item = Address<'_>> {
    let of = |family: Family, port: &Port| {
        let at = |ips: &[IpAddr]| -> Vec<Virtual> {
            let own = ips.iter().filter(|ip| Family::of(**ip) == family);
            own.map(|ip| Virtual::Service(*ip, port.port)).collect()
        };
        let inside = at(&service.cluster_ips).into_iter().map(|to| (to, service.internal_local));
        let outside = at(&service.external_ips).into_iter().chain(at(&service.balancer_ips));
        let outside = outside.chain(port.node_port.map(Virtual::NodePort));
        inside.chain(outside.map(|to| (to, service.external_local))).collect::<Vec<_>>()
    };
    Family::ALL.into_iter().flat_map(move |family| {
        service.ports.iter().flat_map(move |port| {
            of(family, port).into_iter().map(move |(to, local)| Address { family, port, to, local })
        })
    })
}

/// Compares the endpoints for one virtual address of a case with those that kube-proxy has programmed.
fn compare(
    case: &Case,
    view: &ClusterView,
    proxy: &Proxy<'_>,
    rules: &Rules,
    Address { family, port, to, local }: Address<'_>,
    seen: &mut Seen,
) -> Result<()> {
    let services = view.services.as_deref().context("no Services")?;
    let name = format!("default/{}", case.name);
    let service = services.iter().find(|service| service.name == name).context("not in the view")?;
    let index = service.ports.iter().position(|known| known.name == port.name).context("no such port")?;
    let policy = if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let target = Target { service, port: index, family, policy };
    let ours: BTreeSet<_> = target.sockets(&usable(&target, proxy, |_| true)).into_iter().collect();
    let theirs = rules.way(&port.protocol.to_lowercase(), to)?;
    let same = match &theirs {
        Way::To(endpoints) => *endpoints == ours && !ours.is_empty(),
        Way::Reject | Way::Drop => ours.is_empty() && service.proxied(family),
        Way::Nothing => ours.is_empty() && !service.proxied(family),
    };
    let what = (family, port.protocol, to);
    ensure!(same, "on {}, {what:?}: kube-proxy {theirs:?}, we {ours:?}; {case:?}", proxy.node);
    let there = service.endpoints.iter().filter_map(|endpoint| service.socket(index, endpoint));
    let there: BTreeSet<_> = there.filter(|at| Family::of(at.ip()) == family).collect();
    let outcome = match theirs {
        Way::To(used) if used == there => "all",
        Way::To(_) => "some",
        Way::Reject => "reject",
        Way::Drop => "drop",
        Way::Nothing => "nothing",
    };
    *seen.entry((family, outcome)).or_default() += 1;
    Ok(())
}

/// Compares all cases in this mode, on all nodes.
///
/// # Errors
/// Fails if endpoints differ. The error names every address for which they do.
pub fn holds(mode: Mode) -> Result<()> {
    // An emulated processor gets fewer cases, since kube-proxy takes minutes for all of them there. Other modes run all cases on this machine's own kernel.
    let fewer = emulated() && !long();
    let (cases, seed) = cases::all(if fewer { RANDOM / 4 } else { RANDOM }, fewer);
    let view = view(&cases)?;
    let ns = Arc::new(Netns::new("kube-usable")?);
    // Node ports need an address that is not a loopback address.
    ns.ip("addr add 10.2.0.1/32 dev lo")?;
    ns.ip("addr add fd00:2::1/128 dev lo")?;
    let control = ControlPlane::start(&ns)?;
    write(&control, &cases)?;
    let mut seen = Seen::new();
    let mut different = Vec::new();
    for node in NODES {
        different.extend(on(node.name, mode, (&cases, &view), (&ns, &control), &mut seen)?);
    }
    println!("{mode}: {} Services (seed {seed}) on {} nodes: {seen:?}", cases.len(), NODES.len());
    if !different.is_empty() {
        bail!("{} differ (seed {seed}):\n{}", different.len(), different.join("\n"));
    }
    let mut wanted = vec!["all", "some", "reject"];
    // In IPVS mode nothing is dropped: a virtual server without real servers refuses, whatever the policy is.
    if mode != Mode::Ipvs {
        wanted.push("drop");
    }
    for outcome in Family::ALL.into_iter().flat_map(|family| wanted.iter().map(move |what| (family, *what))) {
        let count = seen.get(&outcome).copied().unwrap_or_default();
        ensure!(count >= ENOUGH, "only {count} comparisons end in {outcome:?}: {seen:?}");
    }
    Ok(())
}

/// Changes a node's zone and changes it back, so that kube-proxy learns the zone. kube-proxy may get its node before the handler that uses the zone is
/// registered. Then the handler learns the zone only at the node's next change (`NodeTopologyConfig`, pkg/proxy/config/config.go, v1.36.3), and hints have no
/// effect until then. That happened in one of several runs.
fn tell_zone(control: &ControlPlane, name: &str) -> Result<()> {
    let Some(zone) = NODES.iter().find(|node| node.name == name).and_then(|node| node.zone) else {
        return Ok(());
    };
    for zone in ["elsewhere", zone] {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        control.api.apply(&format!("/api/v1/nodes/{name}"), &node)?;
    }
    Ok(())
}

/// Runs kube-proxy for a node and returns the differences there. Afterwards nothing of that kube-proxy is left.
fn on(
    node: &str,
    mode: Mode,
    (cases, view): (&[Case], &ClusterView),
    (ns, control): (&Arc<Netns>, &ControlPlane),
    seen: &mut Seen,
) -> Result<Vec<String>> {
    let kube_proxy = KubeProxy::start(control, ns, node, mode)?;
    tell_zone(control, node)?;
    let proxy = Proxy::of(view, node, mode);
    let look = || -> Result<(Vec<String>, Seen)> {
        let mut different = Vec::new();
        let mut counts = Seen::new();
        let rules = |family| Rules::read(ns, mode, family).map(|rules| (family, rules));
        let rules = Family::ALL.into_iter().map(rules).collect::<Result<BTreeMap<_, _>>>()?;
        for case in cases {
            for address in addresses(&case.service()) {
                if let Err(error) = compare(case, view, &proxy, &rules[&address.family], address, &mut counts)
                {
                    different.push(format!("{error:#}"));
                }
            }
        }
        Ok((different, counts))
    };
    let begun = Instant::now();
    let (mut different, mut counts) = look()?;
    while !different.is_empty() && begun.elapsed() <= settle_limit() {
        thread::sleep(Duration::from_millis(500));
        (different, counts) = look()?;
    }
    for (outcome, count) in counts {
        *seen.entry(outcome).or_default() += count;
    }
    kube_proxy.stop()?;
    // The next kube-proxy is for another node, so the rules of this one are deleted.
    ns.exec("nft flush ruleset")?;
    if mode == Mode::Ipvs {
        ns.exec("ipvsadm -C")?;
        ns.ip("link del kube-ipvs0")?;
    }
    Ok(different)
}
