//! In which order guests boot, and how many run at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::thread;

use anyhow::Result;

use super::kernel::Kernel;
use crate::process;
use crate::test::tally::Stage;

/// Guests at the same time; under TCG each keeps one processor busy. With a third one on two processors, even one that mostly waits, the others stand still
/// for longer than leases last.
const AT_ONCE: usize = 2;

/// Guests of one kind, one for each kernel.
pub(super) struct Kind<'a> {
    name: &'static str,
    one: Box<dyn Fn(Kernel) -> Result<Stage> + Sync + 'a>,
}

impl<'a> Kind<'a> {
    /// `one` runs the guest of a kernel.
    pub(super) fn new(name: &'static str, one: impl Fn(Kernel) -> Result<Stage> + Sync + 'a) -> Self {
        Self { name, one: Box::new(one) }
    }
}

/// A stage for each kind and kernel, in that order.
pub(super) fn run(kernels: &[Kernel], kinds: &[Kind<'_>]) -> Vec<Stage> {
    // The newest kernels take longest: first, so that none of them is left alone at the end.
    let newest_first = || (0..kernels.len()).rev();
    let jobs: VecDeque<(usize, usize)> =
        (0..kinds.len()).flat_map(|kind| newest_first().map(move |kernel| (kind, kernel))).collect();
    let (jobs, stages) = (Mutex::new(jobs), Mutex::new(BTreeMap::new()));
    let next = || jobs.lock().ok().filter(|_| !process::interrupted())?.pop_front();
    let work = || {
        while let Some((kind, kernel)) = next() {
            let (Kind { name, one }, on) = (&kinds[kind], kernels[kernel]);
            let stage = super::or_failed(format!("{name} {}", on.label()), one(on));
            if let Ok(mut stages) = stages.lock() {
                stages.insert((kind, kernel), stage);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    stages.into_inner().unwrap_or_default().into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Counts how many run, and how many ran at once at most.
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
    fn two_work_at_once() {
        let (all, busy) = (Gauge::default(), Gauge::default());
        let sleep = || thread::sleep(Duration::from_millis(10));
        // Until another one works beside it.
        let meet =
            || (0..1_000).take_while(|_| busy.most.load(Ordering::SeqCst) < AT_ONCE).for_each(|_| sleep());
        let kinds = [
            Kind::new("vm", |kernel: Kernel| {
                all.stay(|| busy.stay(meet));
                Ok(Stage::new(format!("vm {}", kernel.label())))
            }),
            Kind::new("kube", |kernel| {
                all.stay(sleep);
                if kernel == Kernel::V6_1 {
                    anyhow::bail!("no such kernel");
                }
                Ok(Stage::new(format!("kube {}", kernel.label())))
            }),
        ];
        let stages = run(&Kernel::ALL, &kinds);
        let names: Vec<&str> = stages.iter().map(|stage| &*stage.name).collect();
        assert_eq!(
            names,
            [
                "vm 5.10",
                "vm 6.1",
                "vm 6.12",
                "vm latest",
                "kube 5.10",
                "kube 6.1",
                "kube 6.12",
                "kube latest"
            ]
        );
        assert_eq!(stages[5].failures, ["no such kernel"]);
        assert_eq!(busy.most.load(Ordering::SeqCst), AT_ONCE);
        assert!(all.most.load(Ordering::SeqCst) <= AT_ONCE);
    }
}
