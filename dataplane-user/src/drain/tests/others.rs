//! Whatever others do to the table meanwhile.
use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::world::{Proxy, World},
    Agent, at, destination, key, node, server, shared, used,
};
use crate::{
    ipvs::{Change, Protocol, ServiceKey},
    ledger::Pair,
    plan::drain::Flagged,
};

/// What others do to the table.
#[derive(Clone, Debug)]
enum Other {
    Sync,
    Restart,
    Leave(u8, u8),
    Return(u8, u8),
    Remake(u8),
    Weigh(u8, u8, u32),
    Connect,
    Flag(u8),
    Kill(usize),
}

fn others() -> impl Strategy<Value = Vec<(u16, Other)>> {
    let one = prop_oneof![
        3 => Just(Other::Sync),
        1 => Just(Other::Restart),
        2 => (0u8..4, 0u8..4).prop_map(|(s, d)| Other::Leave(s, d)),
        2 => (0u8..4, 0u8..4).prop_map(|(s, d)| Other::Return(s, d)),
        1 => (0u8..4).prop_map(Other::Remake),
        1 => (0u8..4, 0u8..4, 0u32..3).prop_map(|(s, d, w)| Other::Weigh(s, d, w)),
        2 => Just(Other::Connect),
        3 => (0u8..4).prop_map(Other::Flag),
        2 => (0usize..40).prop_map(Other::Kill),
    ];
    prop::collection::vec((0u16..700, one), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever kube-proxy does meanwhile, and however often the agent is killed: once no node is flagged and kube-proxy has synced, every
    /// destination that it wants is there and has weight; and no change of ours takes a service's last weight (asserted at each one, by
    /// [`Hands`](super::super::world::Hands)).
    #[test]
    fn converges(steps in others(), flush in 1u64..900) {
        let services: Vec<ServiceKey> = (1..5).map(|n| key(n, if n % 2 == 0 { Protocol::TCP } else { Protocol::UDP })).collect();
        let places = [at(2, 1), at(2, 2), at(3, 1), at(4, 1)];
        let mut start = World { flush: Duration::from_millis(flush), ..World::default() };
        let mut proxy = Proxy::default();
        for (n, key) in services.iter().enumerate() {
            let scheduler = ["rr", "sh", "mh", "lc"][n];
            let destinations: Vec<_> = places.iter().map(|place| used(*place, 1, 1)).collect();
            start.servers.insert(*key, server(*key, scheduler, 0, destinations));
            proxy.wanted.insert(*key, places.to_vec());
        }
        let shared = shared(start);
        let mut agent = Agent::new(&shared, &[]);
        for (pause, other) in steps {
            if !agent.run(Duration::from_millis(pause.into())) {
                shared.borrow_mut().fuse = None;
                let flagged = agent.flagged.clone();
                agent = Agent::new(&shared, &flagged);
            }
            let mut world = shared.borrow_mut();
            match other {
                Other::Sync => proxy.sync(&mut world),
                Other::Restart => { proxy.restarted = true; proxy.sync(&mut world) }
                Other::Leave(s, d) => {
                    let place = places[usize::from(d)];
                    proxy.wanted.get_mut(&services[usize::from(s)]).unwrap().retain(|a| *a != place);
                    proxy.sync(&mut world);
                }
                Other::Return(s, d) => {
                    let wanted = proxy.wanted.get_mut(&services[usize::from(s)]).unwrap();
                    if !wanted.contains(&places[usize::from(d)]) { wanted.push(places[usize::from(d)]) }
                    proxy.sync(&mut world);
                }
                Other::Remake(s) => {
                    let key = services[usize::from(s)];
                    let service = world.servers[&key].service.clone();
                    let _done = world.change(&Change::DeleteService(key));
                    let _done = world.change(&Change::NewService(service));
                    proxy.sync(&mut world);
                }
                Other::Weigh(s, d, weight) => {
                    let pair = Pair { service: services[usize::from(s)], destination: places[usize::from(d)] };
                    if let Some(found) = world.destination(&pair) { found.weight = weight }
                }
                Other::Connect => world.connect(),
                Other::Flag(which) => {
                    drop(world);
                    let nodes: &[u8] = [&[][..], &[2], &[3], &[2, 3]][usize::from(which)];
                    let flagged: Vec<Flagged> = nodes.iter().map(|n| node(*n)).collect();
                    agent.flag(&flagged);
                    continue;
                }
                Other::Kill(fuse) => world.fuse = Some(fuse),
            }
        }
        shared.borrow_mut().fuse = None;
        // Settled: each service has a weight, if kube-proxy wants any destination there.
        proxy.restarted = true;
        proxy.sync(&mut shared.borrow_mut());
        let flagged = agent.flagged.clone();
        let mut agent = Agent::new(&shared, &flagged);
        prop_assert!(agent.run(Duration::from_secs(8)));
        for (key, wanted) in &proxy.wanted {
            let world = shared.borrow();
            let weight: u32 = world.servers[key].destinations.iter().map(|d| d.weight).sum();
            prop_assert!(weight > 0 || wanted.is_empty(), "{}: {:?}", key, world.servers[key].destinations);
        }
        agent.flag(&[]);
        prop_assert!(agent.run(Duration::from_secs(2)));
        proxy.sync(&mut shared.borrow_mut());
        let world = shared.borrow();
        prop_assert!(world.entries.is_empty());
        for (key, wanted) in &proxy.wanted {
            for place in wanted {
                let found = destination(&world.servers[key], *place);
                prop_assert!(found.is_some_and(|d| d.weight > 0), "{} {}: {:?}", key, place, found);
            }
        }
    }
}
