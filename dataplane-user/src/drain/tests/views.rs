//! Endpoints change all the time, as they do in a large cluster.
use std::{net::SocketAddr, time::Duration};

use super::{
    Agent, MS, at, key, node,
    pace::{READING, large, undone_after},
    shared, used, wanted, world,
};
use crate::{
    cluster::{Backend, Scope},
    ipvs::{Change, Destination, Protocol},
    ledger::Pair,
    plan::drain::{Drain, DrainSettings, Flagged},
};

/// So many changes a second.
const CHANGES: u32 = 20;

/// As [`Agent::flag`], with a view in which an endpoint of node 3 is ready, or not.
fn change(agent: &mut Agent, ready: bool, flagged: &[Flagged]) {
    let others = "{ address: 10.244.2.1 }, { address: 10.244.2.2 }, { address: 10.244.3.1 }";
    agent.want(wanted(&format!("{others}, {{ address: 10.244.3.2, ready: {ready} }}"), ""));
    agent.flag(flagged);
}

/// So many seconds in which endpoints change.
fn churn(agent: &mut Agent, flagged: &[Flagged], seconds: u32) {
    for number in 0..seconds * CHANGES {
        change(agent, number % 2 == 0, flagged);
        assert!(agent.run(Duration::from_secs(1) / CHANGES));
    }
}

#[test]
fn they_have_the_tables_read_no_more_often() {
    let flagged = [Flagged { challenged: true, ..node(2) }];
    let mut agent = large();
    let before = agent.world.borrow().read;
    churn(&mut agent, &flagged, 60);
    let read = READING * u32::try_from(agent.world.borrow().read - before).unwrap();
    assert!(read < Duration::from_secs(60) / 15, "{read:?}");
}

/// Nobody is flagged, nothing is ours: nothing is read.
#[test]
fn without_a_flag_nothing_is_read() {
    let mut agent = large();
    agent.flag(&[]);
    assert!(agent.run(Duration::from_secs(2)));
    assert!(agent.drive.machine.is_empty());
    let before = agent.world.borrow().read;
    churn(&mut agent, &[], 10);
    assert_eq!((agent.drive.next(false), agent.world.borrow().read), (None, before));
}

/// Services are made anew and destinations added again meanwhile: neither waits until everything is read.
#[test]
fn what_comes_again_is_taken_again_in_time() {
    let flagged = [Flagged { challenged: true, ..node(2) }];
    let pairs = [
        (key(1, Protocol::TCP), at(2, 1)),
        (key(4, Protocol::TCP), at(2, 1)),
        (key(2, Protocol::UDP), at(2, 1)),
    ];
    for (number, (service, destination)) in pairs.into_iter().enumerate() {
        let pair = Pair { service, destination };
        for anew in [true, false] {
            let mut agent = large();
            let made = agent.world.borrow().servers[&service].service.clone();
            let mut world = agent.world.borrow_mut();
            if anew {
                let _gone = world.change(&Change::DeleteService(service));
            } else if world.destination(&pair).is_some() {
                let _gone = world.change(&Change::DeleteDestination(service, destination));
            }
            drop(world);
            churn(&mut agent, &flagged, 2);
            let mut world = agent.world.borrow_mut();
            if anew {
                let _made = world.change(&Change::NewService(made));
                let _added = world.change(&Change::NewDestination(service, Destination::new(at(3, 1), 1)));
            }
            let _added = world.change(&Change::NewDestination(service, Destination::new(destination, 1)));
            drop(world);
            let undone = undone_after(&mut agent, &pair);
            assert!(undone <= Duration::from_millis(500), "{number}, {anew}: {undone:?}");
        }
    }
}

/// It may be a destination of any service.
#[test]
fn a_new_backend_of_a_flagged_node_has_everything_read_at_once() {
    let mut agent = large();
    let new = Pair { service: key(1, Protocol::TCP), destination: at(2, 9) };
    agent.world.borrow_mut().servers.get_mut(&new.service).unwrap().destinations.push(used(at(2, 9), 1, 0));
    let mut more = Flagged { challenged: true, ..node(2) };
    more.backends.push(Backend { address: at(2, 9).ip(), scope: Scope::Address });
    change(&mut agent, true, &[more]);
    let undone = undone_after(&mut agent, &new);
    assert!(undone < Duration::from_millis(300), "{undone:?}");
}

/// A minute after a service is gone it is no more looked at than others.
#[test]
fn what_is_gone_is_looked_at_for_a_minute() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[Flagged { challenged: true, ..node(2) }]);
    assert!(agent.run(Duration::from_secs(3)));
    for key in world().servers.into_keys() {
        let _gone = shared.borrow_mut().change(&Change::DeleteService(key));
    }
    assert!(agent.run(Duration::from_secs(30)));
    assert!(agent.drive.machine.is_empty() && agent.drive.machine.has_services());
    assert!(agent.run(Duration::from_secs(40)));
    assert!(!agent.drive.machine.has_services());
}

#[test]
fn only_other_nodes_and_backends_call_for_a_look_at_everything() {
    let mut machine =
        Drain::new(DrainSettings { enforce: true, flushes: true }, std::collections::BTreeMap::new());
    let (two, three) = (node(2), node(3));
    let host = |port| {
        let address: SocketAddr = ([10, 0, 0, 2], port).into();
        Backend { address: address.ip(), scope: Scope::Port(port, crate::cluster::Protocol::Tcp) }
    };
    let with = |port| Flagged { backends: vec![host(port)], ..node(2) };
    for (flagged, all) in [
        (vec![], false),
        (vec![two.clone()], true),
        (vec![two.clone()], false),
        (vec![Flagged { challenged: true, ..two.clone() }], false),
        (vec![two.clone(), three.clone()], true),
        (vec![three.clone()], true),
        (vec![Flagged { name: "other".into(), ..three }], true),
        (vec![with(80)], true),
        (vec![with(80)], false),
        (vec![with(81)], true),
        (vec![], true),
        (vec![], false),
    ] {
        assert_eq!(machine.set_flagged(&flagged, MS), all, "{flagged:?}");
    }
}
