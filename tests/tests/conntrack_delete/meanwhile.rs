//! Entries that are replaced by another flow's, or that come, while entries are deleted.
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::Result;
use nodefence::conntrack::{Backends, ByFilter, Conntrack, Deleted, Family, Flow, Protocols, Zone};
use nodefence_tests::{
    load::{Running, datagrams::to_ports},
    proc::thread_time,
};

use super::{
    BY_DUMP, UDP, V4, V6, delete, doomed, entries, fill, flagged, found_out, ip, names, tracked, udp,
};

/// A new entry may have the original direction, the id and the zone of the deleted one, and lead to another backend. It must stay.
#[test]
fn a_flow_that_found_another_backend_stays() -> Result<()> {
    let ns = tracked("delete-anew")?;
    let forward = |to: &str| {
        ns.nft(&format!(
            "table ip n {{}}; delete table ip n;
            table ip n {{ chain c {{ type nat hook output priority -100; udp dport 53 dnat to {to}; }}; }}"
        ))
    };
    let send = || {
        ns.run(|| {
            let socket = UdpSocket::bind(("127.0.0.1", 40_000)).unwrap();
            socket.send_to(b"x", ("127.9.9.9", 53)).unwrap();
        });
    };
    let listed = || {
        let mut flows = ns.run(entries);
        flows.retain(|flow| flow.reply.protocol == UDP);
        flows
    };
    let delete = |flows: &[Flow]| {
        let flows = flows.to_vec();
        ns.run(move || Conntrack::open_all_zones().unwrap().delete(&flows).unwrap())
    };
    let gone = Deleted { gone: 1, ..Deleted::default() };
    let mut same_id = 0;
    for _ in 0..20 {
        forward(V4[0])?;
        send();
        let old = listed();
        assert_eq!((old.len(), IpAddr::from(old[0].reply.src)), (1, ip(V4[0])));
        assert_eq!(delete(&old), Deleted { deleted: 1, ..Deleted::default() });
        assert_eq!(listed(), []);
        assert_eq!(delete(&old), gone);
        forward(V4[1])?;
        send();
        let new = listed();
        assert_eq!((new.len(), new[0].orig, IpAddr::from(new[0].reply.src)), (1, old[0].orig, ip(V4[1])));
        same_id += usize::from(new[0].id == old[0].id);
        assert_eq!(delete(&old), gone);
        // Neither an entry of another zone nor one with another id is deleted.
        assert_eq!(delete(&[Flow { zone: Some(Zone::Both(41)), ..new[0] }]), gone);
        assert_eq!(delete(&[Flow { id: new[0].id ^ 1, ..new[0] }]), gone);
        assert_eq!(names(&listed()), names(&new));
        assert_eq!(delete(&new).deleted, 1);
    }
    println!("{same_id} of 20 entries had their predecessor's id");
    Ok(())
}

/// Each listed entry is looked up by itself, in any zone. An entry with another id that took its place does not count.
#[test]
fn what_is_still_there_is_looked_up_by_itself() -> Result<()> {
    let ns = tracked("delete-look-up")?;
    let open = [fill(&ns, V4)?, fill(&ns, V6)?];
    ns.run(|| {
        let all = entries();
        let mut conntrack = Conntrack::open_all_zones().unwrap();
        let mut there = |flows: &[Flow]| names(&conntrack.still_there(flows).unwrap());
        assert!(all.iter().filter(|flow| flow.zone.is_some()).count() > 1_000);
        assert_eq!(there(&all), names(&all));
        let others: Vec<Flow> = all.iter().map(|flow| Flow { id: flow.id ^ 1, ..*flow }).collect();
        assert_eq!(there(&others), BTreeSet::new(), "entries with other ids were found");
        let (gone, left): (Vec<Flow>, Vec<Flow>) = all.iter().partition(|flow| flow.reply.src_port % 3 == 0);
        assert_eq!(Conntrack::open_all_zones().unwrap().delete(&gone).unwrap().deleted, gone.len());
        assert_eq!(there(&all), names(&left));
        assert_eq!(there(&[]), BTreeSet::new());
    });
    drop(open);
    Ok(())
}

/// A flag may be taken back while entries are deleted. Clients that have connected since need their entries, so the deletion stops.
#[test]
fn the_rest_stays_once_it_may_not_be_deleted_any_more() -> Result<()> {
    let ns = tracked("delete-stops")?;
    let open = fill(&ns, V4)?;
    let datagrams =
        |flows: &[Flow]| flows.iter().filter(|flow| doomed(flow, V4, Protocols::Datagrams)).count();
    let before = datagrams(&ns.run(entries));
    assert!(before > 1_700, "{before}");
    let (known, deleted) = ns.run(move || {
        let not_at_all = |_: &mut Vec<Flow>| false;
        for by_filter in [BY_DUMP, ByFilter { v4: true, v6: true }] {
            let stopped = Deleted { stopped: true, ..Deleted::default() };
            let which = Protocols::Datagrams;
            assert_eq!(delete(&flagged(&[V4]), which, by_filter, not_at_all), stopped);
        }
        assert_eq!(datagrams(&entries()), before);
        let mut known = 0;
        let two_batches = |flows: &mut Vec<Flow>| {
            known += flows.len();
            known < 3 * flows.len()
        };
        let done = delete(&flagged(&[V4]), Protocols::Datagrams, BY_DUMP, two_batches);
        assert!(done.stopped);
        (known, done.deleted)
    });
    assert_eq!(deleted, known / 3 * 2, "not exactly the two allowed batches were deleted");
    assert_eq!(datagrams(&ns.run(entries)), before - deleted);
    drop(open);
    Ok(())
}

#[test]
fn entries_go_while_others_come_and_go() -> Result<()> {
    let ns = tracked("delete-busy")?;
    let found = found_out()?;
    ns.run(move || {
        let mut churn = Running::default();
        let socket = SocketAddr::from(([127, 0, 0, 1], 40_001));
        churn.start(move |stop| to_ports(stop, socket, Ipv4Addr::new(127, 9, 9, 9), 20_000..22_000));
        let mut backends = Backends::new();
        backends.add_address(ip(V4[0]).into(), ());
        let mut rounds = 0;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            let by_filter = if rounds % 2 == 0 { BY_DUMP } else { found };
            udp(ip(V4[0]), 1_000..2_000);
            let mut conntrack = Conntrack::open_all_zones().unwrap();
            let done = delete(&backends, Protocols::Datagrams, by_filter, |_| true);
            assert!(done.refused == 0 && !done.incomplete, "{done:?}");
            assert!(done.deleted == 1_000 || by_filter.v4, "{done:?}");
            let left = conntrack.dump(Family::V4, |flow| backends.of_flow(flow).is_some()).unwrap();
            assert!(left.flows.iter().all(|flow| flow.reply.protocol != UDP), "{:?}", left.flows.first());
            rounds += 1;
        }
        assert!(churn.finish().unwrap()[0] > 0, "no other entry came or went");
        assert!(rounds > 1);
    });
    Ok(())
}

#[test]
fn one_filter_costs_less_than_a_dump() -> Result<()> {
    const ROUNDS: u8 = 5;
    let found = found_out()?;
    let ns = tracked("delete-cost")?;
    ns.run(move || {
        for last in 1..=50 {
            udp(IpAddr::from([127, 3, 1, last]), 10_000..12_000);
        }
        let mut conntrack = Conntrack::open_all_zones().unwrap();
        let timed = |last, by_filter| {
            let mut backends = Backends::new();
            backends.add_address(IpAddr::from([127, 3, 1, last]).into(), ());
            let start = thread_time().unwrap();
            let done = delete(&backends, Protocols::Datagrams, by_filter, |_| true);
            (done, thread_time().unwrap() - start)
        };
        // The two ways take turns, and the least time of each counts, since other work on the machine only adds time.
        let mut dump = Duration::MAX;
        let mut filter = Duration::MAX;
        for round in 0..ROUNDS {
            let (dumped, took) = timed(2 * round + 1, BY_DUMP);
            assert_eq!(dumped.deleted, 2_000);
            dump = dump.min(took);
            if found.v4 {
                let (filtered, took) = timed(2 * round + 2, found);
                assert_eq!(filtered.filtered, 2);
                filter = filter.min(took);
            }
        }
        println!("2,000 of 84,000 to 100,000 entries: {dump:?} of processor time by dump");
        if found.v4 {
            println!("{filter:?} by two filters");
            assert!(filter < dump, "{filter:?} by filter, {dump:?} by dump");
        }
        let left = conntrack.dump(Family::V4, |flow| flow.reply.protocol == UDP).unwrap().flows.len();
        let rounds = usize::from(ROUNDS);
        assert_eq!(left, 100_000 - 2_000 * if found.v4 { 2 * rounds } else { rounds });
    });
    Ok(())
}
