//! The agent beside a real API server that answers badly, or to which the way is bad: what was known last holds, half a list is never taken, and changes
//! come once the way is good again.

use std::{
    collections::BTreeSet,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Node,
    audit::BOTH,
    client::wait_until,
    kube::{
        Alone, ControlPlane, Faulty, Wire,
        alone::{backends, backends_on, faster, lists},
        control::SERVICES,
        faulty::{self, END_OF_LIST, Fate, Request},
        forwards::{endpoint, object, slice},
        members::MEMBERS,
        objects::{Endpoint, Slice},
        wire,
    },
    promises::WATCHED,
    topology::Service,
    watch::wait_within,
};
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// A connection that was cut silently is found dead after at most this time (docs/kubernetes.md), divided by [`faster`].
const FOUND: Duration = Duration::from_secs(30);
/// A watch whose connection ended is begun anew after at most this time: the first pause, which is at most twice 800 ms, and the time of a change.
const BEGUN_ANEW: Duration = Duration::from_secs(5);
/// The longest pause between two tries, which is at most twice 30 s, divided by [`faster`].
const PAUSE: Duration = Duration::from_secs(60);
/// The time of one try.
const TRY: Duration = Duration::from_secs(10);
/// How long a streamed list may stand still, divided by [`faster`].
const NO_END: Duration = Duration::from_secs(15);
/// The agent answers on its socket within this time, whatever the API server does.
const ANSWERED: Duration = Duration::from_secs(1);
/// The Services whose backends differ: Dns has those of Web.
const SERVICES_APART: [Service; 2] = [Service::Web, Service::Host];
/// The collections that the source watches.
const COLLECTIONS: [&str; 3] = ["nodemembers", "services", "endpointslices"];

type Backends = BTreeSet<String>;

/// All backends of the small cluster.
fn whole(alone: &Alone) -> Backends {
    backends_on(&[&alone.cluster.b, &alone.cluster.c], &SERVICES_APART)
}

/// The agent, which is not yet ready, behind a [`Faulty`] with this rule.
fn behind(
    options: &[&str],
    rule: impl Fn(&Request) -> Fate + Send + Sync + 'static,
) -> Result<(Alone, Faulty)> {
    behind_at(faster(), options, rule)
}

/// Same as [`behind`], at this pace.
fn behind_at(
    pace: u32,
    options: &[&str],
    rule: impl Fn(&Request) -> Fate + Send + Sync + 'static,
) -> Result<(Alone, Faulty)> {
    Alone::behind(options, pace, |control| {
        let faulty = Faulty::start(&control.ns, &control.api, rule)?;
        Ok((format!("http://127.0.0.1:{}", faulty::PORT), faulty))
    })
}

/// The agent, which has all of the cluster, behind a relay.
fn behind_wire() -> Result<(Alone, Wire)> {
    let (mut alone, wire) = Alone::behind(&[], faster(), |control| {
        Ok((format!("https://127.0.0.1:{}", wire::PORT), Wire::start(&control.ns)?))
    })?;
    alone.agent.ready()?;
    lists(&alone.agent, &whole(&alone))?;
    Ok((alone, wire))
}

/// Why the API server is away, as `status` says it.
fn away(alone: &Alone) -> Result<Option<String>> {
    let row = alone.agent.status()?["cluster"].clone();
    ensure!(row["error"].is_null(), "{row}");
    Ok(row["away"].as_str().map(str::to_owned))
}

/// Creates a slice with another endpoint of Web on a node, and returns the backend.
fn more(control: &ControlPlane, node: &Node, last: u8) -> Result<String> {
    let address = [10, 244, 2, last];
    let slice = Slice::new(&object(Service::Web, &BOTH), vec![Endpoint::ready(address, node.name)]);
    control.slice(&Slice { name: format!("web-more-{last}"), ..slice })?;
    Ok(format!("{} at 10.244.2.{last}", node.name))
}

/// Waits until the agent lists exactly these backends.
fn lists_within(alone: &Alone, wanted: &Backends, promised: Duration, began: Instant) -> Result<()> {
    let same = || backends(&alone.agent).is_ok_and(|found| found == *wanted);
    wait_within("the changes arrive", promised, began, same).map(drop).with_context(|| {
        format!("wanted {wanted:#?}, found {:#?}\n{}", backends(&alone.agent), alone.agent.log())
    })
}

/// Checks that the agent lists exactly these backends until `is_over`.
fn holds_until(alone: &Alone, held: &Backends, what: &str, is_over: impl Fn() -> bool) -> Result<()> {
    let mut changed = None;
    let over = || {
        let over = is_over();
        changed = backends(&alone.agent).ok().filter(|found| found != held);
        over || changed.is_some()
    };
    wait_until(what, LIMIT, over).with_context(|| alone.agent.log())?;
    ensure!(changed.is_none(), "{what}: {changed:#?} in place of {held:#?}\n{}", alone.agent.log());
    Ok(())
}

/// The number of requests of each collection that the test counts.
fn counts(faulty: &Faulty, since: Instant, is_counted: impl Fn(&Request) -> bool) -> [usize; 3] {
    let requests = faulty.requests(since);
    COLLECTIONS.map(|collection| {
        let of_it = requests.iter().filter(|request| request.collection() == collection);
        of_it.filter(|request| is_counted(request)).count()
    })
}

#[test]
fn a_watch_that_is_cut_silently_is_found_dead() -> Result<()> {
    let (alone, _wire) = behind_wire()?;
    let Alone { agent, control, cluster } = &alone;
    ensure!(away(&alone)?.is_none(), "{}", agent.log());
    let ports = format!("tcp sport {port} drop\n tcp dport {port} drop", port = wire::PORT);
    let cut = Instant::now();
    control.ns.nft(&format!(
        "table ip cut {{\n chain input {{\n type filter hook input priority 0\n {ports}\n }}\n}}\n"
    ))?;
    let added = more(control, &cluster.b, 77)?;
    wait_within("the agent names the API server's absence", FOUND / faster(), cut, || {
        away(&alone).is_ok_and(|away| away.is_some())
    })
    .with_context(|| agent.log())?;
    let held = whole(&alone);
    ensure!(backends(agent)? == held, "{}", agent.log());
    agent.flag(cluster.b.name)?;
    agent.unflag(cluster.b.name)?;
    control.ns.nft("delete table ip cut\n")?;
    lists_within(&alone, &(&held | &BTreeSet::from([added])), PAUSE / faster() + TRY, Instant::now())?;
    // A watch that was begun anew and has no change is heard after two minutes.
    let note = json!({"metadata": {"annotations": {"nodefence.test/note": "1"}}});
    let web = object(Service::Web, &BOTH).name;
    for path in [format!("{MEMBERS}/{}", cluster.c.name), format!("{SERVICES}/{web}")] {
        control.api.merge(&path, &note)?;
    }
    wait_until("all watches answer", LIMIT, || away(&alone).is_ok_and(|away| away.is_none()))
        .map(drop)
        .with_context(|| agent.log())
}

#[test]
fn a_watch_that_is_cut_by_a_reset_begins_anew_and_misses_nothing() -> Result<()> {
    let (alone, wire) = behind_wire()?;
    let Alone { agent, control, cluster } = &alone;
    wire.reset();
    wait_within("the agent names the API server's absence", WATCHED, Instant::now(), || {
        away(&alone).is_ok_and(|away| away.is_some())
    })
    .with_context(|| agent.log())?;
    let added = more(control, &cluster.b, 77)?;
    control.delete_service("host")?;
    wire.heal();
    let left = &backends_on(&[&cluster.b, &cluster.c], &[Service::Web]) | &BTreeSet::from([added]);
    lists_within(&alone, &left, BEGUN_ANEW, Instant::now())
}

#[test]
fn a_server_that_refuses_is_asked_seldom() -> Result<()> {
    const CODES: [u16; 3] = [429, 500, 503];
    let window = Duration::from_secs(20) / faster();
    // The pauses double from 0.8 s on, or from 1.6 s where chance adds most.
    const MOST: usize = 7;
    let each_code = || {
        let count = std::sync::atomic::AtomicUsize::new(0);
        move |_: &Request| {
            Fate::Status(CODES[count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % CODES.len()])
        }
    };
    let seldom = |faulty: &Faulty, since: Instant, what: &str| {
        sleep(window.saturating_sub(since.elapsed()));
        let counts = counts(faulty, since, |_| true);
        let is_seldom = counts.iter().all(|count| (2..=MOST).contains(count));
        ensure!(is_seldom, "{what}: {counts:?} requests in {:?}", since.elapsed());
        println!("{what}: {counts:?} requests in {:?}", since.elapsed());
        Ok(())
    };
    let began = Instant::now();
    let (mut alone, faulty) = behind(&[], each_code())?;
    let first = || counts(&faulty, began, |_| true).iter().all(|count| *count > 0);
    wait_until("the agent asks", LIMIT, first)?;
    let since = Instant::now();
    seldom(&faulty, since, "lists").with_context(|| alone.agent.log())?;
    ensure!(!alone.agent.socket().exists(), "the agent serves its socket before it knows the cluster");
    faulty.rule(|_| Fate::Forward);
    alone.agent.ready()?;
    let held = whole(&alone);
    lists_within(&alone, &held, PAUSE / faster() + TRY, Instant::now())?;

    let since = Instant::now();
    faulty.cut(each_code());
    seldom(&faulty, since, "watches").with_context(|| alone.agent.log())?;
    ensure!(backends(&alone.agent)? == held, "{}", alone.agent.log());
    let why = away(&alone)?.context("status names no failure")?;
    ensure!(why.contains("told so by the test"), "{why}");
    let added = more(&alone.control, &alone.cluster.b, 77)?;
    faulty.rule(|_| Fate::Forward);
    lists_within(&alone, &(&held | &BTreeSet::from([added])), PAUSE / faster() + TRY, Instant::now())
}

#[test]
fn after_changes_that_are_gone_a_list_sweeps_what_went() -> Result<()> {
    let (mut alone, faulty) = behind(&[], |_| Fate::Forward)?;
    alone.agent.ready()?;
    let held = whole(&alone);
    lists(&alone.agent, &held)?;
    faulty.cut(|_| Fate::Reset);
    let cluster = &alone.cluster;
    for family in BOTH {
        let left = endpoint(Service::Web, &cluster.c, family);
        slice(&alone.control, Service::Web, vec![left])?;
    }
    alone.control.delete_service("host")?;
    alone.control.compact()?;
    alone.control.kill_server()?;
    alone.control.start_server()?;
    let since = Instant::now();
    faulty.rule(|_| Fate::Forward);
    let left = backends_on(&[&alone.cluster.c], &[Service::Web]);
    let mut seen = BTreeSet::new();
    // Watches of Services and slices are apart. In between the Service Host may be gone, or B's endpoints of Web.
    let swept = || {
        let Ok(found) = backends(&alone.agent) else { return false };
        seen.extend(held.difference(&found).cloned());
        found == left
    };
    wait_within("the lists sweep what went", PAUSE / faster() + TRY, since, swept)
        .with_context(|| alone.agent.log())?;
    ensure!(seen.is_disjoint(&left), "{seen:#?} vanished meanwhile\n{}", alone.agent.log());
    ensure!(faulty.gone() > 0, "the API server had all changes\n{}", alone.agent.log());
    let listed = counts(&faulty, since, Request::is_list);
    ensure!(listed[1] > 0 && listed[2] > 0, "{listed:?} lists\n{}", alone.agent.log());
    let with_more = &left | &BTreeSet::from([more(&alone.control, &alone.cluster.b, 77)?]);
    lists(&alone.agent, &with_more).context("a new slice")
}

/// Half of each list comes, and then the connection ends.
fn half_a_list_is_never_taken(options: &[&str]) -> Result<()> {
    let (mut alone, faulty) = behind(options, |_| Fate::Forward)?;
    alone.agent.ready()?;
    let held = whole(&alone);
    lists(&alone.agent, &held)?;
    let since = Instant::now();
    faulty.cut(|request| if request.is_list() { Fate::Half } else { Fate::Gone });
    // What is added now is in no half of a list, or is not taken from there.
    let added = more(&alone.control, &alone.cluster.b, 77)?;
    let halves = || counts(&faulty, since, Request::is_list).iter().all(|count| *count >= 3);
    holds_until(&alone, &held, "each kind was listed three times in vain", halves)?;
    ensure!(away(&alone)?.is_some(), "status names no failure");
    faulty.rule(|_| Fate::Forward);
    lists_within(&alone, &(&held | &BTreeSet::from([added])), PAUSE / faster() + TRY, Instant::now())
}

#[test]
fn half_a_streamed_list_is_never_taken() -> Result<()> {
    half_a_list_is_never_taken(&[])
}

#[test]
fn half_a_page_is_never_taken() -> Result<()> {
    half_a_list_is_never_taken(&["--feature-gates=WatchList=false"])
}

/// When each collection was asked for as a streamed list, and how long it took until its first page was asked for.
fn before_pages(faulty: &Faulty, since: Instant) -> Result<Vec<(&'static str, Instant, Duration)>> {
    let requests = faulty.requests(since);
    let each = COLLECTIONS.into_iter().map(|collection| {
        let first = |is_wanted: fn(&Request) -> bool| {
            let of_it = |request: &&Request| request.collection() == collection && is_wanted(request);
            requests.iter().find(of_it).map(|request| request.at)
        };
        let streamed = first(Request::is_streamed).context("no streamed list was asked for")?;
        let page = first(|request| !request.is_watch()).context("no page was asked for")?;
        Ok((collection, streamed, page - streamed))
    });
    each.collect()
}

#[test]
fn a_list_without_an_end_is_read_page_by_page() -> Result<()> {
    let rule = |request: &Request| {
        if request.is_streamed() { Fate::Without(END_OF_LIST) } else { Fate::Forward }
    };
    let began = Instant::now();
    let (mut alone, faulty) = behind(&[], rule)?;
    alone.agent.ready()?;
    lists(&alone.agent, &whole(&alone))?;
    let no_end = NO_END / faster();
    for (collection, streamed, waited) in before_pages(&faulty, began)? {
        ensure!(waited >= no_end, "{collection}: a page after {waited:?}");
        nodefence_tests::watch::held(
            "pages in place of a streamed list",
            no_end + ANSWERED,
            streamed,
            waited,
        )?;
    }
    let with_more = &whole(&alone) | &BTreeSet::from([more(&alone.control, &alone.cluster.b, 77)?]);
    lists(&alone.agent, &with_more).context("a new slice")
}

#[test]
fn a_server_that_streams_no_lists_will_do() -> Result<()> {
    let (mut alone, faulty) = behind(&["--feature-gates=WatchList=false"], |_| Fate::Forward)?;
    let began = Instant::now();
    alone.agent.ready()?;
    lists(&alone.agent, &whole(&alone))?;
    // The refusal is an answer: nothing is waited for.
    for (collection, streamed, waited) in before_pages(&faulty, began - LIMIT)? {
        ensure!(waited < NO_END / faster(), "{collection}: a page {waited:?} after {streamed:?}");
    }
    let with_more = &whole(&alone) | &BTreeSet::from([more(&alone.control, &alone.cluster.b, 77)?]);
    lists(&alone.agent, &with_more).context("a new slice")
}

#[test]
fn beside_a_slow_server_the_agent_starts_and_answers() -> Result<()> {
    // A shorter patience would take the slow answer for a list without an end.
    let (mut alone, faulty) = behind_at(1, &[], |_| Fate::Slow)?;
    alone.agent.ready()?;
    let held = whole(&alone);
    lists(&alone.agent, &held)?;
    let since = Instant::now();
    faulty.cut(|request| if request.is_list() { Fate::Slow } else { Fate::Gone });
    let added = more(&alone.control, &alone.cluster.b, 77)?;
    let with_more = &held | &BTreeSet::from([added]);
    let follows = || -> Result<bool> {
        let asked = Instant::now();
        let status: Value = alone.agent.status()?;
        nodefence_tests::watch::bounded("the answer on the socket", ANSWERED, asked, asked.elapsed())?;
        let found = backends(&alone.agent)?;
        ensure!(found == held || found == with_more, "{found:#?}\n{status:#}");
        Ok(found == with_more)
    };
    let mut wrong = None;
    let done = || {
        follows().unwrap_or_else(|error| {
            wrong = Some(error);
            true
        })
    };
    wait_until("the change arrives", LIMIT, done).with_context(|| alone.agent.log())?;
    if let Some(error) = wrong {
        return Err(error.context(alone.agent.log()));
    }
    let took = since.elapsed();
    ensure!(took > Duration::from_secs(5), "the server was not slow: {took:?}");
    Ok(())
}

#[test]
fn lists_come_compressed_and_changes_at_once() -> Result<()> {
    let (mut alone, faulty) = behind(&[], |request| {
        // Only a page is compressed, and only a long one.
        if request.is_streamed() { Fate::Status(422) } else { Fate::Forward }
    })?;
    alone.agent.ready()?;
    let began = Instant::now();
    let mut wanted = whole(&alone);
    // Together they are longer than 128 KiB, from which on the API server compresses an answer.
    for part in [0, 1] {
        let mut endpoints = Vec::new();
        for number in 0..=u16::from(u8::MAX) * 3 {
            let [high, low] = number.to_be_bytes();
            let address = [10, 244, 128 + 64 * part + high, low];
            wanted.insert(format!("node-b at 10.244.{}.{low}", address[2]));
            endpoints.push(Endpoint::ready(address, alone.cluster.b.name));
        }
        let many = Slice::new(&object(Service::Web, &BOTH), endpoints);
        alone.control.slice(&Slice { name: format!("web-many-{part}"), ..many })?;
    }
    lists(&alone.agent, &wanted).context("a change")?;
    ensure!(faulty.zipped() == 0, "a watch was compressed, or a short page");
    let requests = faulty.requests(began - LIMIT);
    let asks = |request: &Request| request.accepts.as_deref().is_some_and(|accepts| accepts.contains("gzip"));
    let mut pages = requests.iter().filter(|request| !request.is_watch()).peekable();
    ensure!(pages.peek().is_some() && pages.all(asks), "{requests:#?}");
    faulty.cut(|request| match request {
        request if request.is_streamed() => Fate::Status(422),
        request if request.is_watch() => Fate::Gone,
        _ => Fate::Forward,
    });
    holds_until(&alone, &wanted, "a list comes compressed", || faulty.zipped() > 0)?;
    faulty.rule(|_| Fate::Forward);
    wanted.insert(more(&alone.control, &alone.cluster.b, 77)?);
    lists_within(&alone, &wanted, PAUSE, Instant::now())?;
    wanted.insert(more(&alone.control, &alone.cluster.b, 78)?);
    lists(&alone.agent, &wanted).context("a change after a compressed list")
}
