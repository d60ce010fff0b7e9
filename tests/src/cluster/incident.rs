//! What the incident needs of a cluster, from this one.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::Ipv4Addr,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{KubeCluster, wire};
use crate::{
    Netns,
    incident::{Cluster, Incident, Plan, Run, Scenario, Still, Times, Way, judge::Figures, summary::Outcome},
    kube::orders::{FLAGS, in_time},
};

/// How long the incident's flag lasts, far beyond the incident.
const LASTS: Duration = Duration::from_secs(3_600);

/// Where the API server is stopped, the cluster is without it for this long before the node freezes.
const WITHOUT_API: Duration = Duration::from_secs(3);

/// How long the nodes have after an install. Its Jobs and pods are work that an emulated processor is not done with when the last pod is ready.
const SETTLED: Duration = Duration::from_secs(30);

/// The image of the servers, as `cargo xtask cluster-test` puts it on the nodes.
const IMAGE: &str = "localhost/nodefence-pod:1";

/// The pods of each server node.
const PODS: usize = 2;

impl KubeCluster {
    /// The incident's servers, and which of their nodes is the one that is flagged.
    pub(super) fn servers(&self) -> Plan {
        Plan {
            image: IMAGE.to_owned(),
            through: wire::name(1),
            servers: vec![wire::name(2), wire::name(3)],
            frozen: wire::name(2),
            pods_each: PODS,
            out: self.plan.out.clone(),
            scenario: Scenario::Freeze,
            times: Times::FULL,
        }
    }

    /// Runs the incident in the plan's scenarios: the runs without a flag, then those with nodefence, which is installed in between. Prints the report of each, and
    /// adds what came out to `outcomes`.
    ///
    /// # Errors
    /// Fails if a part of the cluster fails, or if a run proves nothing. A promise that was not held is no error.
    pub fn incident(&self, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let mut scenarios = self.plan.scenarios.clone();
        scenarios.sort_unstable();
        scenarios.dedup();
        let incident = Incident::deploy(self, self.servers())?;
        let mut stock: BTreeMap<Scenario, Run> = BTreeMap::new();
        for scenario in scenarios.iter().map(|scenario| scenario.stock()) {
            if let Entry::Vacant(place) = stock.entry(scenario) {
                place.insert(incident.of(scenario)?.run(Way::Stock)?);
            }
        }
        self.start_node(&wire::name(2))?;
        self.install()?;
        std::thread::sleep(SETTLED);
        for scenario in scenarios {
            let incident = incident.of(scenario)?;
            let stock = stock.get(&scenario.stock()).context("no run without a flag")?;
            let (flagged, verdict, again) = incident.run_flagged()?;
            let report = incident.report(stock, &flagged)?;
            let outcome = Outcome {
                proxy: self.plan.proxy.clone(),
                scenario,
                stock: Figures::of(stock),
                flagged: Figures::of(&flagged),
                verdict,
                again,
            };
            println!("\n{}", outcome.name());
            print!("{}", report.text);
            for (run, reason) in (1..).zip(&outcome.again) {
                println!("\nAGAIN  run {run} with nodefence does not count: {reason}");
            }
            outcomes.push(outcome);
        }
        Ok(())
    }
}

impl Cluster for KubeCluster {
    fn kubectl(&self, args: &[&str], stdin: Option<&str>) -> Result<String> {
        Self::kubectl(self, args, stdin)
    }

    fn start(&self, node: &str) -> Result<()> {
        self.start_node(node)
    }

    fn freeze(&self, scenario: Scenario, node: &str) -> Result<()> {
        match scenario {
            Scenario::Freeze => Self::freeze(self, node),
            Scenario::NoApi => {
                self.api_server()?.freeze()?;
                std::thread::sleep(WITHOUT_API);
                Self::freeze(self, node)
            }
            Scenario::Pods => self.freeze_pods(node),
            Scenario::Off => self.power_off(node),
        }
    }

    fn thaw(&self, scenario: Scenario, node: &str) -> Result<()> {
        match scenario {
            Scenario::Freeze => Self::thaw(self, node),
            Scenario::NoApi => {
                self.api_server()?.thaw()?;
                Self::thaw(self, node)
            }
            Scenario::Pods => self.thaw_pods(node),
            Scenario::Off => self.start_node(node),
        }
    }

    fn flag(&self, scenario: Scenario, node: &str) -> Result<()> {
        if scenario == Scenario::NoApi {
            let seconds = LASTS.as_secs();
            return self.on_others(node, &format!("flag {node} --for {seconds}s --reason 'the incident'"));
        }
        let object = self.api().get(&format!("/api/v1/nodes/{node}"))?;
        let uid = object["metadata"]["uid"].as_str().context("a Node without a UID")?;
        let flag = json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": {"name": node},
            "spec": {"node": node, "uid": uid, "reason": "the incident", "until": in_time(LASTS)},
        });
        self.api().create(FLAGS, &flag).map(drop)
    }

    fn unflag(&self, scenario: Scenario, node: &str) -> Result<()> {
        if scenario == Scenario::NoApi {
            return self.on_others(node, &format!("unflag {node}"));
        }
        self.api().delete(&format!("{FLAGS}/{node}"))
    }

    fn address(&self, node: &str) -> Result<Ipv4Addr> {
        wire::number(node).map(wire::address).with_context(|| format!("no node {node}"))
    }

    fn clients(&self) -> &Netns {
        &self.ns
    }

    fn ipvs(&self, node: &str) -> Result<Option<String>> {
        if self.plan().proxy != "ipvs" {
            return Ok(None);
        }
        self.on(node, "ipvsadm -Ln").map(Some)
    }

    fn stood_still(&self, from_ns: u64, to_ns: u64) -> Result<Vec<Still>> {
        self.watchdogs.borrow().between(from_ns, to_ns)
    }
}
