//! Compares which ports are exempt with `plan::exemptions`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nodefence_common::{PortKey, port_flags};

use proptest::prelude::*;

use super::{
    model::{Cluster, OWN},
    random::{Seeded, cluster},
    rig::{policy, settings},
    texts::text,
};
use crate::{
    enforce::{Epoch, ExemptPorts, NewView, Output, exempt::Exempt},
    plan::{ExemptIndex, Exemptions, Slot, exemptions},
};

fn slot(name: &str) -> Slot {
    let index = u32::from(name.bytes().next().unwrap_or_default());
    Slot { index, generation: 7 }
}

fn build(cluster: &Arc<Cluster>, epoch: u64) -> NewView {
    let view = Arc::clone(&cluster.view);
    NewView::build(Epoch(epoch), view, |name| Some(slot(name)), |_| None, &policy(&settings()), None, None)
}

fn oracle(cluster: &Cluster, cut: &BTreeSet<Slot>) -> Exemptions {
    let nodes = cluster.view.indexed().filter(|(_, node)| cut.contains(&slot(&node.name)));
    let nodes = nodes.map(|(position, _)| position).collect();
    exemptions(&cluster.view, &ExemptIndex::new(&cluster.view), OWN, None, &nodes)
}

/// Makes every write that is due.
fn write(exempt: &mut Exempt, there: &mut BTreeMap<PortKey, u32>) {
    while let Some(output) = exempt.next_before().or_else(|| exempt.next_after().map(|(output, _)| output)) {
        match output {
            Output::Exempt(key) => there.insert(key, port_flags::EXEMPT),
            Output::Except(key) => there.insert(key, port_flags::CUT),
            Output::Unexempt(key) => there.remove(&key),
            _ => unreachable!("{output:?}"),
        };
    }
}

/// The keys that let pass what either lets pass. At an address that both let pass, they cut the ports that both cut.
fn either(one: &Exemptions, other: &Exemptions) -> BTreeMap<PortKey, u32> {
    let (one, other) = (one.keys(), other.keys());
    let keys: BTreeSet<PortKey> = one.keys().chain(other.keys()).copied().collect();
    let says = |key: PortKey| {
        let values = [&one, &other]
            .map(|keys| (keys.get(&key), keys.contains_key(&PortKey::exempt_address(key.addr))));
        let passes = values.iter().any(|(value, _)| *value == Some(&port_flags::EXEMPT));
        let cut = values.iter().all(|(value, whole)| value.is_some() || !whole);
        match (passes, cut) {
            (true, _) => Some((key, port_flags::EXEMPT)),
            (false, true) => Some((key, port_flags::CUT)),
            (false, false) => None,
        }
    };
    keys.into_iter().filter_map(says).collect()
}

proptest! {
    /// Whatever is cut and spared in whatever order: exemptions and their reasons follow only from which nodes are cut, and over
    /// two views they are those that either needs.
    #[test]
    fn counting_is_what_looking_everywhere_gives(
        seeds in (any::<u64>(), any::<u64>()),
        steps in prop::collection::vec((0_usize..6, any::<bool>()), 1..20),
        opened in 0_usize..20,
    ) {
        let [one, other] = [seeds.0, seeds.1].map(|seed| cluster(&mut Seeded::new(seed)));
        let mut exempt = Exempt::default();
        let (first_view, second_view) = (build(&one, 1), build(&other, 2));
        exempt.open(&first_view, None);
        exempt.written(Epoch(1));
        let mut cut = BTreeSet::new();
        let mut there = BTreeMap::new();
        for (at, (node, flag)) in steps.into_iter().enumerate() {
            if at == opened {
                exempt.open(&second_view, None);
            }
            let slot = slot(&"abcdef"[node..]);
            if flag { cut.insert(slot) } else { cut.remove(&slot) };
            exempt.set_cut(slot, flag);
            write(&mut exempt, &mut there);
            let (first, second) = (oracle(&one, &cut), oracle(&other, &cut));
            let (latest, view, needed) = match at < opened {
                true => (&first, &first_view, first.keys()),
                false => (&second, &second_view, either(&first, &second)),
            };
            prop_assert_eq!(&view.exemptions(&exempt.ports()), latest);
            prop_assert_eq!(exempt.ports().len(), latest.ports.len());
            prop_assert_eq!(&there, &needed);
        }
        exempt.open(&build(&other, 3), None);
        exempt.written(Epoch(3));
        write(&mut exempt, &mut there);
        prop_assert_eq!(there, oracle(&other, &cut).keys());
    }
}

#[test]
fn a_clone_stays_as_it_was() {
    let text = text("abcdef", &["b", "bc"]);
    let cluster = Cluster::parse(&text);
    let mut exempt = Exempt::default();
    exempt.open(&build(&cluster, 1), None);
    exempt.set_cut(slot("b"), true);
    let before: ExemptPorts = exempt.ports();
    exempt.set_cut(slot("c"), true);
    assert_eq!((before.len(), exempt.ports().len()), (1, 3));
    exempt.set_cut(slot("b"), false);
    exempt.set_cut(slot("c"), false);
    assert!(exempt.ports().is_empty() && before.iter().count() == 1);
}
