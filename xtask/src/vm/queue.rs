//! Runs guests in an order, and several at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::thread;

use anyhow::Result;

use super::kernel::Kernel;
use super::matrix::{self, Guest};
use crate::process;
use crate::test::tally::Stage;

/// Runs guests, `at_once` of them at the same time. Returns a stage for each, in the order of `guests`. The guest that takes longest boots first, so
/// that it does not run alone at the end.
pub(super) fn run(
    guests: &[&Guest],
    at_once: usize,
    one: impl Fn(&Guest) -> Result<Stage> + Sync,
) -> Vec<Stage> {
    let mut order: Vec<usize> = (0..guests.len()).collect();
    order.sort_by_key(|at| Reverse(length(guests[*at])));
    let order = Mutex::new(VecDeque::from(order));
    let stages = Mutex::new(BTreeMap::new());
    let next = || order.lock().ok().filter(|_| !process::interrupted())?.pop_front();
    let work = || {
        while let Some(at) = next() {
            let stage = matrix::or_failed(guests[at].name(), one(guests[at]));
            if let Ok(mut stages) = stages.lock() {
                stages.insert(at, stage);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    stages.into_inner().unwrap_or_default().into_values().collect()
}

/// The key for the order: the sum of the limits of the guest's jobs, then its kernel. Newer kernels take longer.
fn length(guest: &Guest) -> (u64, Kernel) {
    (guest.jobs.iter().map(|job| job.limit_ms).sum(), guest.kernel)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::test::job::Job;
    use crate::test::table::Kind;

    fn guest(kernel: Kernel, kind: Kind, limit_ms: u64) -> Guest {
        let job = Job {
            title: "tests::a".to_owned(),
            program: "/x".into(),
            names: Vec::new(),
            some: false,
            threads: None,
            limit_ms,
            again: false,
            makes_load: false,
            ipvs: false,
        };
        Guest { kernel, kind, jobs: vec![job], api_server: false }
    }

    /// Counts how many guests run now, and how many ran at once at most.
    #[derive(Default)]
    struct Gauge {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Gauge {
        fn stay<T>(&self, work: impl FnOnce() -> T) -> T {
            self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let done = work();
            self.now.fetch_sub(1, Ordering::SeqCst);
            done
        }
    }

    #[test]
    fn so_many_run_at_once_and_what_takes_longest_comes_first() {
        let all = Kernel::ALL.map(|kernel| guest(kernel, Kind::Plain, 10));
        let more = [guest(Kernel::V6_1, Kind::Kube, 90), guest(Kernel::NEWEST, Kind::Kube, 1)];
        let guests: Vec<&Guest> = all.iter().chain(&more).collect();
        for at_once in [1, 2] {
            let gauge = Gauge::default();
            let begun = Mutex::new(Vec::new());
            let one = |guest: &Guest| {
                begun.lock().unwrap().push(guest.name());
                gauge.stay(|| {
                    let met = || gauge.most.load(Ordering::SeqCst) >= at_once;
                    (0..1_000).take_while(|_| !met()).for_each(|_| thread::sleep(Duration::from_millis(1)));
                });
                anyhow::ensure!(guest.kind == Kind::Plain || guest.kernel != Kernel::V6_1, "no such kernel");
                Ok(Stage::new(guest.name()))
            };
            let stages = run(&guests, at_once, one);
            let names: Vec<&str> = stages.iter().map(|stage| &*stage.name).collect();
            assert_eq!(names, ["vm 5.10", "vm 6.1", "vm 6.12", "vm latest", "vm kube 6.1", "vm kube latest"]);
            assert_eq!(stages[4].failures, ["no such kernel"]);
            assert_eq!(gauge.most.load(Ordering::SeqCst), at_once);
            let begun = begun.into_inner().unwrap();
            if at_once == 1 {
                assert_eq!(begun[..2], ["vm kube 6.1", "vm latest"]);
                assert_eq!(begun[5], "vm kube latest");
            }
        }
    }
}
