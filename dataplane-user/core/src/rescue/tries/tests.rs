use nodefence_common::Addr;
use proptest::prelude::*;

use super::*;

fn sent(port: u16) -> Sent {
    let src = Addr::v4([192, 0, 2, 2]);
    let dst = Addr::v4([10, 96, 0, 10]);
    Sent { ends: Tuple { src, dst, src_port: port, dst_port: 80, protocol: 6 }, sequence: 1_000 }
}

#[test]
fn the_number_of_tries_follows_from_the_share() {
    // Half: 0.5^20 is the first power below one in a million.
    assert_eq!(tries(1, 2), 20);
    assert_eq!(tries(2, 4), 20);
    assert_eq!(tries(3, 4), 49);
    // A tenth: six digits need more than six picks, and the least is eight.
    assert_eq!(tries(1, 10), 8);
    assert_eq!(tries(0, 3), 8);
    assert_eq!(tries(99, 100), MOST_TRIES);
    assert_eq!(tries(usize::MAX - 1, usize::MAX), MOST_TRIES);
    assert_eq!(tries(3, 3), MOST_TRIES);
    assert_eq!(tries(0, 0), MOST_TRIES);
}

#[test]
fn a_packet_has_so_many_tries_and_so_much_time() {
    let mut all = Tries::default();
    let start = 10_000_000_000;
    for count in 1..=20 {
        assert_eq!(all.take(sent(1), 20, start + u64::from(count)), Ok(count));
    }
    assert_eq!(all.take(sent(1), 20, start + 30), Err(Spent::Tries));
    // Another packet is another matter.
    assert_eq!(all.take(sent(2), 20, start + 30), Ok(1));
    assert_eq!(all.take(sent(2), 20, start + 30 + TIME_LIMIT_NS), Err(Spent::Time));
    // What is sent again is a packet of its own.
    assert_eq!(all.take(sent(1), 20, start + SERIES_NS - 1), Err(Spent::Time));
    assert_eq!(all.take(sent(1), 20, start + 1_000_000_000), Ok(1));
}

/// A client may use a port again soon after its last connection from there was refused for its time: the new one has tries of its own.
#[test]
fn another_connection_from_the_same_port_is_another_packet() {
    let mut all = Tries::default();
    let start = 10_000_000_000;
    let first = sent(1);
    let next = Sent { sequence: 2_000, ..first };
    assert_eq!(all.take(first, 20, start), Ok(1));
    assert_eq!(all.take(first, 20, start + TIME_LIMIT_NS), Err(Spent::Time));
    assert!(all.has(&first, start + TIME_LIMIT_NS) && !all.has(&next, start + TIME_LIMIT_NS));
    assert_eq!(all.take(next, 20, start + TIME_LIMIT_NS), Ok(1));
}

#[test]
fn memory_is_bounded_and_is_given_back() {
    let mut recent = Recent::new(100, 3);
    assert!((0..3).all(|key| recent.put(key, key, 1_000)));
    assert!(!recent.put(3, 3, 1_000));
    // What is known can be changed where nothing more fits.
    assert!(recent.put(2, 7, 1_000));
    assert_eq!(recent.get(&2, 1_050), Some(7));
    assert!(recent.put(3, 3, 1_100));
    assert_eq!((recent.get(&0, 1_150), recent.len()), (Some(0), 4));
    assert_eq!((recent.get(&0, 1_200), recent.get(&3, 1_200)), (None, Some(3)));
    assert_eq!(recent.get(&3, 5_000), None);
    assert!(recent.len() == 0);
}

proptest! {
    /// In whatever order packets and times come: a series never has more tries than allowed, none after its time, and never are more packets remembered
    /// than there is room for.
    #[test]
    fn no_packet_goes_round_for_ever(
        steps in prop::collection::vec((0_u16..6, 0_u64..30_000_000), 1..400),
        limit in 1_u32..64,
    ) {
        let mut all = Tries::default();
        let mut now = 77_000_000_000;
        let mut granted: HashMap<u16, Vec<u64>> = HashMap::new();
        for (port, later) in steps {
            now += later;
            if all.take(sent(port), limit, now).is_ok() {
                granted.entry(port).or_default().push(now);
            }
            prop_assert!(all.0.len() <= 12);
        }
        // A series grants within its first 700 ms, and the next begins 900 ms after it: the time between holds grants of one alone.
        for times in granted.values() {
            for (at, first) in times.iter().enumerate() {
                let within = times[at..].iter().take_while(|time| **time - first < SERIES_NS - TIME_LIMIT_NS);
                prop_assert!(within.count() <= limit as usize);
            }
        }
    }
}
