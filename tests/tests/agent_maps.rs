//! The effect of a flag on the pinned maps. The tests compare all bytes of the maps before, during and after a flag, also around a lapse and a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf},
};
use nodefence::flags::monotonic_ns;
use nodefence_common::{Action, Reason, VERDICT_LIFETIME_NS, Verdict};
use nodefence_tests::{
    Agent, Netns,
    agent::{PINNED_MAPS, verdict_until},
    client::wait_until,
    four_nodes,
    promises::RENEWED,
    watch,
};
use serde_json::Value;

fn start() -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("maps")?;
    ns.ip("neigh add 10.9.1.1 lladdr 02:00:00:00:00:01 nud permanent dev v0")?;
    let agent = Agent::start(&ns, "node-a", &["v0"], four_nodes::FILE)?;
    Ok((ns, agent))
}

/// The map and the key of a value.
type Place = (&'static str, Vec<u8>);
type Pinned = BTreeMap<Place, Vec<u8>>;

fn open(name: &str) -> Result<Map> {
    Ok(MapData::from_pin(format!("{PINNED_MAPS}/{name}")).and_then(Map::from_map_data)?)
}

fn hash<const K: usize, const V: usize>(name: &'static str, out: &mut Pinned) -> Result<()>
where
    [u8; K]: Pod,
    [u8; V]: Pod,
{
    let map: HashMap<_, [u8; K], [u8; V]> = open(name)?.try_into()?;
    for row in map.iter() {
        let (key, value) = row?;
        out.insert((name, key.to_vec()), value.to_vec());
    }
    Ok(())
}

fn array<const V: usize>(name: &'static str, out: &mut Pinned) -> Result<()>
where
    [u8; V]: Pod,
{
    let map: Array<_, [u8; V]> = open(name)?.try_into()?;
    for (index, value) in (0_u32..).zip(map.iter()) {
        out.insert((name, index.to_be_bytes().to_vec()), value?.to_vec());
    }
    Ok(())
}

fn per_cpu<const V: usize>(name: &'static str, out: &mut Pinned) -> Result<()>
where
    [u8; V]: Pod,
{
    let map: PerCpuArray<_, [u8; V]> = open(name)?.try_into()?;
    for (index, values) in (0_u32..).zip(map.iter()) {
        out.insert((name, index.to_be_bytes().to_vec()), values?.concat());
    }
    Ok(())
}

/// All bytes of all pinned maps except two: the agent renews `lease` each second, and the ring `events` has no keys to look up.
fn pinned(ns: &Netns) -> Result<Pinned> {
    ns.run(|| {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(PINNED_MAPS)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                names.insert(entry.file_name().into_string().ok().context("a name")?);
            }
        }
        let known = [
            "answer_budget",
            "backends",
            "config",
            "counters",
            "devices",
            "events",
            "icmp_budget",
            "icmp_senders",
            "lease",
            "limits",
            "macs",
            "nodes",
            "ports",
            "route_vlans",
        ];
        ensure!(names.iter().eq(&known), "the pinned maps are not those that this test knows: {names:?}");
        let mut out = Pinned::new();
        hash::<16, 12>("backends", &mut out)?;
        hash::<20, 4>("ports", &mut out)?;
        hash::<4, 8>("devices", &mut out)?;
        hash::<8, 4>("macs", &mut out)?;
        hash::<8, 8>("route_vlans", &mut out)?;
        array::<48>("nodes", &mut out)?;
        array::<16>("config", &mut out)?;
        per_cpu::<16>("counters", &mut out)?;
        per_cpu::<16>("limits", &mut out)?;
        array::<16>("icmp_budget", &mut out)?;
        array::<16>("answer_budget", &mut out)?;
        hash::<16, 8>("icmp_senders", &mut out)?;
        Ok(out)
    })
}

/// The places whose values differ between two readings.
fn changed(before: &Pinned, after: &Pinned) -> BTreeSet<Place> {
    let places = before.keys().chain(after.keys());
    places.filter(|place| before.get(*place) != after.get(*place)).cloned().collect()
}

fn at(map: &'static str, index: u32) -> Place {
    (map, index.to_be_bytes().to_vec())
}

fn index(agent: &Agent, name: &str) -> Result<u32> {
    let node = agent.node(name)?;
    Ok(node["index"].as_u64().with_context(|| node.to_string())?.try_into()?)
}

/// `verdict`, `action` and `until` of a node's entry.
fn entry(pinned: &Pinned, node: u32) -> Result<(u32, u32, u64)> {
    let bytes = pinned.get(&at("nodes", node)).context("no entry")?;
    let word = |from: usize| Ok::<_, anyhow::Error>(u32::from_ne_bytes(bytes[from..from + 4].try_into()?));
    Ok((word(0)?, word(4)?, u64::from_ne_bytes(bytes[8..16].try_into()?)))
}

/// Waits until a verdict that is not renewed has lapsed.
fn lapse(ns: &Netns, node: u32) -> Result<()> {
    let limit = Duration::from_nanos(VERDICT_LIFETIME_NS);
    watch::wait_within("lapse of a verdict", limit, Instant::now(), || {
        verdict_until(ns, node).is_ok_and(|until| until < monotonic_ns())
    })
    .map(drop)
}

#[test]
fn a_flag_is_one_entry_and_leaves_nothing_behind() -> Result<()> {
    let (ns, agent) = start()?;
    let before = pinned(&ns)?;
    let b = index(&agent, "node-b")?;
    let report = agent.expect(&["flag", "node-b", "--for", "10m", "--reason", "disk", "-o", "json"])?;
    let report: Value = serde_json::from_str(&report)?;
    ensure!(report["backends"] == 2 && report["uncovered"] == Value::Array(vec![]), "{report}");
    let flagged = pinned(&ns)?;
    ensure!(changed(&before, &flagged) == [at("nodes", b)].into(), "{:?}", changed(&before, &flagged));
    let (verdict, action, until) = entry(&flagged, b)?;
    ensure!((verdict, action) == (Verdict::Flagged as u32, Action::Refuse as u32), "{verdict} {action}");
    ensure!(flagged[&at("nodes", b)].windows(7).any(|bytes| bytes == b"node-b\0"));
    let lead = until.saturating_sub(monotonic_ns());
    ensure!(lead <= VERDICT_LIFETIME_NS, "until is {lead} ns ahead");
    agent.unflag("node-b")?;
    let after = pinned(&ns)?;
    ensure!(after == before, "{:?}", changed(&before, &after));
    let again = agent.cli(&["unflag", "node-b"])?;
    ensure!(String::from_utf8_lossy(&again.stdout).contains("was not flagged"), "{again:?}");
    Ok(())
}

/// The verdict of a stopped agent lapses, and holds again once the agent goes on. The verdict of a killed agent lapses, and the next agent adopts it. Meanwhile the
/// kernel only counts the packet that passed.
#[test]
fn a_lapse_leaves_nothing_behind() -> Result<()> {
    let (ns, mut agent) = start()?;
    let mut before = pinned(&ns)?;
    let b = index(&agent, "node-b")?;
    for killed in [false, true] {
        agent.flag("node-b")?;
        let flagged = pinned(&ns)?;
        ensure!(changed(&before, &flagged) == [at("nodes", b)].into(), "{:?}", changed(&before, &flagged));
        if killed {
            agent.kill();
        } else {
            agent.proc()?.freeze()?;
        }
        lapse(&ns, b)?;
        let lapsed = pinned(&ns)?;
        ensure!(
            changed(&flagged, &lapsed).is_subset(&[at("nodes", b)].into()),
            "killed {killed}: the lapse changed other places than the node's entry"
        );
        let ((verdict, action, _), flagged) = (entry(&lapsed, b)?, entry(&flagged, b)?);
        ensure!(
            (verdict, action) == (flagged.0, flagged.1),
            "killed {killed}: {verdict} {action}, {flagged:?}"
        );
        ns.run(|| -> Result<()> {
            std::net::UdpSocket::bind("10.9.0.1:0")?.send_to(b"anyone", "10.9.1.1:9")?;
            Ok(())
        })?;
        let passed = pinned(&ns)?;
        let counter = at("counters", Reason::Lapsed as u32);
        ensure!(changed(&lapsed, &passed) == [counter.clone()].into(), "{:?}", changed(&lapsed, &passed));
        ns.run(move || -> Result<()> {
            let mut events = RingBuf::try_from(open("events")?)?;
            ensure!(events.next().is_none(), "there is an event for a packet that passed");
            Ok(())
        })?;
        let goes_on = if killed {
            agent.restart(&[])?;
            Instant::now()
        } else {
            let thawed = Instant::now();
            agent.proc()?.thaw()?;
            thawed
        };
        watch::wait_within("the verdict holds again", RENEWED, goes_on, || {
            verdict_until(&ns, b).is_ok_and(|until| until > monotonic_ns())
        })?;
        agent.unflag("node-b")?;
        let after = pinned(&ns)?;
        before.insert(counter.clone(), passed[&counter].clone());
        ensure!(after == before, "killed {killed}: {:?}", changed(&before, &after));
    }
    Ok(())
}

/// The last endpoint of a Service is exempt while its node is flagged, also after a restart of the agent.
#[test]
fn an_exempt_port_leaves_nothing_behind() -> Result<()> {
    const LAST_ENDPOINT: &str = "services:
- name: default/only
  clusterIPs: [10.96.0.9]
  ports: [{port: 80, targetPort: 8080, protocol: tcp}]
  endpoints: [{address: 10.9.1.1, node: node-b}]
";
    let ns = four_nodes::namespace("exempt")?;
    let file = [four_nodes::FILE, LAST_ENDPOINT].concat();
    let mut agent = Agent::start(&ns, "node-a", &["v0"], &file)?;
    let before = pinned(&ns)?;
    let b = index(&agent, "node-b")?;
    for killed in [false, true] {
        agent.flag("node-b")?;
        let flagged = pinned(&ns)?;
        let mut changes = changed(&before, &flagged);
        ensure!(changes.remove(&at("nodes", b)), "no verdict: {changes:?}");
        // One entry is the exempt port, the other says that its address has an exempt port.
        let maps: Vec<&'static str> = changes.iter().map(|(map, _)| *map).collect();
        ensure!(maps == ["ports", "ports"], "{changes:?}");
        if killed {
            agent.kill();
            agent.restart(&[])?;
        }
        agent.unflag("node-b")?;
        // The agent replies to an unflag before it removes the exempt ports.
        let same = || pinned(&ns).is_ok_and(|after| after == before);
        let gone = wait_until("the exemption is gone", RENEWED, same);
        gone.with_context(|| {
            format!("killed {killed}: {:?}", pinned(&ns).map(|after| changed(&before, &after)))
        })?;
    }
    Ok(())
}

/// The renewals of a node's `until`.
struct Renewals {
    name: &'static str,
    node: u32,
    until: u64,
    since: Instant,
    longest: Duration,
    count: u32,
}

impl Renewals {
    fn of(ns: &Netns, agent: &Agent, name: &'static str) -> Result<Self> {
        let node = index(agent, name)?;
        Ok(Self {
            name,
            node,
            until: verdict_until(ns, node)?,
            since: Instant::now(),
            longest: Duration::ZERO,
            count: 0,
        })
    }

    fn look(&mut self, ns: &Netns) -> Result<()> {
        let now = verdict_until(ns, self.node)?;
        let waited = self.since.elapsed();
        watch::bounded(&format!("renewal of {}", self.name), RENEWED, self.since, waited)?;
        ensure!(now >= self.until, "{}: from {} back to {now}", self.name, self.until);
        let ahead = Duration::from_nanos(now.saturating_sub(monotonic_ns()));
        let least = Duration::from_nanos(VERDICT_LIFETIME_NS) - RENEWED;
        if ahead + watch::stood_still(self.since) < least {
            return Err(watch::overdue(
                least,
                format!("{}: the verdict holds for {ahead:?} only", self.name),
            ));
        }
        if now > self.until {
            self.longest = self.longest.max(waited);
            self.until = now;
            self.since = Instant::now();
            self.count += 1;
        }
        Ok(())
    }
}

#[test]
fn each_verdict_is_renewed_each_second() -> Result<()> {
    let (ns, agent) = start()?;
    agent.flag("node-b")?;
    agent.expect(&["flag", "node-c", "--force"])?;
    let mut nodes = [Renewals::of(&ns, &agent, "node-b")?, Renewals::of(&ns, &agent, "node-c")?];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        for node in &mut nodes {
            node.look(&ns)?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for node in nodes {
        ensure!(node.count > 0, "{} was never renewed", node.name);
        watch::figure(
            &format!("longest time between renewals of {}", node.name),
            node.longest.as_secs_f64() * 1e3,
            "ms",
        );
    }
    Ok(())
}

/// The agent renews the lease even if no node is flagged. Once the lease has lapsed, the guard restores the IPVS destinations that a dead agent drained.
#[test]
fn the_lease_is_renewed_with_the_verdicts() -> Result<()> {
    let (ns, mut agent) = start()?;
    let says = || -> Result<u64> {
        let text = ns.exec(&format!("bpftool -j map dump pinned {PINNED_MAPS}/lease"))?;
        let map: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        map[0]["formatted"]["value"].as_u64().context(text)
    };
    let first = says()?;
    ensure!(first > monotonic_ns(), "{first} has lapsed");
    watch::wait_within("the lease", RENEWED, Instant::now(), || says().is_ok_and(|until| until > first))?;
    agent.kill();
    let last = says()?;
    let limit = Duration::from_nanos(VERDICT_LIFETIME_NS);
    watch::wait_within("lapse of the lease", limit, Instant::now(), || monotonic_ns() > last)?;
    ensure!(says()? == last, "the lease is renewed without an agent");
    Ok(())
}
