//! helm, on the release that [`KubeCluster::install`] made.

use anyhow::{Context as _, Result};

use super::super::{KubeCluster, install::NAMESPACE};

/// The revision that the install made.
const FIRST: &str = "1";

impl KubeCluster {
    /// Upgrades the release, with a value that changes the pods of the agents.
    pub(super) fn upgrade(&self, value: &str) -> Result<()> {
        let chart = self.plan.chart.to_str().context("the chart's path")?;
        let set = format!("agent.podAnnotations.rolled={value}");
        self.waiting.say("helm upgrades nodefence");
        self.helm(&[
            "upgrade",
            NAMESPACE,
            chart,
            "--namespace",
            NAMESPACE,
            "--reuse-values",
            "--set-string",
            &set,
        ])?;
        self.waiting.say("helm is done");
        Ok(())
    }

    /// Rolls the release back to what was installed.
    pub(super) fn roll_back(&self) -> Result<()> {
        self.waiting.say("helm rolls nodefence back");
        self.helm(&["rollback", NAMESPACE, FIRST, "--namespace", NAMESPACE])?;
        self.waiting.say("helm is done");
        Ok(())
    }

    /// Removes the release. Returns what helm prints.
    pub(super) fn uninstall(&self) -> Result<String> {
        self.waiting.say("helm uninstalls nodefence");
        let printed = self.helm(&["uninstall", NAMESPACE, "--namespace", NAMESPACE])?;
        self.waiting.say("helm is done");
        Ok(printed)
    }
}
