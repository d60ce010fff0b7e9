//! A cluster of real kubelets: the control plane runs natively, and each node is a guest in QEMU with a kernel of its own, the kubelet, containerd and
//! kube-proxy. All is in one network namespace that no packet leaves.
//!
//! `cargo xtask cluster-test` builds the parts and starts `nodefence-cluster`, which runs this.

mod control;
mod faults;
pub mod guest;
mod incident;
mod install;
mod life;
mod machine;
mod message;
mod node;
pub mod plan;
mod tools;
pub mod waiting;
mod watchdogs;
pub mod wire;

use std::{
    cell::{Ref, RefCell},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{Netns, kube::Api};
use control::Control;
use machine::Machine;
use plan::Plan;
use waiting::Waiting;
use watchdogs::Watchdogs;

/// From the start of the kubelets until all nodes are ready. Three emulated guests on two processors take minutes beside other work.
const READY: Duration = Duration::from_secs(600);

/// How long a program on a node may take to answer a short question.
const SHORT: Duration = Duration::from_secs(60);

/// Asks kube-proxy for its metrics. A guest has no program for HTTP.
const METRICS: &str =
    r#"bash -c 'exec 3<>/dev/tcp/127.0.0.1/10249; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3'"#;

/// Asks the kubelet whether it is well.
const HEALTH: &str =
    r#"bash -c 'exec 3<>/dev/tcp/127.0.0.1/10248; printf "GET /healthz HTTP/1.0\r\n\r\n" >&3; cat <&3'"#;

/// A running cluster. All of it ends when this is dropped.
#[derive(Debug)]
pub struct KubeCluster {
    /// The guests come first: kubelets whose server is gone would only log. A node that is off is missing.
    machines: RefCell<Vec<Machine>>,
    control: Control,
    /// The namespace of the control plane, and of clients outside the cluster.
    pub ns: Arc<Netns>,
    watchdogs: RefCell<Watchdogs>,
    waiting: Waiting,
    plan: Plan,
    folder: tempfile::TempDir,
}

impl KubeCluster {
    /// Starts the cluster, and waits until all nodes are ready and kube-proxy has synced on each.
    ///
    /// # Errors
    /// Fails if a program is missing or ends, or if a part is not ready in time. The logs are in the plan's folder `out`.
    pub fn start(plan: Plan, waiting: Waiting) -> Result<Self> {
        std::fs::create_dir_all(&plan.out).with_context(|| plan.out.display().to_string())?;
        let folder = tempfile::TempDir::with_prefix("nodefence-cluster-")?;
        let ns = wire::namespace()?;
        let machines =
            wire::NODES.map(|node| Machine::start(&ns, &plan, node)).collect::<Result<Vec<_>>>()?;
        waiting.say("three guests boot");
        let control = Control::start(&ns, &plan.out, folder.path())?;
        waiting.say("the control plane is ready");
        let (machines, watchdogs) = (RefCell::new(machines), RefCell::default());
        let mut this = Self { machines, control, ns, watchdogs, waiting, plan, folder };
        let started = this.nodes();
        if started.is_err() {
            this.save_logs();
        }
        started?;
        Ok(this)
    }

    fn nodes(&mut self) -> Result<()> {
        let server = self.control.plane().url();
        let authority = self.control.authority()?;
        // A guest alone leaves one of two processors idle.
        std::thread::scope(|scope| {
            let (proxy, waiting) = (&*self.plan.proxy, &self.waiting);
            let (server, authority) = (&*server, &*authority);
            let start = |machine: &mut Machine| {
                machine.until_up(waiting)?;
                node::start(machine, server, authority, proxy)?;
                waiting.say(&format!("{} starts its kubelet", wire::name(machine.node)));
                Ok(())
            };
            let all: Vec<_> = self
                .machines
                .get_mut()
                .iter_mut()
                .map(|machine| scope.spawn(move || start(machine)))
                .collect();
            all.into_iter()
                .try_for_each(|one| one.join().unwrap_or_else(|_| bail!("a node's thread panicked")))
        })?;
        for machine in self.machines.get_mut() {
            self.watchdogs.get_mut().watch(&self.ns, machine)?;
        }
        let Self { control, waiting, .. } = self;
        waiting.until("all nodes are ready", READY, || {
            control.check()?;
            Ok(all_ready(control.api()))
        })?;
        wire::NODES.into_iter().try_for_each(|node| self.until_synced(node))
    }

    /// A client of the API server with all rights.
    pub const fn api(&self) -> &Api {
        self.control.api()
    }

    /// Tells how far it is, and waits.
    pub const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The plan.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs a line of `sh` on a node.
    ///
    /// # Errors
    /// Fails if there is no such node, or if the line fails.
    pub fn on(&self, node: &str, line: &str) -> Result<String> {
        self.machine(node)?.run(line, SHORT)
    }

    /// Copies the logs of the nodes' programs into the plan's folder `out`. Those of the control plane are written there.
    pub fn save_logs(&self) {
        self.machines.borrow().iter().for_each(|machine| machine.save_logs(&self.plan.out));
    }

    fn machine(&self, node: &str) -> Result<Ref<'_, Machine>> {
        let number = wire::number(node).with_context(|| format!("no node {node}"))?;
        let find = |machines: &Vec<Machine>| machines.iter().position(|machine| machine.node == number);
        let machines = self.machines.borrow();
        let at = find(&machines).with_context(|| format!("{node} is off"))?;
        Ok(Ref::map(machines, |machines| &machines[at]))
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Checks that every node is there and ready. The error names those that are not.
fn all_ready(api: &Api) -> Result<()> {
    let nodes = api.get("/api/v1/nodes")?;
    let items = nodes["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let missing: Vec<String> = wire::NODES
        .map(wire::name)
        .filter(|name| !items.iter().any(|node| node["metadata"]["name"] == name.as_str() && is_ready(node)))
        .collect();
    ensure!(missing.is_empty(), "not ready: {}", missing.join(", "));
    Ok(())
}

/// Whether the object's condition `Ready` is true.
fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// Checks in kube-proxy's metrics that it has written its rules at least once.
fn has_synced(metrics: &str) -> Result<()> {
    let times =
        metrics.lines().filter(|line| line.starts_with("kubeproxy_sync_proxy_rules_last_timestamp_seconds"));
    let has_one =
        times.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).any(|time| time > 0.0);
    ensure!(has_one, "it serves, and has not synced");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_ready_by_its_condition_alone() {
        let with = |status: &str| {
            json!({"status": {"conditions": [
                {"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": status},
            ]}})
        };
        assert!(is_ready(&with("True")) && !is_ready(&with("Unknown")) && !is_ready(&json!({})));
    }

    #[test]
    fn kube_proxy_has_synced_once_it_names_a_time() {
        let name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
        assert!(has_synced(&format!("# HELP {name}\n{name}{{ip_family=\"IPv4\"}} 1.7e+09\n")).is_ok());
        for metrics in ["", &format!("{name}{{ip_family=\"IPv4\"}} 0\n"), "other 5\n"] {
            assert!(has_synced(metrics).is_err(), "{metrics}");
        }
    }

    #[test]
    fn a_node_has_one_number_and_a_range_of_its_own() {
        for node in wire::NODES {
            assert_eq!(wire::number(&wire::name(node)), Some(node));
        }
        assert_eq!(wire::number("node-9"), None);
        let ranges: std::collections::BTreeSet<String> = wire::NODES.map(wire::pods).collect();
        assert_eq!(ranges.len(), wire::NODES.count());
    }
}
