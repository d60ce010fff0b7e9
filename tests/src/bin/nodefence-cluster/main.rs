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
    time::Duration,
};

use anyhow::{Result, bail};
use nodefence_tests::{
    cluster::{
        KubeCluster, guest,
        plan::{Plan, Until},
        waiting::Waiting,
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
    let mut words = std::env::args_os().skip(1);
    let (Some(plan), None) = (words.next(), words.next()) else {
        bail!("expected the path of a plan; `cargo xtask cluster-test` writes one");
    };
    let plan = Plan::load(Path::new(&plan))?;
    let _scratch = interrupt::scratch("nodefence-cluster-", stop)?;
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
