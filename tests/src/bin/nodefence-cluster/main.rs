//! Clusters of real kubelets, one after the other: `nodefence-cluster PLAN...`, started by `cargo xtask cluster-test`. In the guests the same program is the first
//! process.
//!
//! Everything else is in namespaces and guests that this process holds. Once this process has ended for whatever reason, nothing is left.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use nodefence_tests::{
    cluster::{
        KubeCluster, guest,
        plan::{Plan, Until},
        waiting::Waiting,
    },
    incident::{
        judge::Verdict,
        summary::{self, Outcome},
    },
    interrupt::{self, INTERRUPTED},
};

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
    let plans: Vec<_> = std::env::args_os().skip(1).collect();
    ensure!(!plans.is_empty(), "expected the path of a plan; `cargo xtask cluster-test` writes one");
    let plans: Vec<Plan> = plans.iter().map(|plan| Plan::load(Path::new(plan))).collect::<Result<_>>()?;
    let _scratch = interrupt::scratch("nodefence-cluster-", stop)?;
    let mut outcomes = Vec::new();
    let mut failed = Vec::new();
    for plan in plans {
        let proxy = plan.proxy.clone();
        let waiting = Waiting::new(stop);
        // A cluster that fails says nothing of the others.
        if let Err(error) = one(plan, &waiting, stop, &mut outcomes) {
            waiting.check()?;
            eprintln!("error: {proxy}: {error:#}");
            failed.push(proxy);
        }
    }
    if outcomes.len() > 1 {
        print!("\n{}", summary::table(&outcomes));
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    ensure!(outcomes.iter().all(|outcome| outcome.verdict == Verdict::Held), "a promise was not held");
    Ok(())
}

/// Starts a cluster, and does what its plan asks for.
fn one(plan: Plan, waiting: &Waiting, stop: &AtomicBool, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let cluster = KubeCluster::start(plan, waiting.clone())?;
    let done = test(&cluster, outcomes);
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
fn test(cluster: &KubeCluster, outcomes: &mut Vec<Outcome>) -> Result<()> {
    match cluster.plan().until {
        Until::Ready => {}
        Until::Installed => {
            cluster.install()?;
            print!("{}", cluster.plugin(&["nodes"])?);
        }
        Until::Incident => cluster.incident(outcomes)?,
        Until::Removed => {
            cluster.incident(outcomes)?;
            cluster.life()?;
        }
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
