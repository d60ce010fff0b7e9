//! Holds one thread of a process, or makes its next system call fail, while all other threads go on.

use std::{
    collections::BTreeSet,
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

/// The time limit for a thread to wait for something, or to take a name.
const PATIENCE: Duration = Duration::from_secs(30);

/// A hold of a thread, as if the thread hung in the kernel. It ends when this is dropped. The thread stops where it waits, since it has no lock there.
#[derive(Debug)]
pub struct Still {
    lift: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Still {
    /// Holds the thread with that name.
    ///
    /// # Errors
    /// Fails if there is no such thread, if it may not be traced, or if it never waits.
    pub fn of(pid: Pid, name: &str) -> Result<Self> {
        let tid = thread_of(pid, name)?;
        Self::start(move |tell, lifted| hold(tid, tell, lifted)).stands(name)
    }

    /// Holds the next thread that takes this name, before it does any work. The runtime's threads take a name for work that may block. Once all threads are
    /// watched, `provoke` starts that work.
    ///
    /// # Errors
    /// Fails if no thread takes that name, or if the threads may not be traced.
    #[cfg(target_arch = "x86_64")]
    pub fn of_next(pid: Pid, name: &str, provoke: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (watches, watched) = channel();
        let wanted = name.to_owned();
        let this = Self::start(move |tell, lifted| stand(next_named(pid, &wanted, &watches)?, tell, lifted));
        // A closed channel means that watching failed, which `stands` reports.
        if watched.recv().is_ok() {
            provoke()?;
        }
        this.stands(name)
    }

    /// Starts the tracing thread. The kernel takes ptrace requests only from the thread that attached (ptrace(2)).
    fn start(hold: impl FnOnce(&Sender<()>, &Receiver<()>) -> Result<()> + Send + 'static) -> Holding {
        let (lift, lifted) = channel();
        let (tell, stands) = channel();
        let thread = std::thread::spawn(move || hold(&tell, &lifted));
        Holding { still: Self { lift: Some(lift), thread: Some(thread) }, stands }
    }

    /// Lets the thread go on.
    ///
    /// # Errors
    /// Fails if the thread could not be held, or has ended.
    pub fn lift(mut self) -> Result<()> {
        drop(self.lift.take());
        let thread = self.thread.take().context("lifted already")?;
        thread.join().map_err(|_| anyhow!("who holds the thread panicked"))?
    }
}

/// A thread that is about to be held.
struct Holding {
    still: Still,
    stands: Receiver<()>,
}

impl Holding {
    /// Waits until the thread is held.
    fn stands(self, name: &str) -> Result<Still> {
        match self.stands.recv() {
            Ok(()) => Ok(self.still),
            Err(_) => {
                self.still.lift().with_context(|| format!("hold {name}"))?;
                bail!("{name} ended")
            }
        }
    }
}

/// Watches all threads of a process until one takes this name. Leaves that thread stopped, and all others untraced.
#[cfg(target_arch = "x86_64")]
fn next_named(pid: Pid, name: &str, watches: &Sender<()>) -> Result<Pid> {
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
    let mut threads = BTreeSet::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = Pid::from_raw(task?.file_name().to_string_lossy().parse()?);
        ptrace::seize(tid, options)?;
        ptrace::interrupt(tid)?;
        threads.insert(tid);
    }
    let _gone = watches.send(());
    let since = Instant::now();
    let found = loop {
        ensure!(since.elapsed() < PATIENCE, "no thread takes the name {name}");
        // Only this thread's tracees count (`__WNOTHREAD`), since other tests of this process trace threads of their own.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
        let tid = match waitpid(None, Some(flags))? {
            WaitStatus::StillAlive => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            WaitStatus::Exited(tid, _) | WaitStatus::Signaled(tid, ..) => {
                threads.remove(&tid);
                continue;
            }
            WaitStatus::PtraceSyscall(tid) => {
                if takes_name(tid, name)? {
                    break tid;
                }
                tid
            }
            // A new thread is traced like the thread that made it (`PTRACE_O_TRACECLONE`).
            WaitStatus::PtraceEvent(tid, ..) | WaitStatus::Stopped(tid, _) => tid,
            other => bail!("not expected of a traced thread: {other:?}"),
        };
        threads.insert(tid);
        ptrace::syscall(tid, None)?;
    };
    for tid in threads.into_iter().filter(|tid| *tid != found) {
        // The thread may have ended.
        if ptrace::interrupt(tid).is_ok() && waitpid(tid, Some(WaitPidFlag::__WALL)).is_ok() {
            let _ended = ptrace::detach(tid, None);
        }
    }
    Ok(found)
}

/// Whether a thread is about to make the system call that gives it this name (prctl(2), `PR_SET_NAME`).
#[cfg(target_arch = "x86_64")]
fn takes_name(tid: Pid, name: &str) -> Result<bool> {
    let registers = ptrace::getregs(tid)?;
    let is_it = registers.orig_rax.cast_signed() == libc::SYS_prctl
        && registers.rdi.cast_signed() == i64::from(libc::PR_SET_NAME);
    if !(begins(&registers) && is_it) {
        return Ok(false);
    }
    let mut taken = Vec::new();
    // A name has at most 16 bytes, its final zero included.
    for word in 0..2 {
        let at = registers.rsi + 8 * word;
        taken.extend(ptrace::read(tid, at as ptrace::AddressType)?.to_ne_bytes());
        if taken.contains(&0) {
            break;
        }
    }
    Ok(taken.split(|byte| *byte == 0).next() == Some(name.as_bytes()))
}

/// Stops a thread where it waits, and leaves it so until the hold is lifted.
fn hold(tid: Pid, tell: &Sender<()>, lifted: &Receiver<()>) -> Result<()> {
    ptrace::seize(tid, Options::empty())?;
    let since = Instant::now();
    loop {
        ptrace::interrupt(tid)?;
        wait_for_stop(tid)?;
        if waits(tid)? {
            break;
        }
        ensure!(since.elapsed() < PATIENCE, "it never waits");
        ptrace::cont(tid, None)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    stand(tid, tell, lifted)
}

/// Leaves a stopped thread as it is until the hold is lifted.
fn stand(tid: Pid, tell: &Sender<()>, lifted: &Receiver<()>) -> Result<()> {
    let _gone = tell.send(());
    // The hold is lifted when the other end is closed. Nothing is ever sent.
    let _lifted = lifted.recv();
    Ok(ptrace::detach(tid, None)?)
}

/// Waits until a thread has stopped.
fn wait_for_stop(tid: Pid) -> Result<()> {
    match waitpid(tid, Some(WaitPidFlag::__WALL))? {
        WaitStatus::PtraceEvent(..) | WaitStatus::PtraceSyscall(_) | WaitStatus::Stopped(..) => Ok(()),
        other => bail!("it did not stop: {other:?}"),
    }
}

/// Whether the thread was stopped in a system call that waits (proc_pid_syscall(5)).
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

/// Whether a thread that stopped at a system call is at the entry of the call, where the kernel sets the return value to ENOSYS.
#[cfg(target_arch = "x86_64")]
fn begins(registers: &libc::user_regs_struct) -> bool {
    registers.rax.cast_signed() == -i64::from(libc::ENOSYS)
}

/// Makes the thread's next call among `calls` fail with ENOSYS. Returns once that call is made.
///
/// # Errors
/// Fails if there is no such thread, or it may not be traced.
#[cfg(target_arch = "x86_64")]
pub fn refuse(pid: Pid, name: &str, calls: &'static [libc::c_long]) -> Result<()> {
    let tid = thread_of(pid, name)?;
    let thread = std::thread::spawn(move || {
        ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD)?;
        ptrace::interrupt(tid)?;
        loop {
            wait_for_stop(tid)?;
            let mut registers = ptrace::getregs(tid)?;
            if begins(&registers) && calls.contains(&registers.orig_rax.cast_signed()) {
                registers.orig_rax = u64::MAX;
                ptrace::setregs(tid, registers)?;
                return Ok(ptrace::detach(tid, None)?);
            }
            ptrace::syscall(tid, None)?;
        }
    });
    thread.join().map_err(|_| anyhow!("who refuses the call panicked"))?
}
