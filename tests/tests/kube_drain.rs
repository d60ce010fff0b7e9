//! The drain beside a real kube-proxy in IPVS mode, which keeps its own idea of the tables.

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

/// Longest wait for anything that is not promised.
const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks at weights.
const LOOK: Duration = Duration::from_millis(20);
/// Endpoints change so often.
const CHANGES: u32 = 200;
/// 20 a second, and no part of one: kube-proxy syncs about once a second, and would see the same half of the changes each time.
const EVERY: Duration = Duration::from_millis(47);

/// Destinations on a node that new connections go to, with their services. Read in this process: a look takes some milliseconds.
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

/// How long a node had destinations with weight, without what the machine stood still meanwhile. Each stretch counts from the end of the first look that
/// saw some to the beginning of the last one; a look takes some milliseconds, and has the precedence that the agent has.
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

    /// Checks that the agent undid each weight that kube-proxy set, in time, and that kube-proxy set one at most `times` times.
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
        // When the first look that saw some ended, and when the last one began.
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

/// The destinations with weight that a node had at looks where it had fewer than before, until the watch is ended.
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

/// Ends one of them: what it has seen.
fn seen<T: Send + 'static>(watch: Running<T>) -> Result<T> {
    watch.finish()?.pop().context("nobody watched")
}

/// Lines of destinations on a node's pod that a Service has by its virtual addresses.
fn on<'a>(saved: &'a [String], node: &Node, service: Service) -> impl Iterator<Item = &'a String> {
    let (pod, (_, target, _)) = (node.pod_address(Family::V4), service.ports());
    let real = format!("-r {pod}:{target} ");
    saved.iter().filter(move |line| line.contains(&real))
}

/// Waits until all of node B is out and nothing is waited for.
fn wait_drained(beside: &Beside) -> Result<()> {
    let (ns, b) = (&beside.cluster.a.ns, Addresses::of(&beside.cluster.b));
    let out = || -> Result<bool> {
        let row = beside.status()?["ipvs"]["nodes"]["node-b"].clone();
        Ok(weighted(ns, &b)?.is_empty() && row["waiting"] == 0 && row["drained"].as_u64() > Some(0))
    };
    let took = wait_until("node B is drained", LIMIT, || out().unwrap_or(false));
    took.map(drop).with_context(|| format!("{:?}\n{:?}\n{}", beside.status(), saved(ns), beside.agent.log()))
}

/// Takes the flag back: the table is as it was, in time.
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

/// How often kube-proxy writes everything anew: that is waited for.
fn sync_period() -> Duration {
    if long() { SYNC_PERIOD } else { Duration::from_secs(6) }
}

/// Services of IPv4 alone: what is in the table is counted.
fn beside() -> Result<Beside> {
    Beside::new(Mode::Ipvs, Setup { families: V4, sync_period: sync_period(), ..Setup::default() })
}

/// Flags the node, which hangs from the first time on, and waits until it is out.
fn flag(beside: &Beside) -> Result<()> {
    beside.agent.flag("node-b")?;
    wait_drained(beside)
}

/// kube-proxy's actions do not bring a drained node back: one after the other in one cluster. After each the flag is taken back and all is
/// as it was.
#[test]
fn kube_proxy_does_not_bring_it_back() -> Result<()> {
    let beside = beside()?;
    ensure!(beside.status()?["proxy"]["mode"] == "ipvs", "{}", beside.status()?["proxy"]);
    let before = saved(&beside.cluster.a.ns)?;
    ensure!(weighted(&beside.cluster.a.ns, &Addresses::of(&beside.cluster.b))?.len() >= 6, "{before:?}");
    ensure!(!before.iter().any(|line| line.contains("-r [")), "IPv6, which nobody looks at: {before:?}");
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

/// kube-proxy leaves the drained node alone, and nothing is done twice.
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

/// kube-proxy gives each destination its weight back at its first sync; the agent takes it again.
fn it_is_taken_again_after_a_restart(beside: Beside) -> Result<Beside> {
    let done = changes(&beside)?;
    let watch = watch_weight(&beside.cluster.a.ns, &beside.cluster.b);
    let beside = beside.restart_proxy()?;
    wait_until("the agent has taken it again", LIMIT, || changes(&beside).is_ok_and(|now| now > done))?;
    wait_drained(&beside)?;
    seen(watch)?.was_undone(UNDONE, 1, &beside)?;
    Ok(beside)
}

/// How often kube-proxy can have added the same again in so many syncs, and in one that has not ended yet: it removes it in between.
fn additions(syncs: u32) -> u32 {
    syncs.div_ceil(2)
}

/// Endpoints come and go, the flagged one among them, and Services as a whole.
fn what_comes_again_is_taken_again(beside: &Beside, before: &[String]) -> Result<()> {
    let (ns, b, c) = (&beside.cluster.a.ns, &beside.cluster.b, &beside.cluster.c);
    let (pairs, of_c) = (left(before, b), weighted(ns, &Addresses::of(c))?.len());
    ensure!(of_c >= 6, "{before:?}");
    let (watch, others) = (watch_weight(ns, b), watch_loss(ns, c, of_c));
    let (done, synced) = (changes(beside)?, beside.proxy.syncs()?);
    let have = |count| move || saved(ns).is_ok_and(|now| left(&now, b) == count);
    beside.tell_proxy(&[c])?;
    wait_until("kube-proxy removes node B's", LIMIT, have(0))?;
    let begun = Instant::now();
    for change in 0..CHANGES {
        let nodes: &[&Node] = if change % 2 == 0 { &[c] } else { &[b, c] };
        beside.tell_proxy(nodes)?;
        std::thread::sleep((begun + EVERY * (change + 1)).saturating_duration_since(Instant::now()));
    }
    println!("{CHANGES} changes of endpoints in {:?}", begun.elapsed());
    wait_until("kube-proxy adds them at the end", LIMIT, have(pairs))?;
    wait_drained(beside)?;
    let lost = seen(others)?;
    ensure!(lost.is_none(), "of node C only {lost:?} was left of {of_c}");
    let made = changes(beside)? - done;
    let syncs = beside.proxy.syncs()? - synced;
    // An addition costs one change, weight 0: nobody connects, so nothing is deleted for a flush. One more is allowed.
    let (least, most) = (pairs as u64, u64::from(additions(syncs)) * pairs as u64 * 2);
    println!("{made} changes of ours to {pairs} pairs in {syncs} syncs; may be {most}");
    ensure!((least..=most).contains(&made), "{made} changes to {pairs} pairs in {syncs} syncs");
    seen(watch)?.was_undone(UNDONE, additions(syncs), beside)?;
    let (watch, synced) = (watch_weight(ns, b), beside.proxy.syncs()?);
    for service in [Service::Web, Service::Host] {
        let virtual_server = format!("-A -t {}:", service.cluster_ip(Family::V4));
        let there = || saved(ns).is_ok_and(|lines| lines.iter().any(|line| line.contains(&virtual_server)));
        beside.recreate(service, || wait_until("kube-proxy deletes it", LIMIT, || !there()).map(drop))?;
        wait_until("kube-proxy makes it anew", LIMIT, there)?;
    }
    wait_drained(beside)?;
    // A destination comes after the other: where node B's was there alone, it is taken once the service has had another one for a second.
    seen(watch)?.was_undone(SETTLED + UNDONE, additions(beside.proxy.syncs()? - synced), beside)
}

/// How many destinations are left of a node's endpoints of Web and Dns.
fn left(saved: &[String], b: &Node) -> usize {
    [Service::Web, Service::Dns].into_iter().map(|service| on(saved, b, service).count()).sum()
}

/// The pod of a flagged node ends: kube-proxy removes the rest of its destinations, and nobody restores them.
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
        // By graceful termination, or at once where it has no connection.
        let drained = |now: Vec<String>| on(&now, b, Service::Web).all(|line| line.contains("-w 0"));
        let drains = || saved(ns).is_ok_and(drained);
        wait_until("kube-proxy has heard of it", LIMIT, drains).map(drop)
    };
    if first {
        ending()?;
        ensure!(open.who()? == "node-b", "it was cut before the flag");
    }
    b.freeze()?;
    beside.agent.flag("node-b")?;
    wait_drained(&beside)?;
    reset_by_now(&mut open).context("its client was not told")?;
    if !first {
        ending()?;
    }
    // kube-proxy looks at destinations that it drains once a minute (`rsCheckDeleteInterval`, pkg/proxy/ipvs/graceful_termination.go).
    let gone = || saved(ns).is_ok_and(|now| left(&now, b) == 0);
    wait_until("kube-proxy removes it", LIMIT * 3, gone)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.proxy.log()))?;
    let rest: Vec<String> = before
        .iter()
        .filter(|line| {
            ![Service::Web, Service::Dns].iter().any(|s| on(&before, b, *s).any(|of_b| of_b == *line))
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

/// A pod with an idle connection ends, and the cluster file does not say so. kube-proxy drains what has weight 0 already, and looks at the weight no more: nobody
/// new gets there, whatever `repair` and `unflag` are told. What got its weight back by a file that was wrong loses it with the next one.
#[test]
fn a_pod_that_ends_unheard_gets_nobody() -> Result<()> {
    // No client is challenged, so that the connection stays.
    let extra = &["--answer", "drop", "--fault-after", FAULT_AFTER];
    let setup = Setup { families: V4, sync_period: sync_period(), extra, ..Setup::default() };
    let beside = Beside::new(Mode::Ipvs, setup)?;
    let (ns, b, c) = (&beside.cluster.a.ns, &beside.cluster.b, &beside.cluster.c);
    let lines = |service| saved(ns).map(|now| on(&now, b, service).cloned().collect::<Vec<_>>());
    // kube-proxy has set it by now. So nothing is deleted for the sake of its connections.
    ns.sysctl("ipv4/vs/expire_nodest_conn", "0")?;
    let web = beside.cluster.service(Service::Web, Place::Pod, Family::V4);
    let idle = Conn::connect_to(beside.cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    idle.settle()?;
    let before = weighted(ns, &Addresses::of(b))?;
    beside.agent.flag("node-b")?;
    let lowered = || weighted(ns, &Addresses::of(b)).is_ok_and(|left| left.is_empty());
    wait_until("node B's weights are 0", LIMIT, lowered)?;
    beside.tell_proxy(&[c])?;
    // kube-proxy removes destinations without connections, and UDP ones, at once.
    let heard = || Ok::<_, anyhow::Error>(lines(Service::Web)?.len() == 1 && lines(Service::Dns)?.is_empty());
    wait_until("kube-proxy has heard of it", LIMIT, || heard().unwrap_or(false))
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
    wait_until("it is a fault", LIMIT, is_fault)?;
    let done = repair(&beside.agent, &["--kind", "stray-weight"])?;
    ensure!(done == outcomes([("stray-weight skipped", 1)]), "{done:?}");
    let synced = beside.proxy.syncs()?;
    wait_until("kube-proxy syncs", sync_period() * 2 + LIMIT, || {
        beside.proxy.syncs().is_ok_and(|now| now > synced)
    })?;
    nobody().context("after the repair")?;

    // The file says, after the drain began, that the pod is there, and is wrong.
    beside.agent.confirm_cluster_file()?;
    let raised = || lines(Service::Web).is_ok_and(|now| now.iter().any(|line| line.contains("-w 1")));
    wait_until("it has its weight", LIMIT, raised)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.agent.log()))?;
    ns.sysctl("ipv4/vs/expire_nodest_conn", "1")?;
    // Only this takes the destination away: kube-proxy waits for the end of the connection.
    let (written, synced) = (Instant::now(), beside.proxy.syncs()?);
    beside.set_endpoints(&[c])?;
    let removed = || lines(Service::Web).is_ok_and(|now| now.is_empty());
    wait_within("it is removed", FOLLOWED + RESTORED, written, removed)
        .with_context(|| format!("{:#?}\n{}", saved(ns), beside.agent.log()))?;
    println!(
        "removed {:?} after the file was written; {} syncs",
        written.elapsed(),
        beside.proxy.syncs()? - synced
    );
    nobody().context("after the file was right")
}

/// On the oldest kernel.
mod seldom {
    use super::*;

    #[test]
    fn a_pod_that_ends_before_the_flag() -> Result<()> {
        ends(true)
    }
}
