//! Which ports are exempt, held against `plan::keep`.

use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;

use super::{
    model::{Cluster, OWN},
    random::{Seeded, cluster},
    rig::{policy, told},
    texts::text,
};
use crate::{
    enforce::{Epoch, ExemptPorts, NewView, exempt::Exempt},
    plan::{Keep, KeepIndex, Slot, keep},
};

fn slot(name: &str) -> Slot {
    let index = u32::from(name.bytes().next().unwrap_or_default());
    Slot { index, generation: 7 }
}

fn build(cluster: &Arc<Cluster>, epoch: u64) -> NewView {
    let view = Arc::clone(&cluster.view);
    NewView::build(Epoch(epoch), view, |name| Some(slot(name)), |_| None, &policy(&told()), None, None)
}

fn oracle(cluster: &Cluster, cut: &BTreeSet<Slot>) -> Keep {
    let nodes = cluster.view.indexed().filter(|(_, node)| cut.contains(&slot(&node.name)));
    let nodes = nodes.map(|(position, _)| position).collect();
    keep(&cluster.view, &KeepIndex::new(&cluster.view), OWN, None, &nodes)
}

proptest! {
    /// Whatever is cut and spared in whatever order: what is exempt follows from who is cut alone, with the same reasons, and over
    /// two views it is what either needs.
    #[test]
    fn counting_is_what_looking_everywhere_gives(
        seeds in (any::<u64>(), any::<u64>()),
        steps in prop::collection::vec((0_usize..6, any::<bool>()), 1..20),
        opened in 0_usize..20,
    ) {
        let [one, other] = [seeds.0, seeds.1].map(|seed| cluster(&mut Seeded::new(seed)));
        let mut exempt = Exempt::default();
        exempt.open(Epoch(1), &build(&one, 1).exempt, None);
        exempt.written(Epoch(1));
        let mut cut = BTreeSet::new();
        let mut there = BTreeSet::new();
        for (at, (node, flag)) in steps.into_iter().enumerate() {
            if at == opened {
                exempt.open(Epoch(2), &build(&other, 2).exempt, None);
            }
            let slot = slot(&"abcdef"[node..]);
            if flag { cut.insert(slot) } else { cut.remove(&slot) };
            exempt.set_cut(slot, flag);
            while let Some(key) = exempt.next_missing() {
                there.insert(key);
            }
            while let Some((key, _)) = exempt.next_surplus() {
                there.remove(&key);
            }
            let (first, second) = (oracle(&one, &cut), oracle(&other, &cut));
            let (latest, mut needed) = if at < opened { (&first, first.keys()) } else { (&second, first.keys()) };
            if at >= opened {
                needed.extend(second.keys());
            }
            prop_assert_eq!(&exempt.ports().keep(), latest);
            prop_assert_eq!(exempt.ports().len(), latest.ports.len());
            prop_assert_eq!(&there, &needed);
        }
        exempt.open(Epoch(3), &build(&other, 3).exempt, None);
        exempt.written(Epoch(3));
        while let Some((key, _)) = exempt.next_surplus() {
            there.remove(&key);
        }
        while let Some(key) = exempt.next_missing() {
            there.insert(key);
        }
        prop_assert_eq!(there, oracle(&other, &cut).keys());
    }
}

#[test]
fn a_clone_stays_as_it_was() {
    let text = text("abcdef", &["b", "bc"]);
    let cluster = Cluster::parse(&text);
    let mut exempt = Exempt::default();
    exempt.open(Epoch(1), &build(&cluster, 1).exempt, None);
    exempt.set_cut(slot("b"), true);
    let before: ExemptPorts = exempt.ports();
    exempt.set_cut(slot("c"), true);
    assert_eq!((before.len(), exempt.ports().len()), (1, 3));
    exempt.set_cut(slot("b"), false);
    exempt.set_cut(slot("c"), false);
    assert!(exempt.ports().is_empty() && before.iter().count() == 1);
}
