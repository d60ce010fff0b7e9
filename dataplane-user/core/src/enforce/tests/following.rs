//! Compares what is made of a view from its changes with the same made anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    changing::{Cluster, names},
    model::Slots,
    random::Seeded,
    rig::{policy, settings},
};
use crate::{
    cluster::{ClusterView, Node, NodeName},
    enforce::{Delta, Epoch, ExemptIndex, NewView, shortage::Shortage},
    plan::{self, ExemptFor, ExemptPort, LeftOut, Slot, Tables},
    proxy::Mode,
};

/// How often each way was gone.
#[derive(Debug, Default)]
struct Ways {
    followed: u64,
    anew: u64,
    same_addresses: u64,
    same_members: u64,
    exempt: u64,
    shared_parts: u64,
}

fn build(slots: &Slots, view: &Arc<ClusterView>, mode: Option<Mode>, before: Option<&NewView>) -> NewView {
    let pool = |node: &Node| (node.zone.as_deref() == Some("y")).then(|| "front".into());
    let epoch = Epoch(before.map_or(1, |before| before.epoch.0 + 1));
    NewView::build(epoch, Arc::clone(view), |name| slots.get(name), pool, &policy(&settings()), mode, before)
}

/// A node's targets, with how many of what they may use it has, and its untied ports: in words that do not depend on numbers.
type OfNode = (BTreeSet<(ExemptFor, Vec<ExemptPort>, u32)>, Vec<(ExemptPort, ExemptFor)>);

fn of_nodes(index: &ExemptIndex, slots: &Slots) -> BTreeMap<Slot, OfNode> {
    let slots = names().into_iter().filter_map(|name| slots.get(&name));
    let of_node = |slot: Slot| {
        let targets = index.targets_of(slot);
        let targets =
            targets.map(|(_, count, target)| (target.reason, target.usable().collect::<Vec<_>>(), count));
        (slot, (targets.collect(), index.untied_of(slot).to_vec()))
    };
    slots.map(of_node).collect()
}

fn numbers_are_each_one_s(index: &ExemptIndex) {
    let numbers: BTreeSet<u32> = index.targets().map(|(number, _)| number).collect();
    assert_eq!(numbers.len(), index.targets().count(), "two targets have one number");
    for (number, target) in index.targets() {
        assert_eq!(index.sizes()[number as usize] as usize, target.usable().count());
    }
}

/// What writes make of tables.
fn written(mut there: Tables, delta: &plan::Delta) -> Tables {
    for step in delta.steps() {
        match step {
            plan::Step::DropPort(key) => assert!(there.ports.remove(&key).is_some()),
            plan::Step::DropBackend(addr) => assert!(there.backends.remove(&addr).is_some()),
            plan::Step::PutBackend(addr, entry) => {
                assert_eq!(there.backends.insert(addr, entry), None, "{addr:?}");
            }
            plan::Step::PutPort(key, flags, lies) => {
                let old = there.ports.insert(key, flags);
                assert!(old.is_some() == lies && old != Some(flags), "{key:?}");
            }
        }
    }
    there
}

fn the_same(new: &NewView, fresh: &NewView, slots: &Slots) {
    assert_eq!(new.view, fresh.view);
    assert_eq!((&new.members, &new.sizes), (&fresh.members, &fresh.sizes));
    let flat = fresh.tables.flat();
    assert_eq!(new.tables.flat(), flat);
    assert_eq!((new.tables.backends(), new.tables.ports()), (flat.backends.len(), flat.ports.len()));
    assert_eq!(new.addresses, fresh.addresses);
    assert_eq!(of_nodes(&new.exempt, slots), of_nodes(&fresh.exempt, slots));
    let targets = |index: &ExemptIndex| {
        let all = index.targets().map(|(_, target)| (target.reason, target.usable().collect::<Vec<_>>()));
        all.collect::<BTreeSet<_>>()
    };
    assert_eq!(targets(&new.exempt), targets(&fresh.exempt));
    numbers_are_each_one_s(&new.exempt);
    for (at, slot) in new.view.indexed().map(|(at, node)| (at, slots.get(&node.name))) {
        let port = ExemptPort {
            node: at,
            address: [10, 0, 0, 1].into(),
            port: 1,
            protocol: crate::cluster::Protocol::Tcp,
        };
        assert_eq!((new.exempt.slot(&port), fresh.exempt.slot(&port)), (slot, slot));
    }
}

/// The delta names the nodes that have another place or lost one, as a full comparison does.
fn the_same_members(before: &NewView, new: &NewView) {
    let Delta { base, added, left, .. } = &new.delta;
    assert_eq!(*base, Some(before.epoch));
    let of = |view: &NewView| {
        view.members.iter().map(|(name, member)| (name.clone(), member.slot)).collect::<BTreeSet<_>>()
    };
    let (old, now) = (of(before), of(new));
    let names =
        |slots: Vec<&(NodeName, Slot)>| slots.into_iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(*added, names(now.difference(&old).collect()));
    assert_eq!(left.iter().cloned().collect::<BTreeSet<_>>(), old.difference(&now).cloned().collect());
}

/// Nodes with backends that they did not have before.
fn grew(before: &NewView, new: &NewView) -> Vec<NodeName> {
    let grew = |node: &&Arc<Node>| {
        let known = before.view.node(&node.name).map(|old| old.backends.clone()).unwrap_or_default();
        node.backends.iter().any(|backend| !known.contains(backend))
    };
    new.view.nodes.iter().filter(grew).map(|node| node.name.clone()).collect()
}

/// A view in place of one that was not taken has the changes since the view before that. `shortage`: that of the view before.
fn the_same_without(
    skipped: &NewView,
    before: &NewView,
    new: &NewView,
    (shortage, cut): (Shortage, &BTreeSet<Slot>),
    slots: &Slots,
) {
    let new = Arc::new(new.clone()).in_place_of(skipped);
    the_same_members(before, &new);
    let told: BTreeSet<&NodeName> = new.delta.grown.iter().collect();
    assert!(grew(before, &new).iter().all(|name| told.contains(name)));
    let either: BTreeSet<NodeName> = grew(before, skipped).into_iter().chain(grew(skipped, &new)).collect();
    assert!(told.into_iter().all(|name| either.contains(name)), "{:?}", new.delta.grown);
    if let Some(changed) = &new.delta.exempt {
        let followed = shortage.follow(Arc::clone(&new.exempt), changed, |slot| cut.contains(&slot));
        the_same_shortage(&followed, &anew(&new.exempt, cut), cut, slots);
    }
}

/// The delta says what changed, as a full comparison does.
fn the_same_delta(before: &NewView, new: &NewView) {
    the_same_members(before, new);
    assert_eq!(new.delta.grown, grew(before, new));
    let delta = plan::Delta::of_nodes(&before.tables, &LeftOut::default(), &new.tables);
    assert_eq!(written(before.tables.flat(), &delta), new.tables.flat());
    // Entries that did not fit are put, also where nothing else changed.
    let left_out = before.tables.flat().backends.keys().take(3).copied().collect();
    let left_out = LeftOut { backends: left_out, ..LeftOut::default() };
    let mut there = before.tables.flat();
    there.backends.retain(|addr, _| !left_out.backends.contains(addr));
    assert_eq!(
        written(there, &plan::Delta::of_nodes(&before.tables, &left_out, &new.tables)),
        new.tables.flat()
    );
}

fn anew(index: &Arc<ExemptIndex>, cut: &BTreeSet<Slot>) -> Shortage {
    let mut shortage = Shortage::new(Arc::clone(index));
    for slot in cut {
        shortage.cut(*slot);
    }
    shortage
}

/// Both give the same exemptions, now and whatever is cut next.
fn the_same_shortage(followed: &Shortage, fresh: &Shortage, cut: &BTreeSet<Slot>, slots: &Slots) {
    let exempt = |shortage: &Shortage| shortage.ports().iter().copied().collect::<BTreeSet<_>>();
    assert_eq!((exempt(followed), followed.ports().len()), (exempt(fresh), fresh.ports().len()));
    let (mut followed, mut fresh) = (followed.clone(), fresh.clone());
    let as_set = |ports: Vec<ExemptPort>| ports.into_iter().collect::<BTreeSet<_>>();
    for slot in names().into_iter().filter_map(|name| slots.get(&name)).filter(|slot| !cut.contains(slot)) {
        assert_eq!(as_set(followed.cut(slot)), as_set(fresh.cut(slot)));
        assert_eq!(exempt(&followed), exempt(&fresh));
    }
    for slot in cut {
        assert_eq!(as_set(followed.spare(*slot)), as_set(fresh.spare(*slot)));
        assert_eq!(exempt(&followed), exempt(&fresh));
    }
}

fn history(seed: u64, ways: &mut Ways) {
    let mut random = Seeded::new(seed);
    let mut cluster = Cluster::new(&mut random);
    let (mut slots, mut mode) = (Slots::default(), None);
    let mut last: Option<NewView> = None;
    let mut before_last: Option<(NewView, Shortage, BTreeSet<Slot>)> = None;
    let mut shortage: Option<Shortage> = None;
    let mut cut: BTreeSet<Slot> = BTreeSet::new();
    let mut steps = Vec::new();
    for _ in 0..12 {
        for _ in 0..random.below(4) {
            steps.push(cluster.change(&mut random));
        }
        if random.percent(5) {
            mode = random.pick(&[None, Some(Mode::Ipvs), Some(Mode::Iptables)]);
            steps.push("mode");
        }
        let view = cluster.view();
        let view = Arc::new(match &last {
            Some(last) if random.percent(95) => view.sharing(&last.view),
            _ => view,
        });
        slots.reconcile(&view);
        let new = build(&slots, &view, mode, last.as_ref());
        the_same(&new, &build(&slots, &view, mode, None), &slots);
        if let Some(before) = &last {
            the_same_delta(before, &new);
            if let Some((skipping, shortage, cut)) = before_last.take() {
                the_same_without(before, &skipping, &new, (shortage, &cut), &slots);
            }
            ways.same_addresses += u64::from(Arc::ptr_eq(&new.addresses, &before.addresses));
            ways.same_members += u64::from(Arc::ptr_eq(&new.members, &before.members));
            let shared = |slot: Slot| match (new.tables.part(slot.index), before.tables.part(slot.index)) {
                (Some(ours), Some(others)) => Arc::ptr_eq(ours, others),
                _ => false,
            };
            let all = names().into_iter().filter_map(|name| slots.get(&name));
            ways.shared_parts += all.filter(|slot| shared(*slot)).count() as u64;
        }
        before_last = last.take().zip(shortage.clone()).map(|(view, shortage)| (view, shortage, cut.clone()));
        let next = match (shortage.take(), &new.delta.exempt) {
            (Some(before), Some(changed)) => {
                ways.followed += 1;
                before.follow(Arc::clone(&new.exempt), changed, |slot| cut.contains(&slot))
            }
            _ => {
                ways.anew += 1;
                anew(&new.exempt, &cut)
            }
        };
        the_same_shortage(&next, &anew(&new.exempt, &cut), &cut, &slots);
        let next = shortage.insert(next);
        for slot in names().into_iter().filter_map(|name| slots.get(&name)) {
            if !random.percent(30) {
                continue;
            }
            if cut.remove(&slot) {
                next.spare(slot);
            } else {
                cut.insert(slot);
                next.cut(slot);
            }
        }
        ways.exempt += u64::from(!next.ports().is_empty());
        last = Some(new);
    }
}

/// After each step of 1,500 random histories of changes (10,000 with `NODEFENCE_LONG_TESTS=1`) all that was made of what changed equals what is made anew: tables, what
/// is written, exemptions, virtual addresses, who is counted where.
#[test]
fn what_follows_from_a_change_is_what_follows_from_the_whole() {
    let histories = if std::env::var_os("NODEFENCE_LONG_TESTS").is_some() { 10_000 } else { 1_500 };
    let mut ways = Ways::default();
    for seed in 0..histories {
        let tried = std::panic::AssertUnwindSafe(|| history(seed, &mut ways));
        if let Err(panic) = std::panic::catch_unwind(tried) {
            eprintln!("history {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    let Ways { followed, anew, same_addresses, same_members, exempt, shared_parts } = ways;
    let each = [followed, anew, same_addresses, same_members, exempt];
    assert!(each.iter().all(|times| *times > histories) && shared_parts > 10 * histories, "{ways:?}");
}
