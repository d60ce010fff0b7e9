//! Stops or kills a process at the n-th step of one of its threads, or holds that thread there.
#![expect(unsafe_code, reason = "nix hands out what the kernel says of a system call as a union")]

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    sys::{
        ptrace::{self, Options},
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// The pause between two checks whether a held thread may go on.
const CHECK_PAUSE: Duration = Duration::from_millis(5);

/// What happens to the process at the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// SIGKILL to the process. The step is not done.
    Kill,
    /// SIGSTOP to the process. The step is done, and no step after it.
    Stop,
    /// A hold of this thread alone. The step is done once the ambush is lifted.
    Hold,
}

/// A tracer that waits for a step of a thread. A step is a system call whose effect others can see: lines written to a file, a renamed file, a new process, or
/// a change of an IPVS destination.
#[derive(Debug)]
pub struct Ambush {
    thread: Option<JoinHandle<Result<()>>>,
    lifted: Arc<AtomicBool>,
    hit: Arc<AtomicBool>,
}

impl Ambush {
    /// Begins to wait for the `nth` step of the thread with this name. The first step has number 1.
    ///
    /// # Errors
    /// Fails if there is no such thread, or it may not be traced.
    pub fn lay(pid: Pid, thread: &str, nth: usize, blow: Blow) -> Result<Self> {
        let tid = thread_of(pid, thread)?;
        let lifted = Arc::new(AtomicBool::new(false));
        let hit = Arc::new(AtomicBool::new(false));
        let watched_lifted = Arc::clone(&lifted);
        let watched_hit = Arc::clone(&hit);
        let (ready, laid) = channel();
        // One thread does all the tracing: the kernel takes ptrace requests only from the thread that attached (ptrace(2)).
        let thread = std::thread::Builder::new().name("ambush".into()).spawn(move || {
            let mut watch =
                Watch { pid, tid, left: nth, blow, memory: File::open(format!("/proc/{pid}/mem"))? };
            watch.run(&watched_lifted, &watched_hit, &ready)
        })?;
        let this = Self { thread: Some(thread), lifted, hit };
        match laid.recv() {
            Ok(()) => Ok(this),
            Err(_) => {
                this.lift().context("trace the thread")?;
                bail!("the thread ended before it could be traced")
            }
        }
    }

    /// Whether the step was reached.
    pub fn hit(&self) -> bool {
        self.hit.load(Ordering::Acquire)
    }

    /// Lets the process go on untraced. Returns whether the step was reached.
    ///
    /// # Errors
    /// Fails if tracing failed.
    pub fn lift(mut self) -> Result<bool> {
        self.lifted.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| anyhow::anyhow!("the ambush panicked"))??;
        }
        Ok(self.hit())
    }
}

impl Drop for Ambush {
    fn drop(&mut self) {
        // The tracer notices this at the traced thread's next system call.
        self.lifted.store(true, Ordering::Release);
    }
}

/// The id of the process's thread with this name.
///
/// # Errors
/// Fails if the process has no such thread.
pub(crate) fn thread_of(pid: Pid, name: &str) -> Result<Pid> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm"))?.trim_end() == name {
            let tid = task.file_name().to_string_lossy().parse()?;
            return Ok(Pid::from_raw(tid));
        }
    }
    bail!("process {pid} has no thread {name}")
}

struct Watch {
    pid: Pid,
    tid: Pid,
    left: usize,
    blow: Blow,
    memory: File,
}

impl Watch {
    /// Traces the thread until the step. Sets `hit` once the step is reached.
    fn run(&mut self, lifted: &AtomicBool, hit: &AtomicBool, ready: &Sender<()>) -> Result<()> {
        ptrace::seize(self.tid, Options::PTRACE_O_TRACESYSGOOD)?;
        ptrace::interrupt(self.tid)?;
        loop {
            let pass_on = match waitpid(self.tid, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::PtraceSyscall(_)) => {
                    if self.is_step()? {
                        self.left -= 1;
                        if self.left == 0 {
                            return self.strike(lifted, hit);
                        }
                    }
                    None
                }
                Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
                Ok(WaitStatus::PtraceEvent(..)) => {
                    let _told_before = ready.send(());
                    None
                }
                // The thread has ended: somebody else killed the process.
                Ok(_) | Err(Errno::ECHILD) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if lifted.load(Ordering::Acquire) {
                return Ok(ptrace::detach(self.tid, pass_on)?);
            }
            ptrace::syscall(self.tid, pass_on)?;
        }
    }

    fn strike(&self, lifted: &AtomicBool, hit: &AtomicBool) -> Result<()> {
        match self.blow {
            Blow::Kill => kill(self.pid, Signal::SIGKILL)?,
            Blow::Stop => kill(self.pid, Signal::SIGSTOP)?,
            Blow::Hold => {
                hit.store(true, Ordering::Release);
                while !lifted.load(Ordering::Acquire) {
                    std::thread::sleep(CHECK_PAUSE);
                }
            }
        }
        match ptrace::detach(self.tid, None) {
            // The thread is dead already.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error.into()),
        }
        hit.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the thread is about to take a step.
    fn is_step(&self) -> Result<bool> {
        let info = ptrace::syscall_info(self.tid)?;
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return Ok(false);
        }
        // SAFETY: `op` says which of the union's fields the kernel wrote, and all of them are plain numbers.
        let entry = unsafe { info.u.entry };
        Ok(match entry.nr as libc::c_long {
            // Output to the terminal (descriptors up to 2) is no step. The lease is no step either: the agent writes it again and again, by a call with an
            // offset.
            libc::SYS_write => entry.args[0] > 2,
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_renameat | libc::SYS_renameat2 => true,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename | libc::SYS_vfork => true,
            libc::SYS_sendto => self.is_change(entry.args[1])?,
            _ => false,
        })
    }

    /// Whether the netlink message at this address adds, changes or deletes an IPVS destination (`IPVS_CMD_NEW_DEST` to `IPVS_CMD_DEL_DEST`, linux/ip_vs.h).
    fn is_change(&self, at: u64) -> Result<bool> {
        const HEADER: usize = 16;
        const NEW_DEST: u8 = 5;
        const DEL_DEST: u8 = 7;
        // The type of a generic netlink message is the small number of its family. The type of conntrack's requests has their subsystem in the upper byte.
        const FIRST_OF_NETFILTER: u16 = 0x100;
        let mut bytes = [0; HEADER + 4];
        self.memory.read_exact_at(&mut bytes, at).context("read what is sent")?;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        Ok(kind < FIRST_OF_NETFILTER && (NEW_DEST..=DEL_DEST).contains(&bytes[HEADER]))
    }
}
