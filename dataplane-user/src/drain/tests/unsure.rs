//! Destinations that kube-proxy may have begun to drain while their weight was 0 because of us, and of which the source of nodes has not
//! told yet.
use std::{net::SocketAddr, rc::Rc, time::Duration};

use super::{
    super::{
        ending::{Reopened, RestoredAtEnd, Surroundings, restore_within},
        world::{Hands, Shared},
    },
    Agent, ENFORCE, at, key, node, shared, used, wanted, world,
};
use crate::{
    drain::Failure,
    ipvs::{self, Change, Destination, Protocol, ServiceKey},
    ledger::Pair,
    plan::drain::DrainSettings,
};

/// Nothing is deleted: connections stay.
const KEEPS: DrainSettings = DrainSettings { flushes: false, ..ENFORCE };
const ENDING: &str = "{ address: 10.244.2.1, ready: false, serving: true, terminating: true }, ";
const THERE: &str = "{ address: 10.244.2.1 }, ";

fn web() -> ServiceKey {
    key(1, Protocol::TCP)
}

fn pair(service: ServiceKey, address: SocketAddr) -> Pair {
    Pair { service, destination: address }
}

/// A view of the first two services, of TCP and of UDP, the first with this endpoint on node 2 beside two others.
fn tell(agent: &mut Agent, endpoint: &str) {
    let dns = "  - name: x/dns
    clusterIPs: [10.96.0.2]
    ports: [{ port: 80, targetPort: 8080, protocol: UDP }]
    endpoints: [{ address: 10.244.2.1 }, { address: 10.244.3.2 }]
";
    let others = "{ address: 10.244.2.2 }, { address: 10.244.3.1 }";
    agent.want(wanted(&format!("{endpoint}{others}"), dns));
}

fn run(agent: &mut Agent) {
    assert!(agent.run(Duration::from_secs(1)));
}

/// Node 2 is flagged with its connections, and then unflagged; its view was confirmed just before.
fn unflagged() -> (Shared, Agent) {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[]);
    agent.drive.set_settings(KEEPS);
    tell(&mut agent, THERE);
    agent.confirm();
    agent.flag(&[node(2)]);
    run(&mut agent);
    agent.flag(&[]);
    run(&mut agent);
    (shared, agent)
}

/// The same, with both weights of the first service restored.
fn raised() -> (Shared, Agent) {
    let (shared, mut agent) = unflagged();
    agent.confirm();
    run(&mut agent);
    assert_eq!(shared.borrow().saved(), world().saved());
    assert!(agent.drive.machine.is_empty());
    agent.drive.set_settings(ENFORCE);
    agent.changes();
    (shared, agent)
}

fn weight(shared: &Shared, address: SocketAddr) -> Option<u32> {
    shared.borrow_mut().destination(&pair(web(), address)).map(|found| found.weight)
}

#[test]
fn with_connections_a_weight_waits_for_the_source() {
    let (shared, mut agent) = unflagged();
    // The others are restored: those of UDP, and those of services that the view does not know.
    let mut expected = world().saved();
    for address in [at(2, 1), at(2, 2)] {
        expected.get_mut(&pair(web(), address)).unwrap().weight = 0;
    }
    assert_eq!(shared.borrow().saved(), expected);
    let row = &agent.drive.machine.report()["node-2"];
    assert_eq!((row.problems.len(), row.waiting), (2, 2), "{row:?}");
    assert!(row.problems[0].contains("kube-proxy may be draining it"), "{row:?}");
    // The guard, which restores it once the agent is gone, waits for nobody.
    assert_eq!(shared.borrow().entries[&pair(web(), at(2, 1))].original.weight, 1);
    // Without connections kube-proxy removes what it drains.
    shared.borrow_mut().destination(&pair(web(), at(2, 1))).unwrap().active = 0;
    run(&mut agent);
    assert_eq!((weight(&shared, at(2, 1)), weight(&shared, at(2, 2))), (Some(1), Some(0)));
    agent.confirm();
    run(&mut agent);
    assert_eq!(shared.borrow().saved(), world().saved());
    assert!(shared.borrow().entries.is_empty() && agent.drive.machine.report().is_empty());
}

#[test]
fn those_of_closed_connections_count() {
    let shared = shared(world());
    let destination = pair(web(), at(2, 1));
    let mut agent = Agent::new(&shared, &[]);
    agent.drive.set_settings(KEEPS);
    tell(&mut agent, THERE);
    agent.flag(&[node(2)]);
    run(&mut agent);
    let closed = Destination { active: 0, inactive: 1, ..used(at(2, 1), 0, 0) };
    *shared.borrow_mut().destination(&destination).unwrap() = closed;
    agent.flag(&[]);
    run(&mut agent);
    assert_eq!(weight(&shared, at(2, 1)), Some(0));
    // Templates do not count: kube-proxy does not look at them.
    let template = Destination { inactive: 0, persistent: 1, ..used(at(2, 1), 0, 0) };
    *shared.borrow_mut().destination(&destination).unwrap() = template;
    run(&mut agent);
    assert_eq!(weight(&shared, at(2, 1)), Some(1));
}

/// The source knew that the endpoint ends before kube-proxy did.
#[test]
fn what_has_left_meanwhile_is_not_restored() {
    let (shared, mut agent) = unflagged();
    tell(&mut agent, ENDING);
    agent.confirm();
    run(&mut agent);
    assert_eq!((weight(&shared, at(2, 1)), weight(&shared, at(2, 2))), (Some(0), Some(7)));
    let row = &agent.drive.machine.report()["node-2"];
    assert!(row.problems.len() == 1 && row.problems[0].contains("not to be used any more"), "{row:?}");
}

#[test]
fn a_node_that_is_flagged_again_waits_for_nothing() {
    let (shared, mut agent) = unflagged();
    agent.flag(&[node(2)]);
    run(&mut agent);
    assert_eq!(agent.drive.machine.report()["node-2"].problems, [""; 0]);
    // Its drain has gone on since: a view that was confirmed meanwhile is enough.
    agent.confirm();
    agent.flag(&[]);
    run(&mut agent);
    assert_eq!(shared.borrow().saved(), world().saved());
}

/// Others raised the weight meanwhile: the destination is drained anew from then on.
#[test]
fn a_drain_that_begins_anew_has_to_be_confirmed_anew() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[]);
    agent.drive.set_settings(KEEPS);
    tell(&mut agent, THERE);
    agent.flag(&[node(2)]);
    run(&mut agent);
    agent.confirm();
    shared.borrow_mut().destination(&pair(web(), at(2, 1))).unwrap().weight = 1;
    run(&mut agent);
    agent.flag(&[]);
    run(&mut agent);
    assert_eq!((weight(&shared, at(2, 1)), weight(&shared, at(2, 2))), (Some(0), Some(7)));
}

/// Fail open: even a destination that is being drained is better than none.
#[test]
fn where_nobody_else_has_a_weight_it_is_restored_at_once() {
    let shared = shared(world());
    let mut agent = Agent::new(&shared, &[]);
    agent.drive.set_settings(KEEPS);
    tell(&mut agent, THERE);
    agent.flag(&[node(2)]);
    run(&mut agent);
    // The other destination is on a node that is flagged in its place.
    agent.flag(&[node(3)]);
    run(&mut agent);
    let weights = [at(2, 1), at(2, 2), at(3, 1)].map(|address| weight(&shared, address));
    assert_eq!(weights, [Some(1), Some(7), Some(0)]);
}

/// The next agent does not know since when a destination is drained.
#[test]
fn what_an_earlier_agent_drained_has_to_be_confirmed_anew() {
    let (shared, agent) = unflagged();
    drop(agent);
    shared.borrow_mut().pass(Duration::from_secs(60));
    let mut next = Agent::new(&shared, &[]);
    next.drive.set_settings(KEEPS);
    tell(&mut next, THERE);
    next.confirm();
    run(&mut next);
    assert_eq!((weight(&shared, at(2, 1)), weight(&shared, at(2, 2))), (Some(0), Some(0)));
    next.confirm();
    run(&mut next);
    assert_eq!(shared.borrow().saved(), world().saved());
}

struct Around(Shared);

impl Surroundings<Hands> for Around {
    fn now(&self) -> Duration {
        self.0.borrow().now
    }

    fn pause(&mut self, time: Duration) {
        self.0.borrow_mut().pass(time);
    }

    fn reopen(&mut self, error: &ipvs::Error) -> Reopened<Hands> {
        unreachable!("{error}")
    }

    fn tell(&mut self, problem: Failure) {
        unreachable!("{problem}")
    }
}

/// An agent that ends restores all: no agent follows it.
#[test]
fn at_its_end_an_agent_puts_all_back() {
    let (shared, mut agent) = unflagged();
    let done = restore_within(&mut agent.drive, &mut Around(Rc::clone(&shared)), Duration::from_secs(10));
    assert_eq!(done, RestoredAtEnd::All);
    assert_eq!(shared.borrow().saved(), world().saved());
}

/// Half a list says nothing: a destination that waits for the source is not taken for restored.
#[test]
fn at_its_end_an_agent_waits_for_a_whole_list() {
    let (shared, mut agent) = unflagged();
    shared.borrow_mut().unreadable.insert(web());
    let mut around = Around(Rc::clone(&shared));
    let done = restore_within(&mut agent.drive, &mut around, Duration::from_secs(1));
    assert_eq!(done, RestoredAtEnd::Late);
    assert_eq!(weight(&shared, at(2, 1)), Some(0));
    shared.borrow_mut().unreadable.clear();
    assert_eq!(restore_within(&mut agent.drive, &mut around, Duration::from_secs(1)), RestoredAtEnd::All);
    assert_eq!(shared.borrow().saved(), world().saved());
}

/// A change that the kernel did not get, or refused, is tried again.
#[test]
fn a_weight_that_was_not_taken_back_is_taken_back_later() {
    for stumble in 0..8 {
        let (shared, mut agent) = raised();
        shared.borrow_mut().stumbles = vec![stumble];
        tell(&mut agent, ENDING);
        agent.live(Duration::from_secs(3));
        assert_eq!(weight(&shared, at(2, 1)), Some(0), "{stumble}");
        assert_eq!(shared.borrow().entries.len(), 1, "{stumble}");
    }
}

/// kube-proxy set the weight to 0 before the node was flagged again, and it stays so while the destination has connections.
#[test]
fn what_has_weight_0_when_its_node_is_flagged_again_is_looked_at_no_more() {
    let (shared, mut agent) = raised();
    agent.drive.set_settings(KEEPS);
    shared.borrow_mut().destination(&pair(web(), at(2, 1))).unwrap().weight = 0;
    agent.flag(&[node(2)]);
    run(&mut agent);
    tell(&mut agent, ENDING);
    run(&mut agent);
    let now = shared.borrow().now;
    assert!(agent.drive.machine.next_due().is_none_or(|due| due > now), "it is looked at again and again");
}

/// An agent that is to change nothing restores what an earlier one drained, and no more.
#[test]
fn in_observe_mode_nothing_is_taken_back() {
    let (shared, agent) = unflagged();
    drop(agent);
    let mut next = Agent::new(&shared, &[]);
    next.drive.set_settings(DrainSettings { enforce: false, ..KEEPS });
    tell(&mut next, THERE);
    run(&mut next);
    next.confirm();
    run(&mut next);
    assert_eq!(shared.borrow().saved(), world().saved());
    next.changes();
    tell(&mut next, "");
    run(&mut next);
    assert_eq!(next.changes(), []);
}

#[test]
fn what_the_next_view_lacks_is_deleted() {
    let (shared, mut agent) = raised();
    tell(&mut agent, "");
    run(&mut agent);
    assert_eq!(agent.changes(), [Change::DeleteDestination(web(), at(2, 1))]);
    assert!(shared.borrow().entries.is_empty());
    // Only once: what kube-proxy adds is its own.
    let _added = shared.borrow_mut().change(&Change::NewDestination(web(), used(at(2, 1), 1, 0)));
    tell(&mut agent, "");
    run(&mut agent);
    assert_eq!(agent.changes(), []);
}

/// kube-proxy lets an ending endpoint serve to its end, and so do we.
#[test]
fn what_ends_by_the_next_view_keeps_its_connections() {
    let (shared, mut agent) = raised();
    tell(&mut agent, ENDING);
    run(&mut agent);
    let lowered = Destination { weight: 0, ..Destination::new(at(2, 1), 1) };
    assert_eq!(agent.changes(), [Change::SetDestination(web(), Destination { active: 2, ..lowered })]);
    let row = &agent.drive.machine.report()["node-2"];
    assert!(row.problems[0].contains("not to be used any more"), "{row:?}");
    assert_eq!(
        shared.borrow().entries[&pair(web(), at(2, 1))].original.weight,
        0,
        "the guard raises nothing"
    );
    // The endpoint is wanted again, perhaps before kube-proxy saw that it was not.
    tell(&mut agent, THERE);
    agent.confirm();
    run(&mut agent);
    assert_eq!(shared.borrow().saved(), world().saved());
}

#[test]
fn what_is_not_as_it_was_raised_is_left_alone() {
    let (shared, mut agent) = raised();
    shared.borrow_mut().destination(&pair(web(), at(2, 1))).unwrap().weight = 3;
    tell(&mut agent, "");
    run(&mut agent);
    assert_eq!(agent.changes(), []);
}

/// A view that was confirmed afterwards shows that kube-proxy was not draining the endpoint. From then on its weight is kube-proxy's.
#[test]
fn what_is_there_by_a_later_view_is_forgotten() {
    let (_shared, mut agent) = raised();
    assert!(agent.drive.machine.remembers());
    agent.confirm();
    assert!(!agent.drive.machine.remembers());
    tell(&mut agent, "");
    run(&mut agent);
    assert_eq!(agent.changes(), []);
}

#[test]
fn what_is_left_alone_keeps_its_weight() {
    let (shared, mut agent) = raised();
    for address in [at(2, 2), at(3, 1)] {
        shared.borrow_mut().destination(&pair(web(), address)).unwrap().weight = 0;
    }
    tell(&mut agent, "");
    run(&mut agent);
    assert_eq!(agent.changes(), []);
    shared.borrow_mut().destination(&pair(web(), at(3, 1))).unwrap().weight = 1;
    assert!(agent.run(Duration::from_secs(2)));
    assert_eq!(agent.changes(), [Change::DeleteDestination(web(), at(2, 1))]);
}
