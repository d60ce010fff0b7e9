//! Runs other programs: with a clean environment, as root if needed. Ctrl-C ends them.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How long a child may take to clean up after Ctrl-C. After that it gets SIGTERM.
const GRACE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(25);

/// Makes SIGINT, SIGTERM and SIGHUP set a flag. The loops that wait for children read the flag.
pub(crate) fn catch_interrupts() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signal_hook::flag::register(signal as i32, Arc::clone(flag))
            .with_context(|| format!("cannot watch for {signal}"))?;
    }
    Ok(())
}

/// Whether one of these signals has come.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if one of these signals has come. Loops call it between children.
pub(crate) fn check_interrupt() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A command without the variables that `cargo run` and rustup's proxy set. They would send a nested cargo to the wrong toolchain
/// (`RUSTUP_TOOLCHAIN`, `CARGO`) or a program to the wrong libLLVM (`LD_LIBRARY_PATH`).
pub(crate) fn command(program: impl Into<OsString>) -> Command {
    let mut command = Command::new(program.into());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(misleads) {
            command.env_remove(name);
        }
    }
    command.env("PATH", search_path());
    command
}

/// A [`command`] that runs another verb of this program.
pub(crate) fn verb(words: &[&str]) -> Result<Command> {
    let mut command = command(env::current_exe().context("where this program lies")?);
    command.args(words);
    Ok(command)
}

/// A [`command`] that runs as root. If this process is not root, the command runs under sudo with this environment.
pub(crate) fn root_command(program: impl Into<OsString>) -> Command {
    if is_root() {
        return command(program);
    }
    let mut sudo = command("sudo");
    // sudo replaces PATH by its own. env sets our PATH again.
    let mut path = OsString::from("PATH=");
    path.push(search_path());
    sudo.args(["-E", "env"]).arg(path).arg(program.into());
    sudo
}

/// The same command, in time in which nothing else wants to run (`SCHED_IDLE`, sched(7)).
pub(crate) fn idle(command: &Command) -> Command {
    let mut idle = self::command("chrt");
    idle.args(["--idle", "0"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        idle.current_dir(folder);
    }
    idle
}

fn misleads(name: &str) -> bool {
    matches!(
        name,
        "RUSTUP_TOOLCHAIN"
            | "CARGO"
            | "RUSTC"
            | "RUSTDOC"
            | "OUT_DIR"
            | "LD_LIBRARY_PATH"
            | "RUSTC_BOOTSTRAP"
    ) || ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "__CARGO", "CARGO_PRIMARY_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// PATH with cargo's bin folder first (cargo installs tools there), and with the system folders that an ordinary user's PATH lacks.
pub(crate) fn search_path() -> OsString {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(home) = cargo_home() {
        folders.push(home.join("bin"));
    }
    folders.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    folders.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    let mut seen = Vec::new();
    folders.retain(|folder| {
        let new = !seen.contains(folder);
        seen.push(folder.clone());
        new
    });
    env::join_paths(folders).unwrap_or_else(|_| env::var_os("PATH").unwrap_or_default())
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
}

/// The path of the program `name` on our search path.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    env::split_paths(&search_path()).map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// Whether a path is an executable file.
pub(crate) fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The command line as a person would type it, for messages.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end with our stdin, stdout and stderr.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    let child = command.spawn().with_context(|| format!("cannot start `{}`", line(command)))?;
    wait(&mut Guard(child), None)
}

/// Runs a command to its end with our stdin, stdout and stderr. Fails if the command fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// Runs a command to its end and returns its stdout. Fails if the command fails; the error has its stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    command.stderr(Stdio::piped());
    let (status, stdout, stderr) = collect(command)?;
    if !status.success() {
        bail!("`{}` ended with {status}: {}", line(command), String::from_utf8_lossy(&stderr).trim());
    }
    String::from_utf8(stdout).with_context(|| format!("`{}` printed no UTF-8", line(command)))
}

/// Runs a command to its end and returns its stdout. Its stderr is ours, so that progress shows. Fails if the command fails.
pub(crate) fn output_with_progress(command: &mut Command) -> Result<String> {
    command.stderr(Stdio::inherit());
    let (status, stdout, _) = collect(command)?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    String::from_utf8(stdout).with_context(|| format!("`{}` printed no UTF-8", line(command)))
}

fn collect(command: &mut Command) -> Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut guard = Guard(command.spawn().with_context(|| format!("cannot start `{}`", line(command)))?);
    let stdout = guard.0.stdout.take().map(read_all);
    let stderr = guard.0.stderr.take().map(read_all);
    let status = wait(&mut guard, None)?;
    let bytes = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    Ok((status, bytes(stdout), bytes(stderr)))
}

fn read_all(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // An error is ignored: the output before it is still worth showing.
        let _broken = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Runs a command to its end, and passes each line of stdout and stderr to `on_line`. After `limit` the command is killed, and the result is
/// `None`.
pub(crate) fn stream(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<Option<ExitStatus>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().with_context(|| format!("cannot start `{}`", line(command)))?;
    let mut guard = Guard(child);
    let (sender, lines) = mpsc::channel();
    if let Some(pipe) = guard.0.stdout.take() {
        read_lines(pipe, sender.clone());
    }
    if let Some(pipe) = guard.0.stderr.take() {
        read_lines(pipe, sender);
    }
    let deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => on_line(&line),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // A grandchild may keep the pipe open after the child has ended. We must not wait for it.
                if guard.0.try_wait()?.is_some()
                    && lines.recv_timeout(POLL * 20).map(|line| on_line(&line)).is_err()
                {
                    break;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        check_interrupt()?;
        if Instant::now() > deadline {
            guard.end();
            lines.try_iter().for_each(|line| on_line(&line));
            return Ok(None);
        }
    }
    wait(&mut guard, Some(deadline)).map(Some)
}

fn read_lines(pipe: impl Read + Send + 'static, lines: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()).is_err() {
                return;
            }
        }
    });
}

fn wait(child: &mut Guard, deadline: Option<Instant>) -> Result<ExitStatus> {
    let mut interrupted_at: Option<Instant> = None;
    loop {
        if let Some(status) = child.0.try_wait()? {
            check_interrupt()?;
            return Ok(status);
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            child.end();
        }
        match interrupted_at {
            None if interrupted() => {
                // A terminal sends the signal to the child too. Any other sender does not.
                if !std::io::stdin().is_terminal() {
                    child.signal(Signal::SIGINT);
                }
                interrupted_at = Some(Instant::now());
            }
            Some(since) if since.elapsed() > GRACE => child.end(),
            _ => {}
        }
        thread::sleep(POLL);
    }
}

/// A child process that ends when this value is dropped.
pub(crate) struct Guard(pub(crate) Child);

impl Guard {
    pub(crate) fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // The kernel refuses our signal to a child that sudo runs as root. sudo itself passes the terminal's signal on.
            let _refused = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Sends SIGTERM, waits two seconds, kills the child, and reaps it.
    pub(crate) fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(POLL);
        }
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}
