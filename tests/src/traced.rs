//! One thread of a process that stands still, or whose next call fails, while all others go on.

use std::{
    fs,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    sys::{
        ptrace::{self, Options},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::ambush::thread_of;

/// How long a thread may take until it waits for something.
const PATIENCE: Duration = Duration::from_secs(30);

/// A thread that stands still, as one would that hangs in the kernel, as long as this lives. It does so where it waits: there it has no lock.
#[derive(Debug)]
pub struct Still {
    lift: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Still {
    /// Holds the thread with that name.
    ///
    /// # Errors
    /// Where there is no such thread, it may not be traced, or it never waits.
    pub fn of(pid: Pid, name: &str) -> Result<Self> {
        let tid = thread_of(pid, name)?;
        let (lift, lifted) = channel();
        let (tell, stands) = channel();
        // Tracing belongs to a thread.
        let thread = std::thread::spawn(move || hold(tid, &tell, &lifted));
        let this = Self { lift: Some(lift), thread: Some(thread) };
        match stands.recv() {
            Ok(()) => Ok(this),
            Err(_) => {
                this.lift().with_context(|| format!("hold {name}"))?;
                bail!("{name} ended")
            }
        }
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// Where it could not be held, or has ended.
    pub fn lift(mut self) -> Result<()> {
        drop(self.lift.take());
        let thread = self.thread.take().context("lifted already")?;
        thread.join().map_err(|_| anyhow!("who holds the thread panicked"))?
    }
}

fn hold(tid: Pid, tell: &Sender<()>, lifted: &Receiver<()>) -> Result<()> {
    ptrace::seize(tid, Options::empty())?;
    let since = Instant::now();
    loop {
        ptrace::interrupt(tid)?;
        stopped(tid)?;
        if waits(tid)? {
            break;
        }
        ensure!(since.elapsed() < PATIENCE, "it never waits");
        ptrace::cont(tid, None)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let _gone = tell.send(());
    // Nothing is sent: the other end is closed.
    let _lifted = lifted.recv();
    Ok(ptrace::detach(tid, None)?)
}

fn stopped(tid: Pid) -> Result<()> {
    match waitpid(tid, Some(WaitPidFlag::__WALL))? {
        WaitStatus::PtraceEvent(..) | WaitStatus::PtraceSyscall(_) | WaitStatus::Stopped(..) => Ok(()),
        other => bail!("it did not stop: {other:?}"),
    }
}

/// Whether the thread was stopped in a call that waits (proc_pid_syscall(5)).
fn waits(tid: Pid) -> Result<bool> {
    let call = fs::read_to_string(format!("/proc/{tid}/syscall"))?;
    let number = call.split_whitespace().next().and_then(|word| word.parse().ok());
    let waits = [
        libc::SYS_futex,
        libc::SYS_ppoll,
        libc::SYS_clock_nanosleep,
        libc::SYS_restart_syscall,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
    ];
    Ok(number.is_some_and(|number| waits.contains(&number)))
}

/// Has the next of these calls that the thread makes fail with ENOSYS. Returns once it did.
///
/// # Errors
/// Where there is no such thread, or it may not be traced.
#[cfg(target_arch = "x86_64")]
pub fn refuse(pid: Pid, name: &str, calls: &'static [libc::c_long]) -> Result<()> {
    let tid = thread_of(pid, name)?;
    let thread = std::thread::spawn(move || {
        ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD)?;
        ptrace::interrupt(tid)?;
        loop {
            stopped(tid)?;
            let mut registers = ptrace::getregs(tid)?;
            // So it is where a call begins, and nothing else can be told of it yet.
            let begins = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
            if begins && calls.contains(&registers.orig_rax.cast_signed()) {
                registers.orig_rax = u64::MAX;
                ptrace::setregs(tid, registers)?;
                return Ok(ptrace::detach(tid, None)?);
            }
            ptrace::syscall(tid, None)?;
        }
    });
    thread.join().map_err(|_| anyhow!("who refuses the call panicked"))?
}
