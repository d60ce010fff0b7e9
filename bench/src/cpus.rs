//! Which CPU does what, so that a load does not run on the CPU that is measured.
use anyhow::Context as _;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs that the calling thread may use, in order.
pub(crate) fn allowed() -> Vec<usize> {
    sched_getaffinity(Pid::from_raw(0))
        .map(|set| (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
        .unwrap_or_default()
}

/// Keeps the calling thread, and the threads and processes it starts from here on, on these CPUs.
pub(crate) fn stay_on(cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot stay on CPUs {cpus:?}"))
}
