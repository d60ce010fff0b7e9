//! The topologies without nodefence: each client reaches both backends, and clients of a hung node stall.

use std::time::Duration;

use anyhow::{Result, ensure};
use nodefence_tests::{
    Cluster, Conn, Family, Options, Outcome, Overlay, Place,
    client::{UdpConn, try_new},
    topology::Service,
};

const LIMIT: Duration = Duration::from_secs(3);

fn reachable(options: Options) -> Result<()> {
    let cluster = Cluster::new(options)?;
    for family in [Family::V4, Family::V6] {
        for place in Place::ALL {
            let ns = cluster.at(place);
            for name in ["node-b", "node-c"] {
                for service in [Service::Web, Service::Host] {
                    let to = cluster.service(service, place, family);
                    let mut conn = Conn::connect_to(ns, to, name, LIMIT)?;
                    conn.echo(&nodefence_tests::client::pattern(100_000))?;
                    ensure!(conn.who()? == name);
                }
                UdpConn::connect_to(ns, cluster.service(Service::Dns, place, family), name, LIMIT)?;
            }
        }
    }
    Ok(())
}

#[test]
fn host_gateway_with_masquerade() -> Result<()> {
    reachable(Options::default())
}

#[test]
fn host_gateway_without_masquerade_and_offloads() -> Result<()> {
    reachable(Options { masquerade: false, offloads: false, ..Options::default() })
}

#[test]
fn vxlan() -> Result<()> {
    reachable(Options { overlay: Overlay::Vxlan, ..Options::default() })?;
    reachable(Options { overlay: Overlay::Vxlan, masquerade: false, ..Options::default() })
}

#[test]
fn vxlan_metadata() -> Result<()> {
    reachable(Options { overlay: Overlay::VxlanMetadata, ..Options::default() })
}

#[test]
fn tun() -> Result<()> {
    reachable(Options { overlay: Overlay::Tun, ..Options::default() })
}

#[test]
fn without_nodefence_clients_of_a_hung_node_stall() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    let mut conn = Conn::connect_to(&cluster.client, to, "node-b", LIMIT)?;
    let mut idle = Conn::connect_to(&cluster.client, to, "node-b", LIMIT)?;
    idle.long_poll()?;
    cluster.b.freeze()?;
    conn.limit(Some(Duration::from_millis(1_500)))?;
    ensure!(conn.request() == Outcome::TimedOut, "a frozen server answered");
    ensure!(idle.wait_end(Duration::from_millis(500)) == Outcome::TimedOut);
    // The node's kernel still accepts connections, so new ones go there and stall too.
    let outcomes: Vec<_> =
        (0..20).map(|_| try_new(&cluster.client, to, Duration::from_millis(300)).0).collect();
    ensure!(outcomes.contains(&Outcome::TimedOut), "{outcomes:?}");
    ensure!(outcomes.contains(&Outcome::Answered), "{outcomes:?}");
    cluster.b.thaw()?;
    conn.limit(Some(LIMIT))?;
    let mut name = [0; 7];
    std::io::Read::read_exact(&mut conn.stream, &mut name)?;
    ensure!(&name == b"node-b\n");
    Ok(())
}
