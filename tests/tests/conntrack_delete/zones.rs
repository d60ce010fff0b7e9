//! Deletion in one zone only: an entry with the same addresses and ports in another zone belongs to another flow.
use anyhow::Result;
use nodefence::conntrack::{ByFilter, Conntrack, Family, Flow, Protocols, Zone};

use super::{
    BY_DUMP, UDP, V4, V6, ZONE, delete_in, entries, flagged, found_out, ip, is_of, names, sctp, sctp_in,
    tracked, udp,
};

/// Deletes in one zone, while a tenant has the same addresses and ports in another zone, or in a zone for one direction only.
fn one_zone_alone(label: &str, by_filter: ByFilter) -> Result<()> {
    for (ours, other) in [(0, ZONE), (ZONE, 0)] {
        let ns = tracked(label)?;
        for addresses in [V4, V6] {
            let [pod, _, host] = addresses;
            for (to, port) in [(pod, 53), (host, 53)] {
                sctp(&ns, to, port)?;
                sctp_in(&ns, to, port, &format!("--zone {ZONE}"))?;
            }
            let from = if ip(pod).is_ipv4() { "127.0.0.1" } else { "fd00::1" };
            for zone in ["", "--zone 42", "--zone 41"] {
                ns.exec(&format!(
                    "conntrack -I -p udp -s {from} -d {pod} --sport 4000 --dport 53 --timeout 600 {zone}"
                ))?;
            }
            // These flows are in zone 42, and for one direction in 43 and in 44.
            ns.run(move || {
                udp(ip(pod), 7_000..7_002);
                udp(ip(pod), 7_100..7_102);
                udp(ip(pod), 7_200..7_202);
            });
        }
        let before = ns.run(entries);
        let at_home = if ours == 0 { None } else { Some(Zone::Both(ours)) };
        let gone = |flow: &&Flow| {
            flow.zone == at_home && [V4, V6].iter().any(|all| is_of(flow, *all, Protocols::Datagrams))
        };
        let (dead, left): (Vec<Flow>, Vec<Flow>) = before.iter().partition(gone);
        // SCTP to the pod and to the host, UDP to the pod, and in zone 42 two datagrams too.
        assert_eq!(dead.len(), 2 * if ours == 0 { 3 } else { 5 }, "{before:?}");
        let same = |flow: &Flow| {
            let zone = if other == 0 { None } else { Some(Zone::Both(other)) };
            left.iter().any(|one| one.zone == zone && (one.orig, one.reply) == (flow.orig, flow.reply))
        };
        assert_eq!(
            dead.iter().filter(|flow| same(flow)).count(),
            6,
            "not each of six entries has its like in the other zone"
        );
        let listed = ns.run(move || {
            let mut conntrack = Conntrack::open(ours).unwrap();
            let reply = dead_udp(&mut conntrack);
            let found = conntrack.by_reply(&reply.reply).unwrap();
            assert_eq!(found.map(|flow| flow.zone), Some(reply.zone));
            let done = delete_in(ours, &flagged(&[V4, V6]), Protocols::Datagrams, by_filter, |_| true);
            assert_eq!(
                conntrack.by_reply(&reply.reply).unwrap(),
                None,
                "the entry of the other zone was found"
            );
            done
        });
        assert_eq!(names(&ns.run(entries)), names(&left), "zone {ours}: {listed:?}");
    }
    Ok(())
}

/// A UDP entry of this socket's zone.
fn dead_udp(conntrack: &mut Conntrack) -> Flow {
    let of = |flow: &Flow| flow.reply.protocol == UDP && flow.reply.src_port == 53;
    conntrack.dump(Family::V4, of).unwrap().flows[0]
}

#[test]
fn by_dump_only_the_entries_of_one_zone_go() -> Result<()> {
    one_zone_alone("zone-dump", BY_DUMP)
}

#[test]
fn by_filter_only_the_entries_of_one_zone_go() -> Result<()> {
    one_zone_alone("zone-filter", found_out()?)
}
