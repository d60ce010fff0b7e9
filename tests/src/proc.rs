//! Child processes that end with their parent.
#![expect(unsafe_code, reason = "the parent-death signal is set between fork and exec")]

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    sched::{CloneFlags, setns, unshare},
    sys::signal::{Signal, kill},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};

use crate::Netns;

/// Processor time of the calling thread, the kernel's included: others may have all processors meanwhile.
///
/// # Errors
/// Where the clock cannot be read.
pub fn thread_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// A child process in a namespace. Killed when dropped, and by the kernel when the namespace's thread ends.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    what: String,
}

impl Proc {
    /// Starts a command in `ns`.
    ///
    /// # Errors
    /// Where the program cannot be started.
    pub fn spawn(ns: &Netns, command: Command) -> Result<Self> {
        Self::begin(ns, command, |command| command.spawn())
    }

    /// As [`Proc::spawn`], as the first process of a PID namespace of its own, as of a container. `/proc` stays the caller's.
    ///
    /// # Errors
    /// As [`Proc::spawn`], or where the kernel refuses a namespace.
    pub fn spawn_as_init(ns: &Netns, command: Command) -> Result<Self> {
        Self::begin(ns, command, |command| {
            // Only the calling thread's children are moved; the thread itself stays (pid_namespaces(7)).
            let own = File::open("/proc/thread-self/ns/pid")?;
            unshare(CloneFlags::CLONE_NEWPID)?;
            let child = command.spawn();
            setns(own, CloneFlags::CLONE_NEWPID)?;
            child
        })
    }

    fn begin(
        ns: &Netns,
        mut command: Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child> + Send + 'static,
    ) -> Result<Self> {
        let what = format!("{command:?} in {}", ns.name());
        // SAFETY: between fork and exec only prctl(2) is called, which is async-signal-safe and allocates nothing.
        unsafe {
            command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
        }
        let child = ns.run(move || spawn(&mut command)).with_context(|| format!("start {what}"))?;
        Ok(Self { child, what })
    }

    /// Starts a command and waits until it has written a line to its standard output.
    ///
    /// # Errors
    /// Where it cannot be started or ends without a line.
    pub fn spawn_ready(ns: &Netns, mut command: Command) -> Result<Self> {
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut this = Self::spawn(ns, command)?;
        let stdout = this.child.stdout.take().context("no pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() {
            bail!("{} ended before it was ready", this.what);
        }
        Ok(this)
    }

    /// Process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("{signal} to {}", self.what))
    }

    /// Seconds of CPU that it has used so far, in its own code and in the kernel.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn cpu(&self) -> Result<[f64; 2]> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after_name = stat.rsplit_once(')').context("/proc/PID/stat names no command")?.1;
        let seconds = |field: usize| -> Result<f64> {
            // The field after the name is the third (proc_pid_stat(5)). User space sees 100 ticks a second.
            let text = after_name.split_whitespace().nth(field - 3).context("/proc/PID/stat is short")?;
            Ok(text.parse::<f64>()? / 100.0)
        };
        Ok([seconds(14)?, seconds(15)?])
    }

    /// How long its threads of this name have had a processor so far, all together.
    ///
    /// # Errors
    /// Where the process is gone, or has no such thread.
    pub fn ran(&self, thread: &str) -> Result<Duration> {
        self.schedstat(thread, 0)
    }

    /// How long its threads of this name have waited for a processor so far, all together.
    ///
    /// # Errors
    /// Where the process is gone, or has no such thread.
    pub fn waited(&self, thread: &str) -> Result<Duration> {
        self.schedstat(thread, 1)
    }

    /// One number, in nanoseconds, of the `schedstat` of its threads of this name (Documentation/scheduler/sched-stats.rst).
    fn schedstat(&self, thread: &str, number: usize) -> Result<Duration> {
        let mut sum = None;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let path = task?.path();
            // Another thread may just have ended.
            if std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == thread) {
                let text = std::fs::read_to_string(path.join("schedstat"))?;
                let nanoseconds = text.split(' ').nth(number).context("schedstat is short")?.parse()?;
                sum = Some(sum.unwrap_or(Duration::ZERO) + Duration::from_nanos(nanoseconds));
            }
        }
        sum.with_context(|| format!("no thread `{thread}`"))
    }

    /// A line of its `/proc/PID/status` that counts memory (`VmRSS`, `VmHWM`), in MiB.
    ///
    /// # Errors
    /// Where the process is gone, or there is no such line.
    pub fn memory(&self, what: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kilobytes = kilobytes.with_context(|| format!("no {what} in /proc/PID/status"))?;
        Ok(kilobytes.trim().parse::<f64>()? / 1024.0)
    }

    /// Stops the process (SIGSTOP cannot be caught). Its kernel goes on answering for it.
    ///
    /// # Errors
    /// Where the process is gone, or a thread of it still runs after 10 s.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        // The signal is only noted: each thread stops at its next return to user space.
        let start = Instant::now();
        while !self.stopped()? {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("{} has not stopped after 10 s", self.what);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether each thread is in state T (`/proc/PID/task/TID/stat`, third field; the second is in parentheses).
    fn stopped(&self) -> Result<bool> {
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let stat = match std::fs::read_to_string(task?.path().join("stat")) {
                // A thread that ended since the folder was listed.
                Err(error) if ended(&error) => continue,
                stat => stat?,
            };
            if !stat.rsplit(')').next().unwrap_or_default().starts_with(" T") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// `Some` where it has ended.
    ///
    /// # Errors
    /// The error of waitpid(2).
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Where it still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!("{} still runs after {limit:?}", self.what);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a file of a thread is gone, or was when it was read: the thread has ended.
fn ended(error: &io::Error) -> bool {
    let gone = [Errno::ENOENT, Errno::ESRCH];
    error.raw_os_error().is_some_and(|number| gone.contains(&Errno::from_raw(number)))
}
