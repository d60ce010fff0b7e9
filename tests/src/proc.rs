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

/// The processor time of the calling thread, including the kernel's work for it. Unlike real time, it does not grow while others have all processors.
///
/// # Errors
/// Fails if the clock cannot be read.
pub fn thread_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// A child process in a namespace. It is killed when this is dropped, and by the kernel when the namespace's thread ends.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    what: String,
}

impl Proc {
    /// Starts a command in `ns`.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub fn spawn(ns: &Netns, command: Command) -> Result<Self> {
        Self::begin(ns, command, |command| command.spawn())
    }

    /// Starts a command in `ns` as the first process of a new PID namespace, as in a container. `/proc` stays the caller's.
    ///
    /// # Errors
    /// Fails as [`Proc::spawn`] does, or if the kernel refuses a namespace.
    pub fn spawn_as_init(ns: &Netns, command: Command) -> Result<Self> {
        Self::begin(ns, command, |command| {
            // Only children of the calling thread are in the new namespace. The thread itself stays in its own (pid_namespaces(7)).
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
    /// Fails if the command cannot be started, or if it ends without a line.
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

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("{signal} to {}", self.what))
    }

    /// The processor time that the process has used so far, in seconds: in its own code, and in the kernel.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn cpu(&self) -> Result<[f64; 2]> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after_name = stat.rsplit_once(')').context("/proc/PID/stat names no command")?.1;
        let seconds = |field: usize| -> Result<f64> {
            // The first field after the name has number 3 (proc_pid_stat(5)). Times are in ticks, of which user space sees 100 a second.
            let text = after_name.split_whitespace().nth(field - 3).context("/proc/PID/stat is short")?;
            Ok(text.parse::<f64>()? / 100.0)
        };
        Ok([seconds(14)?, seconds(15)?])
    }

    /// How long the process's threads with this name have run on a processor so far, all together.
    ///
    /// # Errors
    /// Fails if the process is gone, or if it has no such thread.
    pub fn ran(&self, thread: &str) -> Result<Duration> {
        self.schedstat(thread, 0)
    }

    /// How long the process's threads with this name have waited for a processor so far, all together.
    ///
    /// # Errors
    /// Fails if the process is gone, or if it has no such thread.
    pub fn waited(&self, thread: &str) -> Result<Duration> {
        self.schedstat(thread, 1)
    }

    /// The sum of one number of the `schedstat` files of the threads with this name. The number is in nanoseconds (Documentation/scheduler/sched-stats.rst).
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

    /// The value of a line of `/proc/PID/status` that counts memory (`VmRSS`, `VmHWM`), in MiB.
    ///
    /// # Errors
    /// Fails if the process is gone, or if there is no such line.
    pub fn memory(&self, what: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kilobytes = kilobytes.with_context(|| format!("no {what} in /proc/PID/status"))?;
        Ok(kilobytes.trim().parse::<f64>()? / 1024.0)
    }

    /// Stops the process by SIGSTOP, which cannot be caught. The kernel goes on to answer for it.
    ///
    /// # Errors
    /// Fails if the process is gone, or if one of its threads still runs after 10 s.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        // The call only queues the signal. Each thread stops at its next return to user space.
        let start = Instant::now();
        while !self.stopped()? {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("{} has not stopped after 10 s", self.what);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether each thread is in state T. The state is the third field of `/proc/PID/task/TID/stat`, after the name in parentheses.
    fn stopped(&self) -> Result<bool> {
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let stat = match std::fs::read_to_string(task?.path().join("stat")) {
                // The thread has ended since the folder was listed.
                Err(error) if ended(&error) => continue,
                stat => stat?,
            };
            if !stat.rsplit(')').next().unwrap_or_default().starts_with(" T") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets the process go on.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// The exit status, if the process has ended.
    ///
    /// # Errors
    /// Fails with the error of waitpid(2).
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    /// Fails if the process still runs after `limit`.
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

/// Whether the error of opening or reading a thread's file means that the thread has ended.
fn ended(error: &io::Error) -> bool {
    let gone = [Errno::ENOENT, Errno::ESRCH];
    error.raw_os_error().is_some_and(|number| gone.contains(&Errno::from_raw(number)))
}
