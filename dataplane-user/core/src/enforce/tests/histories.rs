//! Random histories of views, claims, failed writes and take-overs, against the model of the maps.

use std::{collections::BTreeSet, ops::Range};

use super::history::{ALONE, History, Saw};

/// In how many histories, or how often, something happened that the rules are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    histories: u64,
    cut: u64,
    observed: u64,
    exempted: u64,
    excepted: u64,
    exceeded: u64,
    failed: u64,
    refused: u64,
    tables_failed: u64,
    take_overs: u64,
    bridged: u64,
    two_views: u64,
    by_delta: u64,
    lapsed: u64,
    live: u64,
    came_back: u64,
    handed_over: u64,
    went_on: u64,
    lost: u64,
    old: u64,
    replaced: u64,
}

impl Seen {
    fn add(&mut self, saw: &BTreeSet<Saw>) {
        self.histories += 1;
        for saw in saw {
            let count = match saw {
                Saw::Cut => &mut self.cut,
                Saw::Observed => &mut self.observed,
                Saw::Exempted => &mut self.exempted,
                Saw::Excepted => &mut self.excepted,
                Saw::Exceeded => &mut self.exceeded,
                Saw::Failed => &mut self.failed,
                Saw::Refused => &mut self.refused,
                Saw::TablesFailed => &mut self.tables_failed,
                Saw::TakeOver => &mut self.take_overs,
                Saw::Bridged => &mut self.bridged,
                Saw::TwoViews => &mut self.two_views,
                Saw::ByDelta => &mut self.by_delta,
                Saw::Lapsed => &mut self.lapsed,
                Saw::Live => &mut self.live,
                Saw::CameBack => &mut self.came_back,
                Saw::HandedOver => &mut self.handed_over,
                Saw::WentOn => &mut self.went_on,
                Saw::Lost => &mut self.lost,
                Saw::Old => &mut self.old,
                Saw::Replaced => &mut self.replaced,
            };
            *count += 1;
        }
    }
}

fn run(seeds: Range<u64>) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut history = History::new(seed);
            history.any_view();
            history.any_claim();
            for _ in 0..10 + history.random.below(40) {
                history.step();
            }
            history.end();
            history.saw
        });
        match outcome {
            Ok(saw) => seen.add(&saw),
            Err(panic) => {
                eprintln!("history {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    seen
}

/// Histories in an ordinary run. All 100,000 are tried with `NODEFENCE_LONG_TESTS=1`, and as many as `PROPTEST_CASES` says.
const HISTORIES: u64 = 5_000;

/// At no moment is anything cut without a claim that holds; nor a port that must be exempt by `plan::exemptions` in any view whose backends the maps may hold;
/// nor answers to an address that passes; nor a node whose claim a limit withholds. This holds whatever fails, and whichever agent takes over. 5,000 histories, or
/// 100,000 with `NODEFENCE_LONG_TESTS=1`.
#[test]
fn never_a_wrong_cut() {
    let long = std::env::var_os("NODEFENCE_LONG_TESTS").map(|_| 100_000);
    let told = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let histories: u64 = told.or(long).unwrap_or(HISTORIES);
    if let Some(alone) = std::env::var(ALONE).ok().and_then(|seed| seed.parse().ok()) {
        run(alone..alone + 1);
        return;
    }
    let half = histories / 2;
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(half..histories));
        (run(0..half), other.join())
    });
    let other = other.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    for seen in [one, other] {
        println!("{seen:?}");
        // The test is not vacuous: the cases of the rules did happen.
        let at_least = |count: u64, percent: u64| count * 100 >= seen.histories * percent;
        assert!(at_least(seen.cut, 70), "{seen:?}");
        assert!(at_least(seen.exempted, 40), "{seen:?}");
        assert!(at_least(seen.excepted, 8), "{seen:?}");
        assert!(at_least(seen.exceeded, 25), "{seen:?}");
        assert!(at_least(seen.failed, 40), "{seen:?}");
        assert!(at_least(seen.refused, 10), "{seen:?}");
        assert!(at_least(seen.tables_failed, 20), "{seen:?}");
        assert!(at_least(seen.take_overs, 20), "{seen:?}");
        assert!(at_least(seen.bridged, 10), "{seen:?}");
        assert!(at_least(seen.two_views, 20), "{seen:?}");
        assert!(at_least(seen.by_delta, 40), "{seen:?}");
        assert!(at_least(seen.lapsed, 10), "{seen:?}");
        assert!(at_least(seen.observed, 10), "{seen:?}");
        assert!(at_least(seen.live, 30), "{seen:?}");
        assert!(at_least(seen.came_back, 3), "{seen:?}");
        assert!(at_least(seen.handed_over, 10), "{seen:?}");
        assert!(at_least(seen.went_on, 1), "{seen:?}");
        assert!(at_least(seen.lost, 5), "{seen:?}");
        assert!(at_least(seen.old, 5), "{seen:?}");
        assert!(at_least(seen.replaced, 5), "{seen:?}");
    }
}
