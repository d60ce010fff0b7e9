//! The chart's life after the install: upgrade and rollback of all agents beside traffic while a node is flagged, and the removal while a cut is in force.

mod arrivals;
mod check;
mod left;
mod objects;
mod release;
mod rollout;
mod traffic;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{KubeCluster, install::NAMESPACE, wire};
use crate::incident::{Clients, Cluster as _, Incident, Scenario, observed::now_us};
use arrivals::Arrived;
use check::Check;
use rollout::Rollout;
use traffic::Times;

/// How long clients run before the flag.
const CALM: Duration = Duration::from_secs(3);
/// From this time after the flag's creation on, no packet passes. It is the promise.
const CUT: Duration = Duration::from_secs(1);
/// How long the cut is watched before the chart is removed.
const IN_FORCE: Duration = Duration::from_secs(3);
/// How long clients go on afterwards.
const AFTER: Duration = Duration::from_secs(5);
/// How long the pods of a removed release may take to end. The agents' have 30 s.
const ENDED: Duration = Duration::from_secs(120);
/// A part is repeated at most so often, and only where something stood still.
const TRIES: usize = 3;

/// The node that is flagged, and is well.
const FLAGGED: u8 = 2;
/// The node whose NodePorts the clients use.
const THROUGH: u8 = 1;

impl KubeCluster {
    /// Takes an installed release through upgrade, rollback and removal. Prints a line for each check once its part is over.
    ///
    /// # Errors
    /// Fails if a part of the cluster fails, or if a check does not hold.
    pub fn life(&self) -> Result<()> {
        self.start_node(&wire::name(FLAGGED))?;
        let servers = Incident::deploy(self, self.servers())?;
        println!("\nThe chart's life, with a node flagged that is well");
        let mut are_held = self.repeat(|_| Ok(()), |number| self.roll(&servers, number))?;
        let install_again = |number| {
            if number > 1 {
                self.unflag(Scenario::Freeze, &wire::name(FLAGGED))?;
                self.install()?;
            }
            Ok(())
        };
        are_held &= self.repeat(install_again, |_| self.remove(&servers))?;
        let checks = self.clean_up()?;
        print!("{}", check::lines(&checks));
        ensure!(are_held && check::all_held(&checks), "a check of the chart's life did not hold");
        Ok(())
    }

    /// Does a part once, and again where only stand-stills explain what did not hold. Prints its lines, and returns whether all held.
    fn repeat(
        &self,
        before: impl Fn(usize) -> Result<()>,
        part: impl Fn(usize) -> Result<Vec<Check>>,
    ) -> Result<bool> {
        for number in 1.. {
            before(number)?;
            let checks = part(number)?;
            match check::again(&checks) {
                Some(reason) if number < TRIES => {
                    self.waiting.say(&format!("once more: {reason}"));
                    println!("AGAIN  run {number} does not count: {reason}");
                }
                _ => {
                    print!("{}", check::lines(&checks));
                    return Ok(check::all_held(&checks));
                }
            }
        }
        Ok(false)
    }

    /// All agents are rolled twice, by an upgrade and by a rollback.
    fn roll(&self, servers: &Incident<'_>, number: usize) -> Result<Vec<Check>> {
        let (node, through) = (wire::name(FLAGGED), wire::name(THROUGH));
        servers.all_answer()?;
        let before = servers.ipvs()?;
        arrivals::count(self, &node)?;
        let clients = Clients::start(self, &through, &self.plan.out.join("rolled.jsonl"), "light")?;
        let began = now_us();
        std::thread::sleep(CALM);
        let calm = arrivals::read(self, &node)?;
        self.flag(Scenario::Freeze, &node)?;
        let flagged = now_us();
        self.waiting.say(&format!("{node} is flagged, and well"));
        std::thread::sleep(CUT);
        let cut = arrivals::read(self, &node)?;
        let mut upgraded = Rollout::before(self)?;
        self.upgrade(&format!("run-{number}"))?;
        upgraded.follow(self, "upgrade")?;
        let mut rolled_back = Rollout::before(self)?;
        self.roll_back()?;
        rolled_back.follow(self, "rollback")?;
        let rolled = arrivals::read(self, &node)?;
        let freed = now_us();
        self.unflag(Scenario::Freeze, &node)?;
        let unflagged = Instant::now();
        self.waiting.say(&format!("{node} is unflagged"));
        std::thread::sleep(AFTER);
        let after = arrivals::read(self, &node)?;
        let ended = now_us();
        let log = clients.end()?;
        arrivals::end(self, &node)?;
        let restored = servers.restored(before.as_ref(), unflagged)?;
        let run = traffic::run(self, &node, Times { began, flagged, freed, ended }, log, restored)?;
        run.facts.write(&self.plan.out.join("rolled.json"))?;
        let mut checks = vec![
            passed(calm, rolled.since(cut), after.since(rolled), freed.saturating_sub(flagged)),
            traffic::nobody_answers_there(
                &run,
                "while all agents are rolled, no pod of the flagged node answers",
            ),
            traffic::nothing_is_lost(
                &run,
                "while all agents are rolled, nothing to other nodes is lost or delayed",
            )?,
            traffic::answers_again(&run, "after the flag's end the node's pods answer again"),
        ];
        checks.extend(upgraded.checks("upgrade"));
        checks.extend(rolled_back.checks("rollback"));
        Ok(checks)
    }

    /// The release is removed while a flag stands and the cut is in force.
    fn remove(&self, servers: &Incident<'_>) -> Result<Vec<Check>> {
        let (node, through) = (wire::name(FLAGGED), wire::name(THROUGH));
        servers.all_answer()?;
        let before = self.tables()?;
        let through_before = servers.ipvs()?;
        let shown = self.shown_on_nodes()?;
        let clients = Clients::start(self, &through, &self.plan.out.join("removed.jsonl"), "light")?;
        let began = now_us();
        std::thread::sleep(CALM);
        self.flag(Scenario::Freeze, &node)?;
        let flagged = now_us();
        std::thread::sleep(IN_FORCE);
        let freed = now_us();
        self.control.plane().nobody_lacked_a_right()?;
        let removal = Instant::now();
        let printed = self.uninstall()?;
        std::thread::sleep(AFTER);
        let ended = now_us();
        let log = clients.end()?;
        let restored = servers.restored(through_before.as_ref(), removal)?;
        let run = traffic::run(self, &node, Times { began, flagged, freed, ended }, log, restored)?;
        run.facts.write(&self.plan.out.join("removed.json"))?;
        let told = self.kubectl(&["logs", "--namespace", NAMESPACE, "job/nodefence-uninstall"], None)?;
        let last = printed.lines().last().unwrap_or_default();
        let mut checks = vec![
            shown,
            traffic::nobody_answers_there(&run, "before the removal the cut is in force"),
            traffic::answers_again(
                &run,
                "helm uninstall while the cut is in force: the node's pods answer again",
            ),
            traffic::nothing_is_lost(
                &run,
                "helm uninstall while the cut is in force: nothing is lost or delayed",
            )?,
            Check::of(
                "the Job of the removal names what it did",
                told.contains(ALL_OFF),
                format!("{}\nhelm: {last}", told.trim()),
            ),
        ];
        self.until_ended()?;
        // helm removes the controllers' account while they end.
        self.control.plane().hear_anew();
        checks.extend(self.left_on_nodes(&before)?);
        checks.push(self.left_in_api(&node)?);
        Ok(checks)
    }

    /// Waits until the release has no pod but those of its Jobs, which have ended.
    fn until_ended(&self) -> Result<()> {
        self.waiting.until("no agent and no controller is left", ENDED, || {
            let pods = self.api().get(&format!("/api/v1/namespaces/{NAMESPACE}/pods"))?;
            let is_over = |pod: &serde_json::Value| pod["status"]["phase"] == "Succeeded";
            let others: Vec<String> = pods["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|pod| !is_over(pod))
                .map(|pod| pod["metadata"]["name"].to_string())
                .collect();
            Ok(if others.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("{}", others.join(", "))) })
        })
    }
}

/// What the Job says where each agent is off.
const ALL_OFF: &str = "3 of 3 agents; nothing of theirs is left on their nodes";

/// No packet to the flagged node's pods passes. The counters have counted before and afterwards, so they can count.
fn passed(before: Arrived, meanwhile: Arrived, after: Arrived, us: u64) -> Check {
    let none = Arrived { tcp: 0, udp: 0 };
    let counts = [before, after].iter().all(|arrived| arrived.tcp > 0 && arrived.udp > 0);
    let evidence = format!(
        "{meanwhile} in {:.0} s, as its own kernel counts ({before} in {} s before the flag, {after} in {} s after it)",
        us as f64 / 1e6,
        CALM.as_secs(),
        AFTER.as_secs()
    );
    Check::of(
        "while all agents are rolled, no packet to the flagged node passes",
        meanwhile == none && counts,
        evidence,
    )
}
