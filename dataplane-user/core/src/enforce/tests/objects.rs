//! Random histories of single objects and failed writes: what follows from the view, and what lies in the maps, is what a fresh start would make.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use nodefence_common::{Addr, BackendEntry, PortKey};

use crate::{
    cluster::{Builder, ClusterView, Rules, Seeded, Source},
    enforce::{Epoch, ExemptIndex, NewView, Target},
    plan::{Answer, Delta, ExemptFor, ExemptPort, Indices, LeftOut, Mode, NodeTables, Policy, Step, Tables},
    proxy,
};

const POLICY: Policy<'static> = Policy { own_node: "a", mode: Mode::Enforce, answer: Answer::Refuse };

fn build(view: ClusterView, indices: &Indices, before: Option<&NewView>) -> NewView {
    let epoch = Epoch(before.map_or(1, |before| before.epoch.0 + 1));
    let slots = |name: &str| indices.get(name);
    let pools = |node: &crate::cluster::Node| node.pool.clone();
    NewView::build(epoch, Arc::new(view), slots, pools, &POLICY, Some(proxy::Mode::Nftables), before)
}

/// What lies in the two maps.
#[derive(Debug, Default, PartialEq)]
struct Maps {
    backends: HashMap<Addr, BackendEntry>,
    ports: HashMap<PortKey, u32>,
}

impl Maps {
    /// Makes one write.
    fn write(&mut self, step: Step) {
        match step {
            Step::DropPort(key) => drop(self.ports.remove(&key)),
            Step::DropBackend(addr) => drop(self.backends.remove(&addr)),
            Step::PutBackend(addr, entry) => {
                assert_eq!(self.backends.insert(addr, entry), None, "{addr:?}");
            }
            Step::PutPort(key, flags, there) => {
                assert_eq!(self.ports.insert(key, flags).is_some(), there, "{key:?}");
            }
        }
    }

    fn tables(&self) -> Tables {
        Tables { backends: self.backends.clone(), ports: self.ports.clone() }
    }

    /// What is to be written for a view, by what is known to lie there, or by what is read.
    fn delta(&self, known: Option<&NodeTables>, view: &NewView) -> Delta {
        match known {
            Some(known) => Delta::of_nodes(known, &LeftOut::default(), &view.tables),
            None => Delta::between(&self.tables(), &LeftOut::default(), &view.tables.flat()),
        }
    }
}

/// The ports that may become exempt, in words that do not depend on numbers: for which Service, and which endpoints of it may be used.
fn targets<'a>(targets: impl Iterator<Item = (u32, &'a Target)>) -> BTreeSet<(ExemptFor, Vec<ExemptPort>)> {
    targets.map(|(_, target)| (target.reason, target.usable().collect::<Vec<_>>())).collect()
}

/// Everything that verdicts follow from is the same.
fn same(one: &NewView, other: &NewView) {
    assert_eq!(one.view.nodes, other.view.nodes);
    assert_eq!((&one.members, &one.sizes), (&other.members, &other.sizes));
    assert_eq!(one.tables.flat(), other.tables.flat());
    assert_eq!(one.addresses, other.addresses);
    let (exempt, expected) = (&one.exempt, &other.exempt);
    assert_eq!(targets(exempt.targets()), targets(expected.targets()));
    for member in one.members.values() {
        let of = |index: &ExemptIndex| {
            targets(index.targets_of(member.slot).map(|(number, _, target)| (number, target)))
        };
        assert_eq!(of(exempt), of(expected));
        assert_eq!(exempt.untied_of(member.slot), expected.untied_of(member.slot));
    }
}

/// Gives how many targets can become exempt, how many entries there are, and how many writes failed.
fn history(seed: u64) -> [usize; 3] {
    let mut random = Seeded::new(seed);
    let mut source = Source::default();
    let mut builder = Builder::new(Rules::Tolerant);
    let mut indices = Indices::default();
    let (mut maps, mut failed, mut targets) = (Maps::default(), 0, 0);
    let mut last: Option<NewView> = None;
    // What the writer knows to lie there; `None` after a failed write: it reads all of it then.
    let mut known: Option<Arc<NodeTables>> = Some(Arc::default());
    for _ in 0..5 + random.below(25) {
        builder.apply(source.happen(&mut random));
        if random.percent(40) {
            continue;
        }
        let view = builder.view();
        indices.reconcile(view.nodes.iter().map(|node| &node.name), 1, 1).unwrap();
        let next = build(view, &indices, last.as_ref());
        same(&next, &build(source.told(Rules::Tolerant, seed).view(), &indices, None));
        targets += next.exempt.targets().count();
        let delta = maps.delta(known.take().as_deref(), &next);
        let steps: Vec<Step> = delta.steps().collect();
        let fails = random.percent(15).then(|| random.below(1 + steps.len() as u64) as usize);
        for step in steps.into_iter().take(fails.unwrap_or(usize::MAX)) {
            maps.write(step);
        }
        failed += usize::from(fails.is_some());
        known = fails.is_none().then(|| Arc::clone(&next.tables));
        last = Some(next);
    }
    let view = builder.view();
    indices.reconcile(view.nodes.iter().map(|node| &node.name), 1, 1).unwrap();
    let end = build(view, &indices, last.as_ref());
    for step in maps.delta(known.as_deref(), &end).steps() {
        maps.write(step);
    }
    let fresh = build(source.told(Rules::Tolerant, seed).view(), &indices, None);
    same(&end, &fresh);
    assert_eq!(maps.tables(), fresh.tables.flat());
    [targets, maps.backends.len(), failed]
}

/// 500, 10,000 with `NODEFENCE_LONG_TESTS=1`.
#[test]
fn what_lies_in_the_maps_is_what_a_fresh_start_would_write() {
    assert!(each(500, history).iter().all(|seen| *seen > 100));
}

/// Runs this many histories, 10,000 with `NODEFENCE_LONG_TESTS=1`, and returns the sums of what each saw.
pub(super) fn each<const N: usize>(
    histories: u64,
    history: impl Fn(u64) -> [usize; N] + std::panic::RefUnwindSafe,
) -> [usize; N] {
    let histories = if std::env::var_os("NODEFENCE_LONG_TESTS").is_some() { 10_000 } else { histories };
    let mut seen = [0; N];
    for seed in 0..histories {
        match std::panic::catch_unwind(|| history(seed)) {
            Ok(saw) => seen.iter_mut().zip(saw).for_each(|(seen, saw)| *seen += saw),
            Err(why) => {
                eprintln!("in the history of seed {seed}");
                std::panic::resume_unwind(why);
            }
        }
    }
    println!("seen: {seen:?}");
    seen
}
