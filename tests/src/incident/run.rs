//! Runs the incident on a cluster.

use std::{
    collections::BTreeSet,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    cluster::Cluster,
    ipvs,
    judge::{Verdict, judge, shows_the_fault},
    manifests,
    observed::{Facts, Moments, Restored, Run, now_us},
    plan::{Plan, Way},
    probe,
    report::{self, Report},
    running::Clients,
    scenario::Scenario,
};

/// How long the servers may take to answer. Emulated nodes start a pod in most of a minute.
const DEPLOYED: Duration = Duration::from_secs(300);
/// A new namespace has no service account for a moment, without which no pod is created.
const ACCOUNT: Duration = Duration::from_secs(60);
/// How long IPVS's table may take to be as before.
const RESTORED: Duration = Duration::from_secs(60);
/// A run with a flag is repeated at most so often, and only where something stood still.
const TRIES: usize = 3;

/// The incident's servers on a cluster.
pub struct Incident<'c> {
    cluster: &'c dyn Cluster,
    plan: Plan,
    pods: BTreeSet<String>,
}

impl std::fmt::Debug for Incident<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Incident").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl<'c> Incident<'c> {
    /// Creates the servers and the Services, and waits until each server answers.
    ///
    /// # Errors
    /// Fails if an object is refused, or if a server does not answer after five minutes.
    pub fn deploy(cluster: &'c dyn Cluster, plan: Plan) -> Result<Self> {
        ensure!(
            plan.servers.contains(&plan.frozen),
            "{} has no server, so its freeze shows nothing",
            plan.frozen
        );
        std::fs::create_dir_all(&plan.out).with_context(|| format!("make {}", plan.out.display()))?;
        cluster.kubectl(&["apply", "-f", "-"], Some(&manifests::namespace().to_string()))?;
        let objects = manifests::objects(&plan).to_string();
        let begun = Instant::now();
        while let Err(error) = cluster.kubectl(&["apply", "-f", "-"], Some(&objects)) {
            ensure!(begun.elapsed() < ACCOUNT, "{error:#}");
            sleep(Duration::from_secs(1));
        }
        let pods = manifests::pods(&plan).into_iter().map(|(name, _)| name).collect();
        let this = Self { cluster, plan, pods };
        this.all_answer()?;
        Ok(this)
    }

    /// The same servers in another scenario.
    ///
    /// # Errors
    /// Fails if the scenario's folder cannot be made.
    pub fn of(&self, scenario: Scenario) -> Result<Self> {
        let plan = self.plan.of(scenario);
        std::fs::create_dir_all(&plan.out).with_context(|| format!("make {}", plan.out.display()))?;
        Ok(Self { plan, pods: self.pods.clone(), ..*self })
    }

    /// Waits until each server answers.
    pub(crate) fn all_answer(&self) -> Result<()> {
        let address = self.cluster.address(&self.plan.through)?;
        say("waiting until each server answers");
        probe::all_answer(self.cluster.clients(), address, &self.pods, DEPLOYED)
    }

    /// Runs the incident once, and writes what was recorded. A run without a flag must show that clients wait.
    ///
    /// # Errors
    /// Fails if a part of the cluster fails, or if a run without a flag shows nothing. Promises that are broken are no error.
    pub fn run(&self, way: Way) -> Result<Run> {
        self.cluster.start(&self.plan.frozen)?;
        self.all_answer()?;
        let before = self.ipvs()?;
        let log = self.plan.out.join(format!("{}.jsonl", way.file()));
        let scenario = self.plan.scenario;
        say(&format!("{}, {}: clients start", scenario.text(), way.name()));
        let clients = Clients::start(self.cluster, &self.plan.through, &log, "full")?;
        let (moments, unflagged, back) = self.stages(way)?;
        let log = clients.end()?;
        if let Some(back) = back {
            back.now()?;
        }
        let restored = self.restored(before.as_ref(), unflagged)?;
        let stood_still = self.cluster.stood_still(moments.began * 1_000, moments.ended * 1_000)?;
        let frozen = self.plan.frozen.clone();
        let run = Run { facts: Facts { scenario, way, frozen, moments, stood_still, restored }, log };
        run.write(&self.plan.out)?;
        if way == Way::Stock {
            shows_the_fault(&run)?;
        }
        Ok(run)
    }

    /// Runs the incident with a flag, and judges it. Where only a stand-still of this machine or of a guest explains what was broken, the run is repeated, three
    /// runs at most. Also returns why the runs before the last one do not count.
    ///
    /// # Errors
    /// Fails as [`Incident::run`] does, or if a run proves nothing.
    pub fn run_flagged(&self) -> Result<(Run, Verdict, Vec<String>)> {
        let mut stood_still = Vec::new();
        loop {
            let run = self.run(Way::Flagged)?;
            let verdict = judge(&run)?;
            match verdict {
                Verdict::StoodStill(reason) if stood_still.len() + 1 < TRIES => {
                    say(&format!("once more: {reason}"));
                    stood_still.push(reason);
                }
                verdict => return Ok((run, verdict, stood_still)),
            }
        }
    }

    /// Writes table and picture of two runs.
    ///
    /// # Errors
    /// Fails if a file cannot be written, or if the run with a flag proves nothing.
    pub fn report(&self, stock: &Run, flagged: &Run) -> Result<Report> {
        // The folder has both runs, also where the one without a flag was another scenario's.
        stock.write(&self.plan.out)?;
        report::write(&self.plan.out, stock, flagged)
    }

    /// Freezes the node, flags it, and lets it go on. Returns the moments, and when the node was unflagged. Where the node does not go on, returns what is left to
    /// do once the clients have ended.
    fn stages(&self, way: Way) -> Result<(Moments, Instant, Option<Back<'_>>)> {
        let Plan { frozen, times, scenario, .. } = &self.plan;
        let began = now_us();
        sleep(times.calm);
        let back = Back { cluster: self.cluster, scenario: *scenario, node: frozen, way };
        self.cluster.freeze(*scenario, frozen)?;
        let at = now_us();
        say(&format!("{frozen}: {}", scenario.text()));
        let length = if way == Way::Flagged { times.flagged } else { times.stock };
        sleep_until(at + micros(times.flag));
        if way == Way::Flagged {
            self.cluster.flag(*scenario, frozen)?;
            say(&format!("{frozen} is flagged"));
        }
        let flagged = now_us();
        sleep_until(at + micros(length));
        let back = match scenario.comes_back() {
            true => {
                back.now()?;
                say(&format!("{frozen} is back"));
                None
            }
            false => Some(back),
        };
        let thawed = now_us();
        let unflagged = Instant::now();
        sleep(times.after);
        Ok((Moments { began, frozen: at, flagged, thawed, ended: now_us() }, unflagged, back))
    }

    /// The rows of IPVS's table on the node through which the clients go. `None` where kube-proxy does not use IPVS.
    pub(crate) fn ipvs(&self) -> Result<Option<BTreeSet<String>>> {
        Ok(self.cluster.ipvs(&self.plan.through)?.map(|listing| ipvs::rows(&listing)))
    }

    /// Waits until these rows are there again.
    pub(crate) fn restored(&self, before: Option<&BTreeSet<String>>, unflagged: Instant) -> Result<Restored> {
        let Some(before) = before else { return Ok(Restored::NoIpvs) };
        if !self.plan.scenario.comes_back() {
            return Ok(Restored::StaysOff);
        }
        loop {
            let after = self.ipvs()?.context("IPVS's table is gone")?;
            let lines = ipvs::differences(before, &after);
            if lines.is_empty() {
                return Ok(Restored::After { seconds: unflagged.elapsed().as_secs_f64() });
            }
            if unflagged.elapsed() > RESTORED {
                return Ok(Restored::Differs { lines });
            }
            sleep(Duration::from_secs(1));
        }
    }
}

/// A frozen node that goes on when this is dropped, so that a failed run leaves none frozen.
struct Back<'r> {
    cluster: &'r dyn Cluster,
    scenario: Scenario,
    node: &'r str,
    way: Way,
}

impl Back<'_> {
    fn now(self) -> Result<()> {
        let done = self.go_on();
        std::mem::forget(self);
        done
    }

    /// The node goes on first and is unflagged then, as an operator does it.
    fn go_on(&self) -> Result<()> {
        if self.scenario.comes_back() {
            self.cluster.thaw(self.scenario, self.node)?;
        }
        if self.way == Way::Flagged { self.cluster.unflag(self.scenario, self.node) } else { Ok(()) }
    }
}

impl Drop for Back<'_> {
    fn drop(&mut self) {
        let _the_run_failed_already = self.go_on();
    }
}

fn say(text: &str) {
    eprintln!("incident: {text}");
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn sleep_until(at: u64) {
    sleep(Duration::from_micros(at.saturating_sub(now_us())));
}
