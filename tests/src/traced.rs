//! One thread of a process that stands still, or whose next call fails, while all others go on.

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

/// How long a thread may take until it waits for something.
const PATIENCE: Duration = Duration::from_secs(30);

/// Holds a thread for as long as this lives, as if the thread hung in the kernel. The thread stops where it waits, since it has no lock there.
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
        Self::start(move |tell, lifted| hold(tid, tell, lifted)).stands(name)
    }

    /// Holds the next thread that takes that name, before it does any work. The runtime's threads take names so for work that may block. `provoke` starts that
    /// work, once all threads are watched.
    ///
    /// # Errors
    /// Where no thread takes that name, or the threads may not be traced.
    #[cfg(target_arch = "x86_64")]
    pub fn of_next(pid: Pid, name: &str, provoke: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (watches, watched) = channel();
        let wanted = name.to_owned();
        let this = Self::start(move |tell, lifted| stand(next_named(pid, &wanted, &watches)?, tell, lifted));
        // The channel is closed where that failed; the code below reports it.
        if watched.recv().is_ok() {
            provoke()?;
        }
        this.stands(name)
    }

    /// Tracing belongs to a thread.
    fn start(hold: impl FnOnce(&Sender<()>, &Receiver<()>) -> Result<()> + Send + 'static) -> Holding {
        let (lift, lifted) = channel();
        let (tell, stands) = channel();
        let thread = std::thread::spawn(move || hold(&tell, &lifted));
        Holding { still: Self { lift: Some(lift), thread: Some(thread) }, stands }
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// Where the thread could not be held, or has ended.
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

/// Watches all threads of a process until one takes that name. That one is stopped then, and no other is watched any more.
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
        // Other tests of this process trace threads of their own.
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
            // A new thread is traced as its maker is.
            WaitStatus::PtraceEvent(tid, ..) | WaitStatus::Stopped(tid, _) => tid,
            other => bail!("not expected of a traced thread: {other:?}"),
        };
        threads.insert(tid);
        ptrace::syscall(tid, None)?;
    };
    for tid in threads.into_iter().filter(|tid| *tid != found) {
        // It may have ended.
        if ptrace::interrupt(tid).is_ok() && waitpid(tid, Some(WaitPidFlag::__WALL)).is_ok() {
            let _ended = ptrace::detach(tid, None);
        }
    }
    Ok(found)
}

/// Whether the system call that a thread is about to make gives it that name (prctl(2), `PR_SET_NAME`).
#[cfg(target_arch = "x86_64")]
fn takes_name(tid: Pid, name: &str) -> Result<bool> {
    let registers = ptrace::getregs(tid)?;
    let is_it = registers.orig_rax.cast_signed() == libc::SYS_prctl
        && registers.rdi.cast_signed() == i64::from(libc::PR_SET_NAME);
    if !(begins(&registers) && is_it) {
        return Ok(false);
    }
    let mut taken = Vec::new();
    // At most 16 bytes, with the zero at their end.
    for word in 0..2 {
        let at = registers.rsi + 8 * word;
        taken.extend(ptrace::read(tid, at as ptrace::AddressType)?.to_ne_bytes());
        if taken.contains(&0) {
            break;
        }
    }
    Ok(taken.split(|byte| *byte == 0).next() == Some(name.as_bytes()))
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
    stand(tid, tell, lifted)
}

/// Leaves a stopped thread as it is until the hold is lifted.
fn stand(tid: Pid, tell: &Sender<()>, lifted: &Receiver<()>) -> Result<()> {
    let _gone = tell.send(());
    // Nothing is ever sent: the other end is closed.
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

/// Whether a thread that stopped at a call is before that call and not behind it: nothing else about the call is known yet.
#[cfg(target_arch = "x86_64")]
fn begins(registers: &libc::user_regs_struct) -> bool {
    registers.rax.cast_signed() == -i64::from(libc::ENOSYS)
}

/// Makes the thread's next such call fail with ENOSYS. Returns once it did.
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
