//! A cluster of real kubelets: `nodefence-cluster PLAN`, started by `cargo xtask cluster-test`. In the cluster's guests the same program is the first process.
//!
//! Everything else is in namespaces and guests that this process holds. Once this process has ended for whatever reason, nothing is left.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nodefence_tests::cluster::{
    KubeCluster, guest,
    plan::{Plan, Until},
    waiting::Waiting,
};

/// The exit code after SIGINT, as shells expect it.
const INTERRUPTED: u8 = 130;
/// Signals within this time after the first one count as the same request.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if let Some(code) = guest::main_if_meant() {
        return code;
    }
    nodefence_tests::watch::off();
    let stop = Arc::new(AtomicBool::new(false));
    match run(&stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if stop.load(Ordering::Relaxed) => {
            eprintln!("cluster: interrupted: everything is removed");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(stop: &Arc<AtomicBool>) -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let (Some(plan), None) = (words.next(), words.next()) else {
        bail!("expected the path of a plan; `cargo xtask cluster-test` writes one");
    };
    let plan = Plan::load(Path::new(&plan))?;
    // All files of the run are in this folder, so that a second Ctrl-C, which waits for nothing, can remove them.
    let scratch =
        tempfile::TempDir::with_prefix("nodefence-cluster-").context("make a folder for temporary files")?;
    if tempfile::env::override_temp_dir(scratch.path()).is_err() {
        bail!("the folder for temporary files was chosen already");
    }
    watch_signals(stop, scratch.path())?;
    let cluster = KubeCluster::start(plan, Waiting::new(stop))?;
    let done = test(&cluster);
    cluster.save_logs();
    if cluster.plan().keep {
        if let Err(error) = &done {
            eprintln!("error: {error:#}");
        }
        keep(&cluster, stop)?;
    }
    done
}

/// Does what the plan asks for.
fn test(cluster: &KubeCluster) -> Result<()> {
    match cluster.plan().until {
        Until::Ready => {}
        Until::Installed => {
            cluster.install()?;
            print!("{}", cluster.plugin(&["nodes"])?);
        }
        Until::Incident => print!("{}", cluster.incident()?),
    }
    print!("{}", cluster.kubectl(&["get", "nodes,pods", "--all-namespaces", "--output=wide"], None)?);
    Ok(())
}

/// Leaves the cluster up until Ctrl-C.
fn keep(cluster: &KubeCluster, stop: &AtomicBool) -> Result<()> {
    eprint!("{}", cluster.how_to_look()?);
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Handles SIGINT, SIGTERM and SIGHUP. The first signal ends the next wait. A signal more than a second later ends the process at once, and the kernel removes
/// the namespaces and child processes. A signal before that is the same Ctrl-C, passed on by the program that started this one.
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
