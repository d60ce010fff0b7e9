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
    /// In the order in which they boot: what takes longest comes first, so that none of it is left alone at the end.
    kernels: Vec<Kernel>,
    one: Box<dyn Fn(Kernel) -> Result<Stage> + Sync + 'a>,
}

impl<'a> Kind<'a> {
    /// `one` runs the guest of a kernel.
    pub(super) fn new(
        name: &'static str,
        kernels: Vec<Kernel>,
        one: impl Fn(Kernel) -> Result<Stage> + Sync + 'a,
    ) -> Self {
        Self { name, kernels, one: Box::new(one) }
    }
}

/// A stage for each kind and kernel, older kernels first.
pub(super) fn run(kinds: &[Kind<'_>]) -> Vec<Stage> {
    let jobs: VecDeque<(usize, Kernel)> = (kinds.iter().enumerate())
        .flat_map(|(at, kind)| kind.kernels.iter().map(move |kernel| (at, *kernel)))
        .collect();
    let (jobs, stages) = (Mutex::new(jobs), Mutex::new(BTreeMap::new()));
    let next = || jobs.lock().ok().filter(|_| !process::interrupted())?.pop_front();
    let work = || {
        while let Some((kind, kernel)) = next() {
            let Kind { name, kernels: _, one } = &kinds[kind];
            let stage = super::or_failed(format!("{name} {}", kernel.label()), one(kernel));
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
            Kind::new("vm", Kernel::ALL.to_vec(), |kernel: Kernel| {
                all.stay(|| busy.stay(meet));
                Ok(Stage::new(format!("vm {}", kernel.label())))
            }),
            Kind::new("kube", vec![Kernel::Latest, Kernel::V6_1], |kernel| {
                all.stay(sleep);
                if kernel == Kernel::V6_1 {
                    anyhow::bail!("no such kernel");
                }
                Ok(Stage::new(format!("kube {}", kernel.label())))
            }),
        ];
        let stages = run(&kinds);
        let names: Vec<&str> = stages.iter().map(|stage| &*stage.name).collect();
        assert_eq!(names, ["vm 5.10", "vm 6.1", "vm 6.12", "vm latest", "kube 6.1", "kube latest"]);
        assert_eq!(stages[4].failures, ["no such kernel"]);
        assert_eq!(busy.most.load(Ordering::SeqCst), AT_ONCE);
        assert!(all.most.load(Ordering::SeqCst) <= AT_ONCE);
    }
}
