//! nodefence, installed by its own chart from its own image.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{KubeCluster, is_ready, wire};

/// The namespace of the install, and the name of the release.
pub(super) const NAMESPACE: &str = "nodefence";

/// How long helm waits for the Jobs of its hooks, and for the pods.
const INSTALLED: Duration = Duration::from_secs(600);

impl KubeCluster {
    /// Installs the chart as docs/install.md has it, and waits until all agents and controllers are ready.
    ///
    /// # Errors
    /// Fails if helm fails, or if a pod is not ready in time.
    pub fn install(&self) -> Result<()> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
        });
        self.api().apply(&format!("/api/v1/namespaces/{NAMESPACE}"), &namespace)?;
        let chart = self.plan.chart.to_str().context("the chart's path")?.to_owned();
        let image = [
            format!("image.repository={}", self.plan.image.repository),
            format!("image.tag={}", self.plan.image.tag),
            "image.pullPolicy=Never".to_owned(),
        ];
        let timeout = format!("{}s", INSTALLED.as_secs());
        let mut args = vec!["install", NAMESPACE, &chart, "--namespace", NAMESPACE, "--timeout", &timeout];
        args.extend(image.iter().flat_map(|value| ["--set", value]));
        self.waiting.say("helm installs nodefence");
        self.helm(&args)?;
        self.waiting.say("helm is done");
        self.waiting.until("all pods of nodefence are ready", INSTALLED, || {
            let pods = self.api().get(&format!("/api/v1/namespaces/{NAMESPACE}/pods"));
            Ok(pods.and_then(|pods| pods_ready(&pods)))
        })?;
        // An installed nodefence only observes.
        self.plugin(&["mode", "enforce"])?;
        self.waiting.until("all agents enforce", INSTALLED, || {
            let nodes = self.plugin(&["nodes", "--output", "json"]);
            Ok(nodes.and_then(|nodes| enforce(&serde_json::from_str(&nodes)?)))
        })
    }
}

/// Checks that the agent of each node enforces, in what `kubectl nodefence nodes` prints.
fn enforce(nodes: &Value) -> Result<()> {
    let items = nodes["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let others: Vec<String> = items
        .iter()
        .filter(|node| node["agent"]["mode"] != "enforce")
        .map(|node| node["name"].to_string())
        .collect();
    ensure!(
        others.is_empty() && items.len() == wire::NODES.count(),
        "of {} these do not: {}",
        items.len(),
        others.join(", ")
    );
    Ok(())
}

/// Checks that an agent is ready on each node, and that both controllers are.
fn pods_ready(pods: &Value) -> Result<()> {
    let items = pods["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |component: &str| {
        let label = "app.kubernetes.io/component";
        let is_of = |pod: &&Value| pod["metadata"]["labels"][label] == component && is_ready(pod);
        items.iter().filter(is_of).count()
    };
    let (agents, controllers) = (of("agent"), of("controller"));
    let nodes = wire::NODES.count();
    ensure!(
        agents == nodes && controllers == 2,
        "ready: {agents} of {nodes} agents, {controllers} of 2 controllers"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(component: &str, status: &str) -> Value {
        json!({
            "metadata": {"labels": {"app.kubernetes.io/component": component}},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        })
    }

    #[test]
    fn all_agents_and_both_controllers_must_be_ready() {
        let mut pods = vec![pod("agent", "True"), pod("agent", "True"), pod("crds", "False")];
        pods.extend([pod("controller", "True"), pod("controller", "True")]);
        let error = pods_ready(&json!({"items": pods})).expect_err("an agent is missing").to_string();
        assert!(error.contains("2 of 3 agents, 2 of 2 controllers"), "{error}");
        pods.push(pod("agent", "False"));
        assert!(pods_ready(&json!({"items": pods})).is_err());
        pods.push(pod("agent", "True"));
        assert!(pods_ready(&json!({"items": pods})).is_ok());
    }

    #[test]
    fn an_agent_that_observes_is_named() {
        let node = |name: &str, mode: &str| json!({"name": name, "agent": {"mode": mode}});
        let mut nodes = vec![node("node-1", "enforce"), node("node-2", "observe")];
        let error = enforce(&json!({"items": nodes})).expect_err("one observes").to_string();
        assert!(error.contains("node-2") && !error.contains("node-1"), "{error}");
        nodes[1] = node("node-2", "enforce");
        assert!(enforce(&json!({"items": nodes})).is_err(), "one is missing");
        nodes.push(node("node-3", "enforce"));
        assert!(enforce(&json!({"items": nodes})).is_ok());
    }
}
