//! The end by a signal of a program that a person runs, and the folder of its files, which ends with it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// The exit code after SIGINT, as shells expect it.
pub const INTERRUPTED: u8 = 130;
/// Signals within this time after the first one count as the same request.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Makes the folder for all temporary files of this process, so that a second Ctrl-C, which waits for nothing, can remove them. The first signal sets `stop`.
///
/// # Errors
/// Fails if the folder cannot be made, if temporary files have a folder already, or if signals cannot be taken.
pub fn scratch(prefix: &str, stop: &Arc<AtomicBool>) -> Result<TempDir> {
    let scratch = TempDir::with_prefix(prefix).context("make a folder for temporary files")?;
    if tempfile::env::override_temp_dir(scratch.path()).is_err() {
        bail!("the folder for temporary files was chosen already");
    }
    watch_signals(stop, scratch.path())?;
    Ok(scratch)
}

/// Handles SIGINT, SIGTERM and SIGHUP. The first signal sets `stop`. A signal more than a second later ends the process at once, and the kernel removes the
/// namespaces and child processes. A signal before that is the same Ctrl-C, passed on by the program that started this one.
fn watch_signals(stop: &Arc<AtomicBool>, scratch: &Path) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    let stop = Arc::clone(stop);
    let scratch = scratch.to_owned();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let mut first: Option<Instant> = None;
            loop {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
                stop.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() > SAME_SIGNAL {
                    let _ = std::fs::remove_dir_all(&scratch);
                    std::process::exit(INTERRUPTED.into());
                }
            }
        });
    });
    Ok(())
}
