//! Our own maps.

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use nodefence_common::{Addr, BackendEntry, PortKey, port_flags};
use nodefence_tests::{
    Cluster, Family,
    audit::{outcomes, repair, wait_faults},
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

type Backends = HashMap<MapData, Addr, BackendEntry>;
type Ports = HashMap<MapData, PortKey, u32>;

fn pinned(name: &str) -> Result<Map> {
    Ok(MapData::from_pin(format!("/sys/fs/bpf/nodefence/v1/{name}")).and_then(Map::from_map_data)?)
}

/// Works on the agent's maps, in its namespace.
fn with_maps<T: Send + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(&mut Backends, &mut Ports) -> Result<T> + Send + 'static,
) -> Result<T> {
    cluster.a.ns.run(move || {
        let (mut backends, mut ports) = (pinned("backends")?.try_into()?, pinned("ports")?.try_into()?);
        work(&mut backends, &mut ports)
    })
}

fn contents(cluster: &Cluster) -> Result<Vec<String>> {
    with_maps(cluster, |backends, ports| {
        let mut all = Vec::new();
        for entry in backends.iter() {
            all.push(format!("{:?}", entry?));
        }
        for entry in ports.iter() {
            all.push(format!("{:?}", entry?));
        }
        all.sort();
        Ok(all)
    })
}

#[test]
fn entries_that_differ_are_found_and_written_again() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    // Both nodes: something is kept.
    agent.expect(&["flag", "node-b", "--force"])?;
    agent.expect(&["flag", "node-c", "--force"])?;
    nothing_for_a_while(&agent)?;
    let before = contents(&cluster)?;
    let (b, c) = (cluster.b.pod_address(Family::V4), cluster.c.pod_address(Family::V4));
    with_maps(&cluster, move |backends, ports| {
        let of_c = backends.get(&c.into(), 0)?;
        backends.remove(&b.into())?;
        backends.insert(&Addr::v4([10, 244, 9, 9]), &of_c, 0)?;
        ports.remove(&PortKey::kept(c.into(), 5300, 17))?;
        ports.insert(&PortKey::kept(c.into(), 5301, 17), &port_flags::KEEP, 0)?;
        Ok(())
    })?;
    let faults = [
        "map-entry backend 10.244.2.2",
        "map-entry backend 10.244.9.9",
        "map-entry kept 10.244.3.2:5300 (protocol 17)",
        "map-entry kept 10.244.3.2:5301 (protocol 17)",
    ];
    let audit = wait_faults(&agent, &faults, LIMIT)?;
    let row = audit.row(faults[1]).context("no row")?;
    ensure!(row["detail"] == "not planned", "{row}");
    ensure!(repair(&agent, &["--kind", "stale-udp,flagged-flow,sysctl"])? == outcomes([]));
    ensure!(contents(&cluster)? != before);
    ensure!(repair(&agent, &["--kind", "map-entry"])? == outcomes([("map-entry mended", 4)]));
    ensure!(contents(&cluster)? == before, "{:#?}\n{before:#?}", contents(&cluster)?);
    nothing_for_a_while(&agent)
}
