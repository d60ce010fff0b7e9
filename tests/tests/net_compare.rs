//! Another program changes entries of the pinned maps. The agent finds that at its next comparison, writes the entries anew and counts them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, HashMap, Map, MapData};
use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey, Verdict, port_flags, port_kinds};
use nodefence_tests::{Agent, Cluster, Family, Options, agent::PINNED_MAPS, client::wait_until, emulated};

/// A generous limit. After each step of a comparison the agent rests some 600 times as long as the step took. On an emulated processor a step takes tens of
/// milliseconds.
fn limit() -> Duration {
    Duration::from_secs(if emulated() { 300 } else { 60 })
}

struct Maps {
    backends: HashMap<MapData, Addr, BackendEntry>,
    ports: HashMap<MapData, PortKey, u32>,
    nodes: Array<MapData, NodeEntry>,
}

fn pinned(name: &str) -> Result<Map> {
    Ok(MapData::from_pin(format!("{PINNED_MAPS}/{name}")).and_then(Map::from_map_data)?)
}

/// Works on the agent's maps, in its namespace.
fn with_maps<T: Send + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(&mut Maps) -> Result<T> + Send + 'static,
) -> Result<T> {
    cluster.a.ns.run(move || {
        work(&mut Maps {
            backends: pinned("backends")?.try_into()?,
            ports: pinned("ports")?.try_into()?,
            nodes: pinned("nodes")?.try_into()?,
        })
    })
}

/// All entries, without the time until which verdicts hold, since that changes each second.
fn contents(cluster: &Cluster) -> Result<Vec<String>> {
    with_maps(cluster, |maps| {
        let mut all = Vec::new();
        for entry in maps.backends.iter() {
            all.push(format!("{:?}", entry?));
        }
        for entry in maps.ports.iter() {
            all.push(format!("{:?}", entry?));
        }
        for (index, entry) in (0_u32..).zip(maps.nodes.iter()) {
            let entry = entry?;
            if entry.generation != 0 {
                all.push(format!("{index}: {:?}", NodeEntry { until: u64::from(entry.until > 0), ..entry }));
            }
        }
        all.sort();
        Ok(all)
    })
}

/// The number of comparisons of all entries, and the number of entries that differed.
fn compared(agent: &Agent) -> Result<(u64, u64)> {
    let status = agent.json(&["status"])?;
    let plane = &status["dataplane"];
    ensure!(plane["compare_error"].is_null(), "{plane:#}");
    let number = |name: &str| plane[name].as_u64().with_context(|| format!("{name}: {plane:#}"));
    Ok((number("compared")?, number("differed")?))
}

/// Waits for this many comparisons more. Gives the number of entries that differed since the agent began.
fn after(agent: &Agent, more: u64) -> Result<u64> {
    let (times, _) = compared(agent)?;
    let over = || compared(agent).is_ok_and(|(now, _)| now >= times + more);
    wait_until("all is compared", limit(), over).with_context(|| agent.log())?;
    Ok(compared(agent)?.1)
}

#[test]
fn what_somebody_else_changes_is_mended_and_counted() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let file = cluster.with_own_backends(&cluster.services_file());
    let every = ["--compare-every", "1s", "--proxy", "nftables"];
    let agent = Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &every)?;
    // Some ports are exempt while both nodes are flagged.
    agent.expect(&["flag", "node-b", "--force"])?;
    agent.expect(&["flag", "node-c", "--force"])?;
    ensure!(after(&agent, 1)? == 0, "{}", agent.log());
    let before = contents(&cluster)?;
    let of_own = agent.node("node-a")?["index"].as_u64().context("an index")?;
    let b = cluster.b.pod_address(Family::V4);
    let c = cluster.c.pod_address(Family::V4);
    with_maps(&cluster, move |maps| {
        let of_c = maps.backends.get(&c.into(), 0)?;
        maps.backends.remove(&b.into())?;
        maps.backends.insert(&Addr::v4([10, 244, 9, 9]), &of_c, 0)?;
        maps.backends.insert(&c.into(), &BackendEntry { generation: of_c.generation + 1, ..of_c }, 0)?;
        maps.ports.remove(&PortKey::exempt(c.into(), 5300, 17))?;
        maps.ports.insert(&PortKey::exempt(c.into(), 5301, 17), &port_flags::EXEMPT, 0)?;
        maps.ports.insert(&PortKey::endpoint(c.into(), 5301, 17), &port_flags::CUT, 0)?;
        // The change cuts the own node, and an index that no node has.
        let own = maps.nodes.get(&u32::try_from(of_own)?, 0)?;
        let cut = NodeEntry { verdict: Verdict::Flagged as u32, until: u64::MAX, ..own };
        maps.nodes.set(u32::try_from(of_own)?, &cut, 0)?;
        maps.nodes.set(99, &NodeEntry { generation: 3, ..cut }, 0)?;
        Ok(())
    })?;
    ensure!(contents(&cluster)? != before);
    let mended = || {
        // The agent takes back the verdict of an index without an owner. The generation of that index stays.
        let there = contents(&cluster).unwrap_or_default();
        there.into_iter().filter(|entry| !entry.starts_with("99: ")).eq(before.iter().cloned())
    };
    wait_until("all is as it was", limit(), mended)
        .with_context(|| format!("{:#?}\n{before:#?}\n{}", contents(&cluster), agent.log()))?;
    let left = with_maps(&cluster, |maps| Ok(maps.nodes.get(&99, 0)?))?;
    ensure!(left.verdict == Verdict::Healthy as u32, "{left:?}");
    // Three backends, a port of an endpoint, two exempt ports and two nodes differed, each once.
    ensure!(after(&agent, 2)? == 8, "{:?}\n{}", compared(&agent)?, agent.log());
    let status = agent.expect(&["status"])?;
    ensure!(status.contains("  NF18  8 entries were changed by somebody else"), "{status}");
    Ok(())
}

/// The agent looks up each key of its tables, so it finds keys that are missing.
#[test]
fn maps_that_somebody_empties_are_filled_again() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let file = cluster.with_own_backends(&cluster.services_file());
    let every = ["--compare-every", "1s", "--proxy", "nftables"];
    let agent = Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &every)?;
    let before = contents(&cluster)?;
    let lost = with_maps(&cluster, |maps| {
        let mut lost = 0;
        let backends: Vec<Addr> = maps.backends.keys().collect::<Result<_, _>>()?;
        for addr in backends {
            maps.backends.remove(&addr)?;
            lost += 1;
        }
        let ports: Vec<PortKey> = maps.ports.keys().collect::<Result<_, _>>()?;
        for key in ports.into_iter().filter(|key| key.kind == port_kinds::ENDPOINT) {
            maps.ports.remove(&key)?;
            lost += 1;
        }
        Ok(lost)
    })?;
    ensure!(lost >= 4, "{before:#?}");
    wait_until("all is as it was", limit(), || contents(&cluster).is_ok_and(|there| there == before))
        .with_context(|| format!("{:#?}\n{before:#?}\n{}", contents(&cluster), agent.log()))?;
    ensure!(after(&agent, 1)? == lost, "{:?}\n{}", compared(&agent)?, agent.log());
    Ok(())
}
