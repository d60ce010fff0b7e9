//! Random histories of single objects, of claims and of writes that fail: verdicts and exemptions in the maps are those of a fresh start as well.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use nodefence_common::PortKey;

use super::{
    model::{Cluster, Maps, word},
    objects::each,
    rig::{Fate, Rig, SECOND, claim, settings},
};
use crate::{
    cluster::{Builder, NodeName, Rules, Seeded, Source as Objects},
    enforce::{Change, ClaimSource, Input},
};

/// As [`crate::cluster::Source`] calls its nodes, and one that it does not know.
const NODES: [&str; 5] = ["a", "b", "c", "d", "z"];

/// What packets meet, in words that do not depend on places.
#[derive(Debug, PartialEq)]
struct Met {
    nodes: BTreeMap<String, &'static str>,
    exempt: BTreeMap<PortKey, u32>,
    backends: BTreeMap<String, (String, u32)>,
    endpoints: BTreeSet<PortKey>,
}

fn met(maps: &Maps) -> Met {
    let owned = maps.nodes.iter().filter(|(_, entry)| entry.name != [0; 28]);
    let backends = maps.backends.iter().map(|(addr, backend)| {
        let entry = maps.nodes[&backend.node];
        assert_eq!(entry.generation, backend.generation, "{addr:?}");
        (format!("{addr:?}"), (maps.name(backend.node), backend.flags))
    });
    Met {
        nodes: owned.map(|(index, entry)| (maps.name(*index), word(entry))).collect(),
        exempt: maps.exempt.clone(),
        backends: backends.collect(),
        endpoints: maps.endpoints.clone(),
    }
}

fn any_claim(rig: &mut Rig, random: &mut Seeded) {
    let node = random.pick(&NODES);
    let source = random.pick(&[0, 0, 1]);
    let source = if source == 0 { ClaimSource::Cli } else { ClaimSource::Hung };
    let change = match random.percent(60) {
        true => Change::Raise { claim: claim(source), force: true },
        false => Change::Withdraw(source),
    };
    rig.ask(node, change);
}

fn any_tables(rig: &mut Rig, random: &mut Seeded) {
    if random.percent(20) {
        rig.fail_tables(random.below(12) as usize);
    } else {
        rig.write_tables();
    }
    rig.run();
}

fn begun() -> Rig {
    let mut rig = Rig::new(settings());
    rig.tell(Input::Routes { own_attached: true });
    rig
}

/// Gives how many are cut, how many ports are exempt, and how many writes failed.
fn history(seed: u64) -> [usize; 3] {
    let mut random = Seeded::new(seed);
    let mut objects = Objects::default();
    let mut builder = Builder::new(Rules::Tolerant);
    let mut rig = begun();
    let (failing, failed) = (Rc::new(Cell::new(random.pick(&[0, 5, 30]))), Rc::new(Cell::new(0)));
    let (percent, count) = (Rc::clone(&failing), Rc::clone(&failed));
    let mut fates = Seeded::new(!seed);
    rig.fates = Box::new(move |_| {
        if !fates.percent(percent.get()) {
            return Fate::Done;
        }
        count.set(count.get() + 1);
        fates.pick(&[Fate::Failed, Fate::FailedAndDone])
    });
    rig.writes_tables = false;
    for _ in 0..10 + random.below(40) {
        builder.apply(objects.happen(&mut random));
        match random.below(10) {
            0..3 => drop(rig.view(&Cluster::told(builder.view()))),
            3..6 => any_tables(&mut rig, &mut random),
            6..8 => any_claim(&mut rig, &mut random),
            8 => rig.pass(random.below(2 * SECOND)),
            _ => {}
        }
    }
    failing.set(0);
    rig.writes_tables = true;
    rig.write_tables();
    rig.view(&Cluster::told(builder.view()));
    // No automatic claim is left then.
    rig.pass(400 * SECOND);
    let mut fresh = begun();
    fresh.view(&Cluster::told(objects.told(Rules::Tolerant, seed).view()));
    let claimed: Vec<NodeName> = rig.enforcer.claims.nodes().cloned().collect();
    for node in &claimed {
        assert!(rig.enforcer.claims.of(node).iter().all(|claim| claim.source == ClaimSource::Cli));
        // Of a node that is not there it is refused.
        fresh.raise(node, claim(ClaimSource::Cli), true);
    }
    fresh.pass(SECOND);
    assert_eq!(met(&rig.maps), met(&fresh.maps), "{}", rig.log.join("\n"));
    [rig.maps.cut(rig.now.mono).count(), rig.maps.exempt.len(), failed.get()]
}

#[test]
fn what_packets_meet_is_what_they_meet_after_a_fresh_start() {
    let seen = each(1_000, history);
    assert!(seen.iter().all(|seen| *seen > 10), "{seen:?}");
}
