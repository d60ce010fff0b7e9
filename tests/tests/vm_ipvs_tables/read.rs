//! Readings of IPVS tables match the content of the kernel's tables.
#![expect(
    unsafe_code,
    reason = "one thread gives up its privileges, which libc's wrappers do for the whole process"
)]

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::ipvs::{Applied, Change, ChangeOutcome, Destination, Error, Ipvs, Protocol, ServiceKey};
use nodefence_tests::{
    ipvs::{Snapshot, saved},
    load::{Running, repeat},
};

use super::{
    common::{alone, apply_all, at, namespace, service, snapshot, with},
    ipvsadm::{EVERYTHING, rendered, rendered_thresholds, same, thresholds},
};

#[test]
fn everything_is_read_as_ipvsadm_says() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    ensure!(snapshot(&ns)?.services.is_empty(), "the table of a new namespace is not empty");
    ns.feed("ipvsadm -R", EVERYTHING)?;
    let found = snapshot(&ns)?;
    let theirs = saved(&ns)?;
    ensure!(theirs.len() == EVERYTHING.lines().count(), "{theirs:#?}");
    same(&rendered(&found), &theirs)?;
    same(&rendered_thresholds(&found), &thresholds(&ns)?)?;

    let key = at("10.96.0.1:80", Protocol::TCP)?;
    let limited = found.pair(&key, "10.244.1.3:8080".parse()?).context("no such destination")?;
    ensure!((limited.upper_threshold, limited.lower_threshold) == (100, 50), "{limited:?}");
    for server in found.services.values() {
        ensure!(server.service.unknown.is_empty(), "{:?}", server.service);
        let key = server.service.key;
        let (one, listed) = with(&ns, move |ipvs| Ok((ipvs.service(&key)?, ipvs.destinations(&key)?)))?;
        ensure!(one.as_ref() == Some(&server.service), "{one:?}");
        ensure!(listed.items == server.destinations, "{listed:?}");
    }
    ensure!(found.pairs().all(|(_, destination)| destination.unknown.is_empty()), "{found:#?}");

    let none = at("10.96.99.99:80", Protocol::TCP)?;
    let (one, listed) = with(&ns, move |ipvs| Ok((ipvs.service(&none)?, ipvs.destinations(&none)?)))?;
    ensure!(one.is_none() && listed.items.is_empty(), "{one:?} {listed:?}");
    Ok(())
}

#[test]
fn connections_of_a_destination_are_counted() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    // Seven datagrams go from seven ports to a service with two destinations, all over the loopback device.
    ns.ip("addr add 10.96.0.10/32 dev lo\naddr add 10.244.1.1/32 dev lo\naddr add 10.244.1.2/32 dev lo")?;
    ns.feed(
        "ipvsadm -R",
        "-A -u 10.96.0.10:53 -s rr -p 60\n-a -u 10.96.0.10:53 -r 10.244.1.1:53 -m -w 1\n\
         -a -u 10.96.0.10:53 -r 10.244.1.2:53 -m -w 1\n",
    )?;
    ns.run(|| -> Result<()> {
        let _servers = [UdpSocket::bind("10.244.1.1:53")?, UdpSocket::bind("10.244.1.2:53")?];
        let clients: Vec<UdpSocket> =
            (0..7).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        clients.iter().try_for_each(|client| client.send_to(b"1234", "10.96.0.10:53").map(drop))?;
        Ok(())
    })?;
    let key = at("10.96.0.10:53", Protocol::UDP)?;
    let found = snapshot(&ns)?.services.remove(&key).context("no such service")?;
    // A client address has one template, so all its connections go to one destination.
    let used: Vec<&Destination> =
        found.destinations.iter().filter(|destination| destination.is_used()).collect();
    ensure!(matches!(used[..], [Destination { active: 0, inactive: 7, persistent: 1, .. }]), "{found:#?}");
    Ok(())
}

fn many(services: u16, pods: u8, first: u16) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for number in first..first + services {
        let [high, low] = number.to_be_bytes();
        let key = at(&format!("10.97.{high}.{low}:80"), Protocol::TCP)?;
        changes.push(Change::NewService(service(key, "rr")?));
        for pod in 1..=pods {
            let address = format!("10.244.{pod}.{low}:{}", 8000 + number).parse()?;
            changes.push(Change::NewDestination(key, Destination::new(address, u32::from(pod))));
        }
    }
    Ok(changes)
}

#[test]
fn a_thousand_services_are_read_without_loss() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    let changes = many(1000, 10, 0)?;
    let count = changes.len();
    let start = Instant::now();
    apply_all(&ns, changes)?;
    let applied = start.elapsed();
    let start = Instant::now();
    let found = snapshot(&ns)?;
    let read = start.elapsed();
    let start = Instant::now();
    let theirs = saved(&ns)?;
    println!("{count} changes {applied:?}; read {read:?}; ipvsadm -Sn {:?}", start.elapsed());
    ensure!(found.services.len() == 1000 && found.pairs().count() == 10_000 && theirs.len() == 11_000);
    ensure!(rendered(&found) == theirs);

    // This service has more destinations than one message of a list holds.
    let key = at("10.98.0.1:80", Protocol::TCP)?;
    let pods = (0..1000_u16).map(|number| {
        let [high, low] = number.to_be_bytes();
        Destination::new(SocketAddr::from(([10, 245, high, low], 80)), 1)
    });
    let mut changes = vec![Change::NewService(service(key, "rr")?)];
    changes.extend(pods.map(|destination| Change::NewDestination(key, destination)));
    apply_all(&ns, changes)?;
    let listed = with(&ns, move |ipvs| Ok(ipvs.destinations(&key)?))?;
    ensure!(listed.items.len() == 1000 && listed.malformed == 0 && !listed.incomplete);
    Ok(())
}

#[test]
fn what_stays_is_read_while_others_come_and_go() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    apply_all(&ns, many(400, 2, 0)?)?;
    let mut churn = Running::default();
    let stop = churn.stop();
    churn.add(ns.spawn(move || {
        let mut ipvs = Ipvs::open()?;
        // The services are spread over the kernel's hash buckets, between those that stay.
        let mut places = (0..50).map(|place| 1000 + place * 40).cycle();
        repeat(&stop, || {
            let made = many(40, 1, places.next().context("no place")?)?;
            let gone = made.iter().filter_map(|change| match change {
                Change::NewService(service) => Some(Change::DeleteService(service.key)),
                _ => None,
            });
            let changes: Vec<Change> = made.iter().cloned().chain(gone).collect();
            let Applied { outcomes, failure } = ipvs.apply(&changes);
            ensure!(failure.is_none() && outcomes.iter().all(|outcome| *outcome == ChangeOutcome::Done));
            Ok(Duration::ZERO)
        })
    })?);
    let mut incomplete = 0;
    for _ in 0..10 {
        let found = with(&ns, |ipvs| Ok(Snapshot::read(ipvs)?))?;
        ensure!(found.malformed == 0);
        incomplete += usize::from(found.incomplete);
        let stays = found.services.iter().filter(
            |(key, _)| matches!(key, ServiceKey::Address { address, .. } if *address < SocketAddr::from(([10, 97, 3, 232], 0))),
        );
        let pairs: Vec<usize> = stays.map(|(_, server)| server.destinations.len()).collect();
        // An incomplete reading is the union of several, and each of them may have missed the same row.
        let least = if found.incomplete { 390 } else { 400 };
        ensure!(
            (least..=400).contains(&pairs.len()) && pairs.iter().all(|count| *count == 2),
            "{} services, incomplete: {}",
            pairs.len(),
            found.incomplete
        );
    }
    let rounds: u64 = churn.finish()?.into_iter().sum();
    ensure!(rounds > 0, "no other service came or went");
    println!("{rounds} rounds of change, {incomplete} of 10 readings could not be repeated");
    Ok(())
}

#[test]
fn without_the_privilege_it_says_so() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    let opened = ns.run(|| {
        std::thread::spawn(|| {
            // SAFETY: setresuid(2) takes three numbers and touches no memory of ours. The kernel's call changes the calling thread alone,
            // which ends right after.
            let code = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
            (code, Ipvs::open().map(drop))
        })
        .join()
    });
    let Ok((0, opened)) = opened else { anyhow::bail!("the thread kept its privileges") };
    ensure!(matches!(opened, Err(Error::Permission)), "{opened:?}");
    Ok(())
}
