//! Binds threads to CPUs, so that a load does not run on the CPU that is measured.
#![expect(unsafe_code, reason = "sched_setscheduler(2) has no safe wrapper")]

use anyhow::Context as _;
use nix::{
    errno::Errno,
    libc,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs that the calling thread may use, in order.
pub(crate) fn allowed() -> Vec<usize> {
    sched_getaffinity(Pid::from_raw(0))
        .map(|set| (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
        .unwrap_or_default()
}

/// Keeps the calling thread, and the threads and processes that it starts from now on, on these CPUs.
pub(crate) fn stay_on(cpus: &[usize]) -> anyhow::Result<()> {
    sched_setaffinity(Pid::from_raw(0), &set(cpus)?).with_context(|| format!("cannot stay on CPUs {cpus:?}"))
}

/// Keeps all threads of a process, and the threads that these start from now on, on these CPUs.
pub(crate) fn keep(process: Pid, cpus: &[usize]) -> anyhow::Result<()> {
    let set = set(cpus)?;
    let folder = format!("/proc/{process}/task");
    for thread in std::fs::read_dir(&folder).with_context(|| folder.clone())? {
        let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
        match sched_setaffinity(Pid::from_raw(thread), &set) {
            // ESRCH: the thread has ended since the folder was listed.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot keep thread {thread} on CPUs {cpus:?}"));
            }
        }
    }
    Ok(())
}

fn set(cpus: &[usize]) -> anyhow::Result<CpuSet> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    Ok(set)
}

/// Makes the calling thread run before all others of its CPU (SCHED_FIFO). This is for a thread that stands for another machine, and only for the
/// time of a flow. The kernel still gives others a twentieth of each second.
pub(crate) fn before_all() -> anyhow::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads `lowest`, which lives on; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
    Errno::result(result).map(drop).context("cannot run before all others")
}
