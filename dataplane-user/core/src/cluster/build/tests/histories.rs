//! Random histories of single objects: whatever order they came in, what follows is what a fresh start finds.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use super::objects::{Seeded, Source};
use crate::cluster::{
    build::{Builder, Change, Rules},
    node::NodeName,
    object::Conflict,
    view::{ClusterView, Scope},
};

/// How often something happened that the rules are about.
#[derive(Debug, Default)]
struct Seen {
    conflicts: usize,
    over: usize,
    backends: usize,
    left_out: usize,
    tied: usize,
    refused: usize,
    taken: usize,
    same: usize,
}

/// Whether all in it is the very same as in the other.
fn is_shared(view: &ClusterView, other: &ClusterView) -> bool {
    fn all<T>(one: &[Arc<T>], other: &[Arc<T>]) -> bool {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
    }
    let services = match (&view.services, &other.services) {
        (Some(one), Some(other)) => all(one, other),
        (one, other) => one.is_none() && other.is_none(),
    };
    services && all(&view.nodes, &other.nodes)
}

fn conflicts(builder: &Builder) -> BTreeSet<Conflict> {
    builder.conflicts().cloned().collect()
}

/// An address that two nodes claim is nobody's, and no address belongs to two nodes.
fn hold(view: &ClusterView, source: &Source) {
    let mut claims: HashMap<IpAddr, BTreeSet<&NodeName>> = HashMap::new();
    for node in source.nodes.values() {
        let backends = node.backends.iter().map(|backend| backend.address);
        for ip in node.addresses.iter().copied().chain(backends) {
            claims.entry(ip).or_default().insert(&node.name);
        }
    }
    let mut owners: HashMap<IpAddr, &NodeName> = HashMap::new();
    for node in &view.nodes {
        for ip in node.all_addresses() {
            assert!(claims.get(&ip).is_none_or(|by| by.len() == 1), "{ip} is claimed by {:?}", claims[&ip]);
            let owner = *owners.entry(ip).or_insert(&node.name);
            assert_eq!(owner, &node.name, "{ip} is that of two nodes");
        }
    }
    for node in &view.nodes {
        let named: BTreeSet<bool> = source.nodes[&node.name].addresses.iter().map(IpAddr::is_ipv4).collect();
        let whole = node.backends.iter().filter(|backend| backend.scope == Scope::Address);
        for ip in whole.map(|backend| backend.address) {
            assert!(named.contains(&ip.is_ipv4()), "{ip} may be an address of {} itself", node.name);
        }
        assert!(!node.left_out.iter().any(|ip| named.contains(&ip.is_ipv4())), "{:?}", node.left_out);
    }
    for service in view.services.iter().flatten() {
        for endpoint in &service.endpoints {
            let Some(node) = endpoint.node.and_then(|node| view.at(node)) else { continue };
            let there = node.backends.iter().any(|backend| backend.address == endpoint.address)
                || node.left_out.contains(&endpoint.address);
            let serves = (0..service.ports.len()).any(|p| service.target(p, endpoint).is_some());
            assert!(there || !serves, "{} is tied to {} without a backend", endpoint.address, node.name);
        }
    }
}

fn tolerant(seed: u64, seen: &mut Seen) {
    let mut random = Seeded::new(seed);
    let mut source = Source::default();
    let mut builder = Builder::new(Rules::Tolerant);
    let mut last = builder.view();
    let mut is_recent = true;
    for _ in 0..5 + random.below(30) {
        let before = conflicts(&builder);
        let changes: Vec<_> = (0..1 + random.below(3)).map(|_| source.happen(&mut random)).collect();
        let is_one = changes.len() == 1;
        let brought = builder.apply_all(changes);
        let after = conflicts(&builder);
        let new: BTreeSet<Conflict> = after.difference(&before).cloned().collect();
        assert_eq!(brought.iter().cloned().collect::<BTreeSet<_>>(), new, "what is told is what is new");
        seen.conflicts += new.len();
        seen.over += before.difference(&after).count();
        // An earlier view must not show in a later one.
        let is_looked_at = random.percent(30);
        if is_looked_at {
            let is_changed = builder.is_changed();
            let view = builder.view();
            hold(&view, &source);
            assert!(is_changed || is_shared(&view, &last), "a view is another one, and nobody is told");
            // Of several changes the last may bring back what the first took away.
            assert!(!is_changed || !is_recent || !is_one || view != last, "a view for nothing");
            seen.same += usize::from(!is_changed);
            last = view;
        }
        is_recent = is_looked_at;
    }
    let view = builder.view();
    hold(&view, &source);
    seen.backends += view.backends();
    seen.left_out += view.left_out().count();
    let endpoints = view.services.iter().flatten().flat_map(|service| &service.endpoints);
    seen.tied += endpoints.filter(|endpoint| endpoint.node.is_some()).count();
    let mut fresh = source.told(Rules::Tolerant, seed);
    let mut expected = fresh.view();
    // Whether a source that has none ever spoke of Services is not part of what it has now.
    expected.services = expected.services.filter(|_| view.services.is_some());
    assert_eq!(view, expected);
    assert_eq!(conflicts(&builder), conflicts(&fresh));
    nothing_stays(builder);
}

/// Of objects that are gone.
fn nothing_stays(mut builder: Builder) {
    builder.apply_all([Change::Slices(Vec::new()), Change::Nodes(Vec::new()), Change::Services(Vec::new())]);
    assert_eq!(builder.kept(), [0; 3], "names, claims and slices");
}

fn strict(seed: u64, seen: &mut Seen) {
    let mut random = Seeded::new(seed);
    let mut source = Source::default();
    let mut builder = Builder::new(Rules::Strict);
    for _ in 0..5 + random.below(30) {
        let (had, before) = (source.clone(), builder.view());
        let brought = builder.apply(source.happen(&mut random));
        match brought.len() {
            0 => seen.taken += 1,
            1 => {
                seen.refused += 1;
                source = had;
                assert_eq!(builder.view(), before, "nothing is changed by {}", brought[0]);
            }
            more => panic!("{more} conflicts of a strict builder"),
        }
        assert_eq!(builder.conflicts().count(), 0);
    }
    let view = builder.view();
    let mut expected = source.told(Rules::Tolerant, seed).view();
    expected.services = expected.services.filter(|_| view.services.is_some());
    assert_eq!(view, expected);
    nothing_stays(builder);
}

/// 1,000 of each, 10,000 with `NODEFENCE_LONG_TESTS=1`.
#[test]
fn the_view_is_that_of_a_fresh_start_from_the_last_state() {
    let histories = if std::env::var_os("NODEFENCE_LONG_TESTS").is_some() { 10_000 } else { 1_000 };
    let mut seen = Seen::default();
    for seed in 0..histories {
        let run = || {
            tolerant(seed, &mut seen);
            strict(seed, &mut seen);
        };
        if let Err(why) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            eprintln!("in the history of seed {seed}");
            std::panic::resume_unwind(why);
        }
    }
    // The test is not vacuous: each case did happen.
    let Seen { conflicts, over, backends, left_out, tied, refused, taken, same } = seen;
    for (what, times) in [
        ("conflicts", conflicts),
        ("conflicts that went", over),
        ("backends", backends),
        ("backends that are left out", left_out),
        ("tied endpoints", tied),
        ("refused changes", refused),
        ("taken changes", taken),
        ("changes that altered nothing", same),
    ] {
        assert!(times > 400, "{times} {what}");
    }
}
