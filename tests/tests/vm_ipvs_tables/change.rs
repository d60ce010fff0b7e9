//! Changes of IPVS tables have the intended effect, and no other.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use nodefence::ipvs::{
    Change, ChangeOutcome, Destination, Family, Flags, Protocol, Service, ServiceKey, flags,
};
use nodefence_tests::ipvs::saved;

use super::{
    common::{alone, apply, apply_all, at, namespace, service, snapshot, with},
    ipvsadm::{EVERYTHING, same, sorted, thresholds},
};

#[test]
fn what_is_made_here_is_what_ipvsadm_says() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    let other = namespace()?;
    other.feed("ipvsadm -R", EVERYTHING)?;
    let theirs = saved(&other)?;
    let limits = thresholds(&other)?;

    // Everything is read in one namespace and made in the other.
    let mut changes = Vec::new();
    for server in snapshot(&other)?.services.into_values() {
        let key = server.service.key;
        changes.push(Change::NewService(server.service));
        changes.extend(
            server.destinations.into_iter().map(|destination| Change::NewDestination(key, destination)),
        );
    }
    apply_all(&ns, changes)?;
    same(&saved(&ns)?, &theirs)?;
    same(&thresholds(&ns)?, &limits)?;

    // The kernel sets the flag HASHED itself. A service that is made with this flag would never be found.
    let web = at("10.96.0.1:80", Protocol::TCP)?;
    let found = with(&ns, move |ipvs| Ok(ipvs.service(&web)?))?.context("no such service")?;
    ensure!(found.flags.bits & flags::HASHED != 0, "{found:?}");

    let changed = Service { timeout: 42, ..found.clone() };
    let changed =
        Service { flags: Flags { bits: found.flags.bits | flags::PERSISTENT, ..found.flags }, ..changed };
    let changed = Service { scheduler: "wlc".parse()?, ..changed };
    apply_all(
        &ns,
        vec![
            Change::SetService(changed),
            Change::DeleteDestination(web, "10.244.1.4:80".parse()?),
            Change::DeleteDestination(web, "[2001:db8:1::9]:80".parse()?),
            Change::DeleteService(ServiceKey::Mark { family: Family::V6, mark: 4096 }),
        ],
    )?;
    let expected = theirs.into_iter().filter(|line| {
        !line.contains("-r 10.244.1.4:80 ")
            && !line.contains("-r [2001:db8:1::9]:80 ")
            && !line.contains("-f 4096 -6")
    });
    let expected = expected.map(|line| match line.as_str() {
        "-A -t 10.96.0.1:80 -s rr" => "-A -t 10.96.0.1:80 -s wlc -p 42".to_owned(),
        _ => line,
    });
    same(&saved(&ns)?, &sorted(expected))
}

#[test]
fn weight_0_and_back_leaves_the_table_as_it_was() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    ns.feed("ipvsadm -R", EVERYTHING)?;
    let before = (saved(&ns)?, thresholds(&ns)?);
    let found = snapshot(&ns)?;

    let set = |weight: fn(&Destination) -> u32| {
        found
            .pairs()
            .map(|(service, destination)| {
                let destination = Destination { weight: weight(destination), ..destination.clone() };
                Change::SetDestination(service.key, destination)
            })
            .collect::<Vec<_>>()
    };
    apply_all(&ns, set(|_| 0))?;
    let drained = snapshot(&ns)?;
    ensure!(drained.pairs().count() == found.pairs().count());
    ensure!(drained.pairs().all(|(_, destination)| destination.weight == 0));
    let zero = |line: &String| match line.split_once(" -w ") {
        Some((head, tail)) => {
            format!("{head} -w 0{}", tail.trim_start_matches(|letter: char| letter.is_ascii_digit()))
        }
        None => line.clone(),
    };
    same(&saved(&ns)?, &sorted(before.0.iter().map(zero)))?;
    same(&thresholds(&ns)?, &before.1)?;

    apply_all(&ns, set(|destination| destination.weight))?;
    same(&saved(&ns)?, &before.0)?;
    same(&thresholds(&ns)?, &before.1)?;

    // The steps of a tombstone: destinations are deleted, added again with weight 0, and restored.
    let each_pair = |change: fn(ServiceKey, Destination) -> Change| {
        found.pairs().map(move |(service, destination)| change(service.key, destination.clone())).collect()
    };
    apply_all(&ns, each_pair(|key, destination| Change::DeleteDestination(key, destination.address)))?;
    ensure!(snapshot(&ns)?.pairs().count() == 0);
    apply_all(
        &ns,
        each_pair(|key, destination| Change::NewDestination(key, Destination { weight: 0, ..destination })),
    )?;
    same(&saved(&ns)?, &sorted(before.0.iter().map(zero)))?;
    apply_all(&ns, each_pair(Change::SetDestination))?;
    same(&saved(&ns)?, &before.0)?;
    same(&thresholds(&ns)?, &before.1)
}

#[test]
fn each_change_has_its_outcome() -> Result<()> {
    let _alone = alone();
    let ns = namespace()?;
    let key = at("10.96.0.1:80", Protocol::TCP)?;
    let gone = at("10.96.0.2:80", Protocol::TCP)?;
    let (a, b): (SocketAddr, SocketAddr) = ("10.244.1.1:80".parse()?, "10.244.1.2:80".parse()?);
    let too_heavy = Destination::new(a, 1 << 31);
    let other_family = Destination::new("[2001:db8::1]:80".parse()?, 1);
    let changes = vec![
        (Change::NewService(service(key, "rr")?), ChangeOutcome::Done),
        (Change::NewService(service(key, "wrr")?), ChangeOutcome::Exists),
        (Change::NewService(service(gone, "nosuchscheduler")?), ChangeOutcome::Refused(libc::ENOENT)),
        (Change::SetService(service(gone, "rr")?), ChangeOutcome::NoService),
        (Change::DeleteService(gone), ChangeOutcome::NoService),
        (Change::NewDestination(key, Destination::new(a, 1)), ChangeOutcome::Done),
        (Change::NewDestination(key, Destination::new(a, 2)), ChangeOutcome::Exists),
        (Change::NewDestination(gone, Destination::new(a, 1)), ChangeOutcome::NoService),
        (Change::SetDestination(key, Destination::new(a, 3)), ChangeOutcome::Done),
        (Change::SetDestination(key, Destination::new(b, 1)), ChangeOutcome::NoDestination),
        (Change::SetDestination(gone, Destination::new(a, 1)), ChangeOutcome::NoService),
        (Change::SetDestination(key, too_heavy), ChangeOutcome::Refused(libc::ERANGE)),
        (Change::NewDestination(key, other_family), ChangeOutcome::Refused(libc::EINVAL)),
        (Change::DeleteDestination(key, b), ChangeOutcome::NoDestination),
        (Change::DeleteDestination(gone, a), ChangeOutcome::NoService),
    ];
    let (changes, expected): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
    // These are more changes than can be in flight at once, so that each outcome must be assigned to its change.
    let rounds = 20;
    let again = |round: usize| match expected[round] {
        _ if round == 0 || round == 5 => ChangeOutcome::Exists,
        outcome => outcome,
    };
    let outcomes = apply(&ns, changes.iter().cycle().take(changes.len() * rounds).cloned().collect())?;
    ensure!(outcomes[..changes.len()] == expected, "{outcomes:?}");
    for (at, outcome) in outcomes.iter().enumerate().skip(changes.len()) {
        let place = at % changes.len();
        ensure!(*outcome == again(place), "{:?}: {outcome:?}", changes[place]);
    }
    same(
        &saved(&ns)?,
        &sorted(
            ["-A -t 10.96.0.1:80 -s rr", "-a -t 10.96.0.1:80 -r 10.244.1.1:80 -m -w 3"].map(str::to_owned),
        ),
    )?;
    apply_all(&ns, vec![Change::DeleteDestination(key, a), Change::DeleteService(key)])?;
    ensure!(saved(&ns)?.is_empty());
    Ok(())
}
