//! What the incident needs of a cluster, from this one.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::{KubeCluster, wire};
use crate::{
    Netns,
    incident::{Cluster, Incident, Plan, Still, Times, Way, judge::Verdict},
    kube::orders::{FLAGS, in_time},
};

/// How long the incident's flag lasts, far beyond the incident.
const LASTS: Duration = Duration::from_secs(3_600);

/// The image of the servers, as `cargo xtask cluster-test` puts it on the nodes.
const IMAGE: &str = "localhost/nodefence-pod:1";

/// The pods of each server node.
const PODS: usize = 2;

impl KubeCluster {
    /// Runs the incident: stock, then with nodefence, which is installed in between. Returns the report for a person.
    ///
    /// # Errors
    /// Fails if a part of the cluster fails, if a promise was not held, or if the machine stood still in each of the runs that the judge allows.
    pub fn incident(&self) -> Result<String> {
        let plan = Plan {
            image: IMAGE.to_owned(),
            through: wire::name(1),
            servers: vec![wire::name(2), wire::name(3)],
            frozen: wire::name(2),
            pods_each: PODS,
            out: self.plan.out.clone(),
            times: Times::FULL,
        };
        let incident = Incident::deploy(self, plan)?;
        let stock = incident.run(Way::Stock)?;
        self.install()?;
        let (flagged, verdict, again) = incident.run_flagged()?;
        let report = incident.report(&stock, &flagged)?;
        let mut text = report.text;
        for (run, reason) in (1..).zip(&again) {
            text += &format!("\nAGAIN  run {run} with nodefence does not count: {reason}\n");
        }
        match verdict {
            Verdict::Held => Ok(text),
            Verdict::Broken(_) | Verdict::StoodStill(_) => bail!("a promise was not held\n{text}"),
        }
    }
}

impl Cluster for KubeCluster {
    fn kubectl(&self, args: &[&str], stdin: Option<&str>) -> Result<String> {
        Self::kubectl(self, args, stdin)
    }

    fn freeze(&self, node: &str) -> Result<()> {
        Self::freeze(self, node)
    }

    fn thaw(&self, node: &str) -> Result<()> {
        Self::thaw(self, node)
    }

    fn flag(&self, node: &str) -> Result<()> {
        let object = self.api().get(&format!("/api/v1/nodes/{node}"))?;
        let uid = object["metadata"]["uid"].as_str().context("a Node without a UID")?;
        let flag = json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": {"name": node},
            "spec": {"node": node, "uid": uid, "reason": "the incident", "until": in_time(LASTS)},
        });
        self.api().create(FLAGS, &flag).map(drop)
    }

    fn unflag(&self, node: &str) -> Result<()> {
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
        self.watchdogs.between(from_ns, to_ns)
    }
}
