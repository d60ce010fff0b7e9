//! `cargo xtask demo`: a node of a small cluster hangs. One run is without nodefence, the other with the node flagged.
//!
//! Everything is in network namespaces that this process holds. Once this process has ended for whatever reason, nothing is left.

mod clients;
mod live;
mod picture;
mod record;
mod request;
mod run;
mod table;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::run::{Plan, Run, Times};

const HELP: &str = "\
nodefence-demo [--out FOLDER] [--short]

A client outside, a forwarding node A, backends on B and C, all in network namespaces. Every process of node B
is frozen; its kernel still answers. Once without nodefence, once with the node flagged by `nodefence flag`.
Writes FOLDER/timeline.svg and FOLDER/timeline.json (default: target/demo). Two runs of 17 s, with --short of 6 s; needs root.
Ctrl-C ends it at any time and removes everything.
";

/// The exit code after SIGINT, as shells expect it.
const INTERRUPTED: u8 = 130;
/// Signals within this time after the first one count as the same request.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    nodefence_tests::watch::off();
    let stop = Arc::new(AtomicBool::new(false));
    match demo(&stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if stop.load(Ordering::Relaxed) => {
            eprintln!("\ninterrupted: everything is removed");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demo(stop: &Arc<AtomicBool>) -> Result<()> {
    let Some((out, times)) = arguments()? else { return Ok(()) };
    // All files of the run are in this folder, so that a second Ctrl-C, which waits for nothing, can remove them.
    let scratch =
        tempfile::TempDir::with_prefix("nodefence-demo-").context("make a folder for temporary files")?;
    if tempfile::env::override_temp_dir(scratch.path()).is_err() {
        bail!("the folder for temporary files was chosen already");
    }
    watch_signals(stop, scratch.path())?;
    println!(
        "Three nodes in network namespaces. Clients (outside, in a pod, on the node) reach servers on nodes B and C"
    );
    println!(
        "through node A, which balances over both as kube-proxy does. Then node B hangs: all its processes are frozen,"
    );
    println!(
        "its kernel still answers ARP and SYN and acknowledges requests. Two runs of {} s each.\n",
        times.seconds()
    );
    let without = run::run(Plan::Without, times, stop)?;
    let with = run::run(Plan::With, times, stop)?;
    print!("{}", table::render(&without, &with));
    std::fs::create_dir_all(&out).with_context(|| format!("make the folder {}", out.display()))?;
    write(&out.join("timeline.svg"), &picture::render(&without, &with)?)?;
    write(&out.join("timeline.json"), &json(&[&without, &with])?)?;
    hand_over(&out)?;
    println!(
        "\n  {} shows both runs; the figures lie in timeline.json beside it.",
        out.join("timeline.svg").display()
    );
    Ok(())
}

fn arguments() -> Result<Option<(PathBuf, Times)>> {
    let mut out = PathBuf::from("target/demo");
    let mut times = Times::FULL;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => out = words.next().context("--out: expected a folder")?.into(),
            "--short" => times = Times::SHORT,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(None);
            }
            _ => bail!("unknown argument `{word}`; see --help"),
        }
    }
    Ok(Some((out, times)))
}

/// Handles SIGINT, SIGTERM and SIGHUP. The first signal tells all threads to stop. A signal more than a second later ends the process at once, and the kernel
/// removes the namespaces and child processes. A signal before that is the same Ctrl-C, passed on by the program that started this one.
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

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn json(runs: &[&Run]) -> Result<String> {
    let runs: Vec<_> = runs.iter().map(|run| record::json(run)).collect();
    Ok(serde_json::to_string_pretty(&serde_json::json!({ "bucket_ms": request::BUCKET_MS, "runs": runs }))?)
}

/// Gives the results to the user who called sudo, if the demo runs under sudo.
fn hand_over(out: &Path) -> Result<()> {
    let id = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(uid), Some(gid)) = (id("SUDO_UID"), id("SUDO_GID")) else { return Ok(()) };
    for path in [out.to_owned(), out.join("timeline.svg"), out.join("timeline.json")] {
        std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
    }
    Ok(())
}
