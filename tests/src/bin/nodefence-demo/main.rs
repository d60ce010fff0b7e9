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
};

use anyhow::{Context as _, Result, bail};
use nodefence_tests::interrupt::{self, INTERRUPTED};

use crate::run::{Plan, Run, Times};

const HELP: &str = "\
nodefence-demo [--out FOLDER] [--short]

A client outside, a forwarding node A, backends on B and C, all in network namespaces. Every process of node B
is frozen; its kernel still answers. Once without nodefence, once with the node flagged by `nodefence flag`.
Writes FOLDER/timeline.svg and FOLDER/timeline.json (default: target/demo). Two runs of 17 s, with --short of 6 s; needs root.
Ctrl-C ends it at any time and removes everything.
";

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
    let _scratch = interrupt::scratch("nodefence-demo-", stop)?;
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
