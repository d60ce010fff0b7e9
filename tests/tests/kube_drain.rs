//! The drain beside a real kube-proxy in IPVS mode, which writes the same tables.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::ipvs::Ipvs;
use nodefence_tests::{
    Conn, Family, Netns, Node, Place,
    audit::{Audit, FAULT_AFTER, outcomes, repair},
    checks::reset_by_now,
    client::wait_until,
    ipvs::{Snapshot, saved},
    kube::{Beside, Mode, Setup, forwards::V4, proxy::SYNC_PERIOD},
    load::{Running, repeat},
    long,
    promises::{FOLLOWED, RESTORED, SETTLED, UNDONE},
    topology::Service,
    watch::{figure, overdue, stood_still, wait_within},
};
use rustix::process::setpriority_process;

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks at weights.
const LOOK: Duration = Duration::from_millis(20);
/// The number of times that endpoints change.
const CHANGES: u32 = 200;
/// The pause between two changes. It divides no second: kube-proxy syncs about once a second, and would else see the same half of the changes each time.
const EVERY: Duration = Duration::from_millis(47);

/// The destinations on a node that get new connections, with their services. The table is read in this process, so that a look takes only some milliseconds.
fn weighted(ns: &Netns, node: &Addresses) -> Result<Vec<String>> {
    let services = ns.run(|| -> Result<_> {
        setpriority_process(None, -20)?;
        let snapshot = Snapshot::read(&mut Ipvs::open()?);
        setpriority_process(None, 0)?;
        Ok(snapshot?.services)
    })?;
    let mut found = Vec::new();
    for (key, service) in services {
        let with_weight = service.destinations.iter().filter(|destination| destination.weight > 0);
        let on_it = with_weight.filter(|destination| node.0.contains(&destination.address.ip()));
        found.extend(on_it.map(|destination| format!("{key} {}", destination.address)));
    }
    Ok(found)
}

#[derive(Clone)]
struct Addresses([IpAddr; 2]);

impl Addresses {
    fn of(node: &Node) -> Self {
        Self([node.address(Family::V4), node.pod_address(Family::V4)])
    }
}

/// How long a node had destinations with weight, without the time that the machine stood still meanwhile. A stretch counts from the end of the first look that
/// saw such a destination to the beginning of the last one. A look takes some milliseconds, and has the agent's precedence.
#[derive(Debug, Default)]
struct Weight {
    longest: Duration,
    total: Duration,
    stretches: u32,
}

impl Weight {
    fn add(&mut self, stretch: Duration) {
        self.longest = self.longest.max(stretch);
        self.total += stretch;
        self.stretches += 1;
    }

    /// Checks that the agent undid each weight that kube-proxy set, in time, if kube-proxy set weights at most `times` times.
    fn was_undone(&self, promised: Duration, times: u32, beside: &Beside) -> Result<()> {
        figure("longest that kube-proxy's weight held", self.longest.as_secs_f64() * 1e3, "ms");
        println!("node B had {self:?}, where kube-proxy gave it some {times} times at most");
        if self.longest <= promised && self.total <= promised * times {
            return Ok(());
        }
        let told = format!("{}\n{}", beside.status()?["ipvs"], beside.agent.log());
        Err(overdue(promised, format!("{self:?}, promised are {promised:?}"))).context(told)
    }
}

/// Looks for destinations with weight on a node, until it is ended.
fn watch_weight(ns: &Arc<Netns>, node: &Node) -> Running<Weight> {
    let ns = Arc::clone(ns);
    let node = Addresses::of(node);
    let mut watch = Running::default();
    watch.start(move |stop| {
        let mut weight = Weight::default();
        // The end of the first look that saw a weight, and the beginning of the last one.
        let mut stretch: Option<(Instant, Instant)> = None;
        let mut look = |last: bool| -> Result<Duration> {
            let begun = Instant::now();
            let has = !weighted(&ns, &node)?.is_empty();
            if has {
                stretch = Some(stretch.map_or_else(|| (Instant::now(), begun), |(first, _)| (first, begun)));
            }
            if let Some((first, latest)) = stretch.take_if(|_| !has || last) {
                weight.add(latest.saturating_duration_since(first).saturating_sub(stood_still(first)));
            }
            Ok(LOOK)
        };
        repeat(stop, || look(false))?;
        look(true)?;
        Ok(weight)
    });
    watch
}

/// Looks until it is ended whether a node has fewer destinations with weight than `before`. Gives the destinations that were left at the first such look.
fn watch_loss(ns: &Arc<Netns>, node: &Node, before: usize) -> Running<Option<Vec<String>>> {
    let ns = Arc::clone(ns);
    let node = Addresses::of(node);
    let mut watch = Running::default();
    watch.start(move |stop| {
        let mut lost = None;
        repeat(stop, || {
            let now = weighted(&ns, &node)?;
            if now.len() < before {
                lost.get_or_insert(now);
            }
            Ok(Duration::from_millis(250))
        })?;
        Ok(lost)
    });
    watch
}

/// Ends a watch and gives what it has seen.
fn seen<T: Send + 'static>(watch: Running<T>) -> Result<T> {
    watch.finish()?.pop().context("the watch has no result")
}

/// The lines of a Service's destinations that are on a node's pod.
fn on<'a>(saved: &'a [String], node: &Node, service: Service) -> impl Iterator<Item = &'a String> {
    let (pod, (_, target, _)) = (node.pod_address(Family::V4), service.ports());
    let real = format!("-r {pod}:{target} ");
    saved.iter().filter(move |line| line.contains(&real))
}

/// Waits until all of node B's destinations are drained.
fn wait_drained(beside: &Beside) -> Result<()> {
    let (ns, b) = (&beside.cluster.a.ns, Addresses::of(&beside.cluster.b));
    let out = || -> Result<bool> {
        let row = beside.status()?["ipvs"]["nodes"]["node-b"].clone();
        Ok(weighted(ns, &b)?.is_empty() && row["waiting"] == 0 && row["drained"].as_u64() > Some(0))
    };
    let took = wait_until("node B is drained", LIMIT, || out().unwrap_or(false));
    took.map(drop).with_context(|| format!("{:?}\n{:?}\n{}", beside.status(), saved(ns), beside.agent.log()))
}

/// Takes the flag back, and checks that the table is as it was before in the promised time.
fn restores(beside: &Beside, before: &[String]) -> Result<()> {
    let (ns, unflagged) = (&beside.cluster.a.ns, Instant::now());
    beside.agent.unflag("node-b")?;
    let same = || saved(ns).is_ok_and(|now| now == before);
    let took = wait_within("the table is as it was", RESTORED, unflagged, same);
    took.map(drop).with_context(|| {
        format!("{before:#?}, and now {:#?}\n{}\n{}", saved(ns), beside.agent.log(), beside.proxy.log())
    })
}

fn changes(beside: &Beside) -> Result<u64> {
    beside.status()?["ipvs"]["changes"].as_u64().context("no count of changes")
}

/// The period in which kube-proxy writes everything anew. Tests wait for such syncs.
fn sync_period() -> Duration {
    if long() { SYNC_PERIOD } else { Duration::from_secs(6) }
}

/// A cluster with Services of IPv4 only, since the tests count the table's entries.
fn beside() -> Result<Beside> {
    Beside::new(Mode::Ipvs, Setup { families: V4, sync_period: sync_period(), ..Setup::default() })
}

/// Flags node B, and waits until it is drained.
fn flag(beside: &Beside) -> Result<()> {
    beside.agent.flag("node-b")?;
    wait_drained(beside)
}

/// Nothing that kube-proxy does restores a drained node. The test tries its actions one after the other in one cluster. After each action the flag is taken
/// back, and the table is as it was.
#[test]
fn kube_proxy_does_not_bring_it_back() -> Result<()> {
    let beside = beside()?;
    ensure!(beside.status()?["proxy"]["mode"] == "ipvs", "{}", beside.status()?["proxy"]);
    let before = saved(&beside.cluster.a.ns)?;
    ensure!(weighted(&beside.cluster.a.ns, &Addresses::of(&beside.cluster.b))?.len() >= 6, "{before:?}");
    ensure!(
        !before.iter().any(|line| line.contains("-r [")),
        "IPv6, which this test does not expect: {before:?}"
    );
    beside.cluster.b.freeze()?;

    flag(&beside)?;
    two_syncs_change_nothing(&beside).context("two syncs")?;
    restores(&beside, &before).context("after two syncs")?;

    flag(&beside)?;
    let beside = it_is_taken_again_after_a_restart(beside).context("kube-proxy is restarted")?;
    restores(&beside, &before).context("after kube-proxy's restart")?;

    flag(&beside)?;
    what_comes_again_is_taken_again(&beside, &before).context("endpoints come and go")?;
    restores(&beside, &before).context("after endpoints came and went")
}

/// kube-proxy's syncs change nothing of the drained node, and the agent changes nothing again.
fn two_syncs_change_nothing(beside: &Beside) -> Result<()> {
    let (ns, b) = (&beside.cluster.a.ns, &beside.cluster.b);
    let (done, synced) = (changes(beside)?, beside.proxy.last_sync()?);
    let watch = watch_weight(ns, b);
    let twice = wait_until("kube-proxy syncs twice", sync_period() * 2 + LIMIT, || {
        beside.proxy.last_sync().is_ok_and(|at| at >= synced + sync_period().as_secs_f64() * 1.5)
    });
    twice.with_context(|| beside.proxy.log())?;
    let weight = seen(watch)?;
    ensure!(weight.stretches == 0, "node B had {weight:?}\n{}", beside.agent.log());
    ensure!(changes(beside)? == done, "{} changes, then {}", done, changes(beside)?);
    Ok(())
}

/// At its first sync kube-proxy sets each destination's weight again. The agent drains again.
fn it_is_taken_again_after_a_restart(beside: Beside) -> Result<Beside> {
    let done = changes(&beside)?;
    let watch = watch_weight(&beside.cluster.a.ns, &beside.cluster.b);
    let beside = beside.restart_proxy()?;
    wait_until("the agent has drained node B again", LIMIT, || changes(&beside).is_ok_and(|now| now > done))?;
    wait_drained(&beside)?;
    seen(watch)?.was_undone(UNDONE, 1, &beside)?;
    Ok(beside)
}

/// The most times that kube-proxy can have added the same destination in `syncs` syncs and in one that is under way. Between two additions it removes the
/// destination.
fn additions(syncs: u32) -> u32 {
    syncs.div_ceil(2)
}

/// Endpoints come and go, also the flagged one, and then whole Services.
fn what_comes_again_is_taken_again(beside: &Beside, before: &[String]) -> Result<()> {
    let (ns, b, c) = (&beside.cluster.a.ns, &beside.cluster.b, &beside.cluster.c);
    let (pairs, of_c) = (left(before, b), weighted(ns, &Addresses::of(c))?.len());
    ensure!(of_c >= 6, "{before:?}");
    let (watch, others) = (watch_weight(ns, b), watch_loss(ns, c, of_c));
    let (done, synced) = (changes(beside)?, beside.proxy.syncs()?);
    let have = |count| move || saved(ns).is_ok_and(|now| left(&now, b) == count);
    beside.tell_proxy(&[c])?;
    wait_until("kube-proxy removes node B's destinations", LIMIT, have(0))?;
    let begun = Instant::now();
    for change in 0..CHANGES {
        let nodes: &[&Node] = if change % 2 == 0 { &[c] } else { &[b, c] };
        beside.tell_proxy(nodes)?;
        std::thread::sleep((begun + EVERY * (change + 1)).saturating_duration_since(Instant::now()));
    }
    println!("{CHANGES} changes of endpoints in {:?}", begun.elapsed());
    wait_until("kube-proxy adds node B's destinations at the end", LIMIT, have(pairs))?;
    wait_drained(beside)?;
    let lost = seen(others)?;
    ensure!(lost.is_none(), "of node C only {lost:?} was left of {of_c}");
    let made = changes(beside)? - done;
    let syncs = beside.proxy.syncs()? - synced;
    // An addition costs one change, to weight 0. No client connects, so no destination is deleted to end connections. Twice as many changes are allowed.
    let (least, most) = (pairs as u64, u64::from(additions(syncs)) * pairs as u64 * 2);
    println!("{made} changes of ours to {pairs} pairs in {syncs} syncs; may be {most}");
    ensure!((least..=most).contains(&made), "{made} changes to {pairs} pairs in {syncs} syncs");
    seen(watch)?.was_undone(UNDONE, additions(syncs), beside)?;
    let (watch, synced) = (watch_weight(ns, b), beside.proxy.syncs()?);
    for service in [Service::Web, Service::Host] {
        let virtual_server = format!("-A -t {}:", service.cluster_ip(Family::V4));
        let there = || saved(ns).is_ok_and(|lines| lines.iter().any(|line| line.contains(&virtual_server)));
        let deleted = || wait_until("kube-proxy deletes the service", LIMIT, || !there()).map(drop);
        beside.recreate(service, deleted)?;
        wait_until("kube-proxy makes the service anew", LIMIT, there)?;
    }
    wait_drained(beside)?;
    // kube-proxy adds one destination after the other. If node B's is there alone at first, the agent drains it only once the service has had another one for a
    // second.
    seen(watch)?.was_undone(SETTLED + UNDONE, additions(beside.proxy.syncs()? - synced), beside)
}

/// The number of destinations that a node's endpoints of Web and Dns still have.
fn left(saved: &[String], b: &Node) -> usize {
    [Service::Web, Service::Dns].into_iter().map(|service| on(saved, b, service).count()).sum()
}

/// The pod of a flagged node ends, before the flag (`first`) or after it. kube-proxy removes its destinations, and the agent does not restore them.
fn ends(first: bool) -> Result<()> {
    let beside = beside()?;
    let (ns, b) = (&beside.cluster.a.ns, &beside.cluster.b);
    let before = saved(ns)?;
    let had = left(&before, b);
    ensure!(had >= 4, "{before:?}");
    let web = beside.cluster.service(Service::Web, Place::Pod, Family::V4);
    let mut open = Conn::connect_to(beside.cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    let ending = || -> Result<()> {
        beside.end_endpoint(b)?;
        // kube-proxy sets weight 0 first, or removes a destination without connections at once.
        let drained = |now: Vec<String>| on(&now, b, Service::Web).all(|line| line.contains("-w 0"));
        let drains = || saved(ns).is_ok_and(drained);
        wait_until("kube-proxy drains the ended pod", LIMIT, drains).map(drop)
    };
    if first {
        ending()?;
        ensure!(open.who()? == "node-b", "it was cut before the flag");
    }
    b.freeze()?;
    beside.agent.flag("node-b")?;
    wait_drained(&beside)?;
    reset_by_now(&mut open).context("the client of the ended pod was not reset")?;
    if !first {
        ending()?;
    }
    // kube-proxy looks once a minute at the destinations that it drains (`rsCheckDeleteInterval`, pkg/proxy/ipvs/graceful_termination.go).
    let gone = || saved(ns).is_ok_and(|now| left(&now, b) == 0);
    wait_until("kube-proxy removes the pod's destinations", LIMIT * 3, gone)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.proxy.log()))?;
    let rest: Vec<String> = before
        .iter()
        .filter(|line| {
            let is_of = |service: &Service| on(&before, b, *service).any(|of_b| of_b == *line);
            ![Service::Web, Service::Dns].iter().any(is_of)
        })
        .cloned()
        .collect();
    ensure!(rest.len() + had == before.len(), "{rest:?}");
    restores(&beside, &rest)
}

#[test]
fn a_pod_that_ends_during_the_flag() -> Result<()> {
    ends(false)
}

/// A pod with an idle connection ends, and the cluster file does not say so. kube-proxy drains its destination, which has weight 0 already, and does not look
/// at the weight again. No new client gets there: neither `unflag` nor `repair` raises the weight. If the weight is restored because the file was wrong, the
/// agent removes the destination with the next file.
#[test]
fn a_pod_that_ends_unheard_gets_nobody() -> Result<()> {
    // With `--answer drop` no client is challenged, so the connection stays.
    let extra = &["--answer", "drop", "--fault-after", FAULT_AFTER];
    let setup = Setup { families: V4, sync_period: sync_period(), extra, ..Setup::default() };
    let beside = Beside::new(Mode::Ipvs, setup)?;
    let (ns, b, c) = (&beside.cluster.a.ns, &beside.cluster.b, &beside.cluster.c);
    let lines = |service| saved(ns).map(|now| on(&now, b, service).cloned().collect::<Vec<_>>());
    // kube-proxy has set this key to 1 by now. With 0 the agent deletes no destination to end its connections.
    ns.sysctl("ipv4/vs/expire_nodest_conn", "0")?;
    let web = beside.cluster.service(Service::Web, Place::Pod, Family::V4);
    let idle = Conn::connect_to(beside.cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    idle.settle()?;
    let before = weighted(ns, &Addresses::of(b))?;
    beside.agent.flag("node-b")?;
    let lowered = || weighted(ns, &Addresses::of(b)).is_ok_and(|left| left.is_empty());
    wait_until("node B's weights are 0", LIMIT, lowered)?;
    beside.tell_proxy(&[c])?;
    // kube-proxy removes UDP destinations, and those without connections, at once.
    let heard = || Ok::<_, anyhow::Error>(lines(Service::Web)?.len() == 1 && lines(Service::Dns)?.is_empty());
    wait_until("kube-proxy drains the ended pod", LIMIT, || heard().unwrap_or(false))
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.proxy.log()))?;

    let unflagged = Instant::now();
    beside.agent.unflag("node-b")?;
    let pod = b.pod_address(Family::V4).to_string();
    let rest: Vec<&String> = before.iter().filter(|pair| !pair.contains(&pod)).collect();
    ensure!(!rest.is_empty() && rest.len() < before.len(), "{before:?}");
    let restored = || weighted(ns, &Addresses::of(b)).is_ok_and(|now| now.iter().eq(rest.iter().copied()));
    wait_within("all but the pod has its weight", RESTORED, unflagged, restored)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.agent.log()))?;
    let nobody = || -> Result<()> {
        for _ in 0..20 {
            let who = Conn::connect(beside.cluster.at(Place::Pod), web, LIMIT)?.who()?;
            ensure!(who == "node-c", "{who} got a new client");
        }
        ensure!(restored(), "{:#?}", weighted(ns, &Addresses::of(b))?);
        Ok(())
    };
    nobody().context("after the flag")?;
    let told = beside.status()?["ipvs"]["nodes"]["node-b"]["problems"].to_string();
    ensure!(told.contains("kube-proxy may be draining it"), "{told}");
    let stray = format!("stray-weight TCP {web} -> {pod}:{}", Service::Web.ports().1);
    let is_fault = || Audit::of(&beside.agent).is_ok_and(|audit| audit.in_state("fault").contains(&stray));
    wait_until("the audit shows the weight as a fault", LIMIT, is_fault)?;
    let done = repair(&beside.agent, &["--kind", "stray-weight"])?;
    ensure!(done == outcomes([("stray-weight skipped", 1)]), "{done:?}");
    let synced = beside.proxy.syncs()?;
    wait_until("kube-proxy syncs", sync_period() * 2 + LIMIT, || {
        beside.proxy.syncs().is_ok_and(|now| now > synced)
    })?;
    nobody().context("after the repair")?;

    // The file is written again after kube-proxy's drain began. It wrongly says that the pod is there.
    beside.agent.confirm_cluster_file()?;
    let raised = || lines(Service::Web).is_ok_and(|now| now.iter().any(|line| line.contains("-w 1")));
    wait_until("the pod's destination has its weight again", LIMIT, raised)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.agent.log()))?;
    ns.sysctl("ipv4/vs/expire_nodest_conn", "1")?;
    // The next file lacks the pod. Only the agent removes the destination, since kube-proxy waits for the end of the connection.
    let (written, synced) = (Instant::now(), beside.proxy.syncs()?);
    beside.set_endpoints(&[c])?;
    let removed = || lines(Service::Web).is_ok_and(|now| now.is_empty());
    wait_within("the pod's destination is removed", FOLLOWED + RESTORED, written, removed)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.agent.log()))?;
    println!(
        "removed {:?} after the file was written; {} syncs",
        written.elapsed(),
        beside.proxy.syncs()? - synced
    );
    nobody().context("after the file was right")
}

/// Runs on the oldest kernel only.
mod seldom {
    use super::*;

    #[test]
    fn a_pod_that_ends_before_the_flag() -> Result<()> {
        ends(true)
    }
}
