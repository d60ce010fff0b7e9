//! Checks how a real kube-proxy on node A of the small cluster forwards to the servers. kube-proxy gets the Services from a real API server.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence::proxy::{Facts, ProxyChoice, judge};

use super::{
    ControlPlane, KubeProxy, Mode, Rules, Virtual, Way,
    objects::{self, Endpoint, Port, Slice},
};
use crate::{
    Cluster, Conn, Family, Netns, Node, Options, Place, Proxy,
    checks::SOON,
    client::{UdpConn, wait_until},
    topology::Service,
};

/// The time limit for kube-proxy to follow a change. It syncs once a second at most. The rest is for a busy machine.
const SYNCED: Duration = Duration::from_secs(30);

/// The number of counted connections. Each of two backends gets 100 of them on average, with a standard deviation of 7.
const CONNECTIONS: u32 = 200;
/// The fewest connections that a backend may get: five standard deviations below the mean.
const FEWEST: u32 = 65;

/// Services and endpoints of IPv4 alone.
pub const V4: &[Family] = &[Family::V4];

/// The Service as a Kubernetes object, with a ClusterIP of each of these IP versions, IPv4 first. Web and Dns share a ClusterIP, so they are two ports of one
/// object.
pub fn object(service: Service, families: &[Family]) -> objects::Service {
    let (name, parts): (_, &[Service]) = match service {
        Service::Web | Service::Dns => ("web", &[Service::Web, Service::Dns]),
        Service::Host => ("host", &[Service::Host]),
    };
    let ports = parts.iter().map(|part| {
        let (port, target, node_port) = part.ports();
        let (name, protocol) = if part.protocol() == "tcp" { ("http", "TCP") } else { ("dns", "UDP") };
        Port { name, protocol, port, target, node_port: Some(node_port) }
    });
    let cluster_ips = families.iter().map(|family| service.cluster_ip(*family)).collect();
    objects::Service {
        cluster_ips,
        ..objects::Service::new(name, service.cluster_ip(Family::V4), ports.collect())
    }
}

/// The endpoint that `node` has of a Service of the small cluster.
pub fn endpoint(service: Service, node: &Node, family: Family) -> Endpoint {
    Endpoint::ready(node.endpoint(service, family).ip(), node.name)
}

/// Writes the slice of a Service with these endpoints, which are all of one IP version. Without endpoints it is the slice of IPv4.
pub fn slice(control: &ControlPlane, service: Service, endpoints: Vec<Endpoint>) -> Result<()> {
    let v6 = endpoints.first().is_some_and(|endpoint| endpoint.address.is_ipv6());
    let mut slice = Slice::new(&object(service, V4), endpoints);
    if v6 {
        slice.name += "-v6";
    }
    control.slice(&slice)
}

/// The endpoints that these nodes have of a Service in IPv4.
fn on(service: Service, nodes: &[&Node]) -> Vec<Endpoint> {
    nodes.iter().map(|node| endpoint(service, node, Family::V4)).collect()
}

/// The way that kube-proxy should program for endpoints on these nodes.
fn way(service: Service, nodes: &[&Node]) -> Way {
    let port = service.ports().1;
    Way::To(on(service, nodes).iter().map(|endpoint| SocketAddr::new(endpoint.address, port)).collect())
}

/// The ways that kube-proxy has programmed for a Service's ClusterIP and node port.
fn programmed(ns: &Netns, mode: Mode, service: Service) -> Result<[Way; 2]> {
    let rules = Rules::read(ns, mode, nodefence::cluster::Family::V4)?;
    let (port, _, node_port) = service.ports();
    let cluster_ip = Virtual::Service(service.cluster_ip(Family::V4), port);
    Ok([
        rules.way(service.protocol(), cluster_ip)?,
        rules.way(service.protocol(), Virtual::NodePort(node_port))?,
    ])
}

/// Makes new connections from `place`. Returns how often each node answered.
fn answers(cluster: &Cluster, service: Service, place: Place) -> Result<BTreeMap<String, u32>> {
    let to = cluster.service(service, place, Family::V4);
    let mut answers = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        let name = if service.protocol() == "tcp" {
            Conn::connect(cluster.at(place), to, SOON)?.who()?
        } else {
            UdpConn::connect(cluster.at(place), to, SOON)?.who()?
        };
        *answers.entry(name).or_default() += 1;
    }
    Ok(answers)
}

/// Checks that a kube-proxy of this mode on node A of the small cluster sends connections of every client to every endpoint, and follows changes of the
/// endpoints.
///
/// # Errors
/// The error names the failed check.
pub fn holds(mode: Mode) -> Result<()> {
    let cluster = Cluster::new(Options { proxy: Proxy::Nobody, ..Options::default() })?;
    let control = ControlPlane::start(&cluster.a.ns)?;
    control.nodes(&cluster)?;
    for service in [Service::Web, Service::Host] {
        control.service(&object(service, V4))?;
        slice(&control, service, on(service, &[&cluster.b, &cluster.c]))?;
    }
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    ensure!(Conn::connect(&cluster.client, to, SOON).is_err(), "somebody forwards without kube-proxy");

    let proxy = KubeProxy::start(&control, &cluster.a.ns, cluster.a.name, mode)?;
    ensure!(proxy.ask("/proxyMode")? == mode.to_string(), "it runs in another mode");
    let found = cluster.a.ns.run(|| judge(ProxyChoice::Auto, &Facts::gather()));
    ensure!(
        found.mode.is_some_and(|found| found.to_string() == mode.to_string())
            && found.why == "kube-proxy says so",
        "{found}"
    );
    for service in Service::ALL {
        let ways = programmed(&cluster.a.ns, mode, service)?;
        let both = way(service, &[&cluster.b, &cluster.c]);
        ensure!(ways == [both.clone(), both], "{service:?}: {ways:?}");
        for place in Place::ALL {
            let answers =
                answers(&cluster, service, place).with_context(|| format!("{service:?}, {place:?}"))?;
            let names: Vec<&str> = answers.keys().map(String::as_str).collect();
            ensure!(names == ["node-b", "node-c"], "{service:?}, {place:?}: {answers:?}");
            ensure!(answers.values().all(|count| *count >= FEWEST), "{service:?}, {place:?}: {answers:?}");
        }
    }
    follows(&control, &cluster, &proxy)?;
    // kube-proxy's rules stay after its end.
    proxy.stop()?;
    let answers = answers(&cluster, Service::Web, Place::Outside)?;
    ensure!(answers.keys().eq(["node-b"]), "{answers:?}");
    Ok(())
}

/// Checks that kube-proxy follows when an endpoint leaves, when all leave, and when one comes back.
fn follows(control: &ControlPlane, cluster: &Cluster, proxy: &KubeProxy) -> Result<()> {
    let a = &cluster.a.ns;
    let b = &cluster.b;
    let c = &cluster.c;
    let becomes = |nodes: &[&Node], expected: Way| -> Result<()> {
        slice(control, Service::Web, on(Service::Web, nodes))?;
        let mut last = None;
        let same = wait_until("kube-proxy follows", SYNCED, || {
            let now = programmed(a, proxy.mode, Service::Web);
            let same = matches!(&now, Ok(ways) if *ways == [expected.clone(), expected.clone()]);
            last = Some(now);
            same
        });
        same.map(drop).with_context(|| format!("wanted {expected:?}, found {last:?}"))
    };
    becomes(&[c], way(Service::Web, &[c]))?;
    let answers = answers(cluster, Service::Web, Place::Outside)?;
    ensure!(answers.keys().eq(["node-c"]), "{answers:?}");
    becomes(&[], Way::Reject)?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    let Err(refused) = Conn::connect(&cluster.client, to, SOON) else {
        bail!("it connected, and there is no endpoint")
    };
    ensure!(refused.kind() == std::io::ErrorKind::ConnectionRefused, "{refused}");
    becomes(&[b], way(Service::Web, &[b]))
}
