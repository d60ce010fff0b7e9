use std::{fs, io::Write as _, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::ipvs::{Destination, Family, Forward, Protocol, ServiceKey, Tunnel};

fn key(number: u8) -> ServiceKey {
    match number % 4 {
        0 => ServiceKey::Mark { family: Family::V4, mark: u32::from(number) + 1 },
        1 => ServiceKey::Mark { family: Family::V6, mark: u32::from(number) + 1 },
        2 => ServiceKey::Address { address: ([10, 96, 0, number], 80).into(), protocol: Protocol::SCTP },
        _ => ServiceKey::Address {
            address: (std::net::Ipv6Addr::LOCALHOST, u16::from(number)).into(),
            protocol: Protocol::TCP,
        },
    }
}

fn pair(number: u8) -> Pair {
    Pair { service: key(number), destination: ([10, 244, 0, number], 8080).into() }
}

fn entry(number: u8, phase: Phase) -> Entry {
    let original = Destination {
        forward: [Forward::Masquerade, Forward::Tunnel, Forward::Other(9)][usize::from(number % 3)],
        upper_threshold: u32::from(number) * 3,
        lower_threshold: 2,
        tunnel: Tunnel { kind: 1, port: 6080, flags: u16::from(number) },
        unknown: vec![(77, vec![number, 0, 1])],
        ..Destination::new(pair(number).destination, u32::from(number) * 7)
    };
    Entry { node: format!("node-{number}").into(), phase, original }
}

fn phase(number: u8) -> Phase {
    [Phase::Lowered, Phase::Deleted, Phase::Tombstone][usize::from(number % 3)]
}

#[test]
fn what_was_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, loaded) = Ledger::open(dir.path()).unwrap();
    assert!(loaded.entries.is_empty() && loaded.problem.is_none());
    let own = |n| Record::Own(pair(n), entry(n, Phase::Lowered));
    ledger.append(&[own(1), own(2), own(3)]).unwrap();
    ledger.append(&[Record::Phase(pair(2), Phase::Deleted), Record::Drop(pair(1))]).unwrap();
    let loaded = Ledger::read(dir.path()).unwrap();
    let expected = [(pair(2), entry(2, Phase::Deleted)), (pair(3), entry(3, Phase::Lowered))];
    assert_eq!(loaded.entries, expected.into_iter().collect());
    assert_eq!((loaded.damaged, loaded.problem), (0, None));
    // Another agent continues this ledger.
    let (mut ledger, again) = Ledger::open(dir.path()).unwrap();
    assert_eq!(again.entries, loaded.entries);
    ledger.append(&[Record::Drop(pair(2)), Record::Drop(pair(3))]).unwrap();
    ledger.rest(0, Default::default).unwrap();
    assert!(Ledger::read(dir.path()).unwrap().entries.is_empty());
    let text = fs::read_to_string(dir.path().join("ledger.log")).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(Ledger::remove(dir.path()).unwrap() && !Ledger::remove(dir.path()).unwrap());
    assert!(Ledger::read(dir.path()).unwrap().entries.is_empty());
}

#[test]
fn history_is_written_away() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
    let entries: std::collections::BTreeMap<Pair, Entry> =
        [(pair(1), entry(1, Phase::Deleted))].into_iter().collect();
    ledger.append(&[Record::Own(pair(1), entry(1, Phase::Lowered))]).unwrap();
    ledger.append(&vec![Record::Phase(pair(1), Phase::Deleted); 5_000]).unwrap();
    ledger.rest(1, || entries).unwrap();
    let text = fs::read_to_string(dir.path().join("ledger.log")).unwrap();
    assert_eq!(text.lines().count(), 2);
    // Lines that are appended afterwards are in the new file.
    ledger.append(&[Record::Phase(pair(1), Phase::Tombstone)]).unwrap();
    assert_eq!(Ledger::read(dir.path()).unwrap().entries[&pair(1)].phase, Phase::Tombstone);
}

/// Changes the first line of the ledger in this folder.
fn rewrite_header(dir: &std::path::Path, change: impl FnOnce(&mut serde_json::Value)) -> String {
    let path = dir.join("ledger.log");
    let text = fs::read_to_string(&path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut header: serde_json::Value = serde_json::from_str(&first[9..]).unwrap();
    change(&mut header);
    let json = header.to_string();
    let text = format!("{:08x} {json}\n{rest}", crc32fast::hash(json.as_bytes()));
    fs::write(&path, &text).unwrap();
    text
}

#[test]
fn another_boot_means_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
    ledger.append(&[Record::Own(pair(1), entry(1, Phase::Deleted))]).unwrap();
    rewrite_header(dir.path(), |header| {
        header["boot_id"] = "x".into();
        header["version"] = 99.into();
    });
    assert!(Ledger::is_empty(dir.path()).unwrap());
    let (_, loaded) = Ledger::open(dir.path()).unwrap();
    assert!(loaded.entries.is_empty() && loaded.ended_with_its_tables && loaded.unread().is_none());
    assert_eq!(loaded.aside, None);
    // The ledger was begun anew.
    assert_eq!(Ledger::read(dir.path()).unwrap().problem, None);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// The destinations may still be drained, so nothing is adopted and the file is not lost.
#[test]
fn what_cannot_be_read_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    for (at, (field, value, why)) in [
        ("netns", 1.into(), "is of another network namespace"),
        ("version", 99.into(), "is of another version"),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
        // A file without records is not worth setting aside.
        rewrite_header(dir.path(), |header| header["version"] = 99.into());
        assert!(Ledger::is_empty(dir.path()).unwrap());
        assert_eq!(Ledger::open(dir.path()).unwrap().1.aside, None);
        ledger.rewrite(&Default::default()).unwrap();
        ledger.append(&[Record::Own(pair(1), entry(1, Phase::Deleted))]).unwrap();
        let text = rewrite_header(dir.path(), |header| header[field] = value);
        assert!(!Ledger::is_empty(dir.path()).unwrap(), "somebody is to look at it");
        let loaded = Ledger::read(dir.path()).unwrap();
        assert_eq!((loaded.entries.len(), loaded.problem, loaded.unread()), (0, Some(why), Some(why)));
        let (mut ledger, loaded) = Ledger::open(dir.path()).unwrap();
        assert_eq!((loaded.entries.len(), loaded.problem), (0, Some(why)));
        let aside = loaded.aside.unwrap();
        assert_eq!(aside.file_name().unwrap().to_str().unwrap(), format!("ledger.bad{}", at + 1));
        assert_eq!(fs::read_to_string(aside).unwrap(), text);
        // The new file is a complete ledger.
        ledger.append(&[Record::Own(pair(2), entry(2, Phase::Lowered))]).unwrap();
        assert!(Ledger::read(dir.path()).unwrap().entries.keys().eq([&pair(2)]));
        assert!(Ledger::remove(dir.path()).unwrap());
    }
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["ledger.bad1", "ledger.bad2"]);
    assert!(put_aside(dir.path()).into_iter().eq(left.iter().map(|name| dir.path().join(name))));
    assert!(put_aside(&dir.path().join("nothing")).is_empty());
}

/// Each line has a checksum of its own, so that damage to one line loses only that line.
#[test]
fn a_first_line_that_is_damaged_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
    ledger.append(&[Record::Own(pair(1), entry(1, Phase::Deleted))]).unwrap();
    let path = dir.path().join("ledger.log");
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(!Ledger::is_empty(dir.path()).unwrap());
    for damaged in [1, 0] {
        let (_, loaded) = Ledger::open(dir.path()).unwrap();
        assert_eq!((loaded.entries.len(), loaded.damaged, loaded.problem), (1, damaged, None));
    }
    // A file without any line of a ledger is set aside.
    fs::write(&path, "something else\nand more\n").unwrap();
    let loaded = Ledger::open(dir.path()).unwrap().1;
    assert_eq!(loaded.problem, Some("has no readable first line"));
    assert_eq!(fs::read_to_string(loaded.aside.unwrap()).unwrap(), "something else\nand more\n");
}

#[test]
fn a_file_that_was_removed_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
    let owner = OwnerLock::take(dir.path(), Duration::ZERO).unwrap().unwrap();
    assert!(ledger.is_there() && owner.is_in(dir.path()));
    ledger.rewrite(&Default::default()).unwrap();
    assert!(ledger.is_there());
    for file in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert!(!ledger.is_there() && !owner.is_in(dir.path()));
    ledger.rewrite(&Default::default()).unwrap();
    assert!(ledger.is_there());
}

#[test]
fn a_line_after_a_torn_one_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
    ledger.append(&[Record::Own(pair(1), entry(1, Phase::Lowered))]).unwrap();
    let mut file = fs::File::options().append(true).open(dir.path().join("ledger.log")).unwrap();
    file.write_all(b"0badc0de {\"phase\":{\"serv").unwrap();
    let (mut ledger, loaded) = Ledger::open(dir.path()).unwrap();
    assert_eq!((loaded.entries.len(), loaded.damaged), (1, 1));
    ledger.append(&[Record::Phase(pair(1), Phase::Deleted)]).unwrap();
    let loaded = Ledger::read(dir.path()).unwrap();
    assert_eq!((loaded.entries[&pair(1)].phase, loaded.damaged), (Phase::Deleted, 1));
}

proptest! {
    /// Wherever the file was cut short, the whole lines before the cut count.
    #[test]
    fn a_file_cut_short_says_what_it_said_then(steps in prop::collection::vec((0u8..6, 0u8..5), 0..30), cut in 0usize..4000) {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
        let path = dir.path().join("ledger.log");
        let mut states = vec![(fs::metadata(&path).unwrap().len() as usize, Default::default())];
        let mut entries: std::collections::BTreeMap<Pair, Entry> = Default::default();
        for (number, kind) in steps {
            let record = match kind {
                0 | 1 => Record::Own(pair(number), entry(number, phase(number + kind))),
                2 | 3 => Record::Phase(pair(number), phase(number + kind)),
                _ => Record::Drop(pair(number)),
            };
            match &record {
                Record::Own(pair, entry) => drop(entries.insert(*pair, entry.clone())),
                Record::Phase(pair, phase) => {
                    if let Some(entry) = entries.get_mut(pair) { entry.phase = *phase }
                }
                Record::Drop(pair) => drop(entries.remove(pair)),
            }
            ledger.append(&[record]).unwrap();
            states.push((fs::metadata(&path).unwrap().len() as usize, entries.clone()));
        }
        let bytes = fs::read(&path).unwrap();
        let cut = cut.min(bytes.len());
        fs::write(&path, &bytes[..cut]).unwrap();
        let loaded = Ledger::read(dir.path()).unwrap();
        // A line that lacks only its line feed counts as whole.
        let then = states.iter().rev().find(|(len, _)| *len <= cut + 1);
        match then {
            Some((_, then)) => prop_assert_eq!(&loaded.entries, then),
            None => prop_assert!(loaded.entries.is_empty()),
        }
    }

    /// Whatever bytes the file has, it is read to its end.
    #[test]
    fn noise_is_no_entry(mut noise in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..400) {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
        ledger.append(&[Record::Own(pair(3), entry(3, Phase::Deleted))]).unwrap();
        let path = dir.path().join("ledger.log");
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        // The noise begins within the lines, or at their end.
        let at = at.min(bytes.len());
        bytes.splice(at.., noise.drain(..));
        fs::write(&path, &bytes).unwrap();
        let loaded = Ledger::read(dir.path()).unwrap();
        for (pair, found) in &loaded.entries {
            prop_assert_eq!((*pair, found), (super::tests::pair(3), &entry(3, Phase::Deleted)));
        }
        if at == whole.len() {
            let ends_there = bytes.get(at).is_none_or(|&byte| byte == b'\n') || whole.ends_with(b"\n");
            prop_assert!(!ends_there || loaded.entries.len() == 1);
        }
    }
}

/// The caller goes on without the lock where its holder does not release it.
#[test]
fn a_turn_is_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let _stopped = IpvsLock::take(dir.path()).unwrap();
    let begun = std::time::Instant::now();
    let _passed = IpvsLock::take(dir.path()).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(500));
}

/// `repair` need not restore anything, so it gives way to the lock's holder.
#[test]
fn a_turn_that_another_has_is_not_taken_by_who_can_wait() {
    let dir = tempfile::tempdir().unwrap();
    let turn = IpvsLock::take_or_fail(dir.path()).unwrap();
    assert!(turn.is_some());
    assert!(IpvsLock::take_or_fail(dir.path()).unwrap().is_none());
    drop(turn);
    assert!(IpvsLock::take_or_fail(dir.path()).unwrap().is_some());
}

#[test]
fn one_owner_and_one_guard() {
    let dir = tempfile::tempdir().unwrap();
    let owner = OwnerLock::take(dir.path(), Duration::ZERO).unwrap().unwrap();
    assert!(OwnerLock::take(dir.path(), Duration::from_millis(5)).unwrap().is_none());
    let _guard = OwnerLock::take_guard(dir.path(), Duration::ZERO).unwrap().unwrap();
    assert!(OwnerLock::take_guard(dir.path(), Duration::ZERO).unwrap().is_none());
    drop(owner);
    assert!(OwnerLock::take(dir.path(), Duration::ZERO).unwrap().is_some());
}
