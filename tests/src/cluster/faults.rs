//! What can happen to a node of the cluster.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{HEALTH, KubeCluster, READY, SHORT, all_ready, has_synced, machine::Machine, node, wire};
use crate::Proc;

/// How long a node that goes on catches up after its kubelet answers. As an operator would, the test unflags no node that is busy with itself: its servers
/// would be slow with nodefence and without it.
const CATCHES_UP: Duration = Duration::from_secs(8);

/// The freezer of all pods of a node (Documentation/admin-guide/cgroup-v2.rst, `cgroup.freeze`). The folder is the kubelet's, whose driver is `cgroupfs`.
const FREEZER: &str = "/sys/fs/cgroup/kubepods";

/// The program of nodefence on a node. The node has it in the image alone, so that it is taken from one of the processes that run it.
const PROGRAM: &str = r#"set -- $(pidof nodefence); "/proc/$1/exe""#;

impl KubeCluster {
    /// Freezes all processes of a node. Its kernel goes on to answer for them. Returns once all have stopped.
    ///
    /// # Errors
    /// Fails if there is no such node, or if a process goes on.
    pub fn freeze(&self, node: &str) -> Result<()> {
        self.machine(node)?.freeze(true)
    }

    /// Lets the processes of a frozen node go on, and waits until the kubelet answers and the node has caught up.
    ///
    /// # Errors
    /// Fails if there is no such node, or if the kubelet does not answer.
    pub fn thaw(&self, node: &str) -> Result<()> {
        let machine = self.machine(node)?;
        machine.freeze(false)?;
        self.waiting.until(&format!("the kubelet of {node} answers again"), SHORT, || {
            let answer = machine.run(HEALTH, SHORT);
            Ok(answer.and_then(|text| {
                ensure!(text.ends_with("ok"), "the kubelet said {text:?}");
                Ok(())
            }))
        })?;
        std::thread::sleep(CATCHES_UP);
        Ok(())
    }

    /// Freezes all pods of a node, its agent among them. The kubelet, containerd and kube-proxy go on. Returns once all have stopped.
    ///
    /// # Errors
    /// Fails if there is no such node, or if a pod goes on.
    pub fn freeze_pods(&self, node: &str) -> Result<()> {
        self.pods(node, 1)
    }

    /// Lets the frozen pods of a node go on.
    ///
    /// # Errors
    /// Fails if there is no such node, or if the pods stay frozen.
    pub fn thaw_pods(&self, node: &str) -> Result<()> {
        self.pods(node, 0)
    }

    fn pods(&self, node: &str, frozen: u8) -> Result<()> {
        let line = format!(
            "cd {FREEZER} && echo {frozen} > cgroup.freeze || exit 1
            for look in $(seq 500); do grep -q '^frozen {frozen}$' cgroup.events && exit 0; sleep 0.02; done
            cat cgroup.events; exit 1"
        );
        self.on(node, &line).map(drop)
    }

    /// Ends a node as a power cut does.
    ///
    /// # Errors
    /// Fails if there is no such node, or if it is off already.
    pub fn power_off(&self, node: &str) -> Result<()> {
        let number = self.machine(node)?.node;
        self.watchdogs.borrow_mut().forget(number);
        self.machines.borrow_mut().retain(|machine| machine.node != number);
        Ok(())
    }

    /// Starts a node that is off anew, under its name, and waits until it is ready. Does nothing to a node that runs.
    ///
    /// # Errors
    /// Fails if there is no such node, or if it is not ready in time.
    pub fn start_node(&self, name: &str) -> Result<()> {
        if self.machine(name).is_ok() {
            return Ok(());
        }
        let number = wire::number(name).with_context(|| format!("no node {name}"))?;
        let mut machine = Machine::start(&self.ns, &self.plan, number)?;
        machine.until_up(&self.waiting)?;
        node::start(&machine, &self.control.plane().url(), &self.control.authority()?, &self.plan.proxy)?;
        self.watchdogs.borrow_mut().watch(&self.ns, &machine)?;
        self.machines.borrow_mut().push(machine);
        self.until_synced(number)?;
        self.waiting.until(&format!("{name} is ready again"), READY, || Ok(all_ready(self.api())))
    }

    /// Waits until kube-proxy of a node has synced.
    pub(super) fn until_synced(&self, node: u8) -> Result<()> {
        let name = wire::name(node);
        self.waiting.until(&format!("kube-proxy of {name} has synced"), READY, || {
            Ok(self.on(&name, super::METRICS).and_then(|metrics| has_synced(&metrics)))
        })
    }

    /// The process of the API server.
    pub(super) fn api_server(&self) -> Result<&Proc> {
        self.control.plane().server()
    }

    /// Runs `nodefence` with these arguments on each node but one, against that node's agent.
    pub(super) fn on_others(&self, node: &str, arguments: &str) -> Result<()> {
        for other in wire::NODES.map(wire::name).filter(|other| other != node) {
            self.on(&other, &format!("{PROGRAM} {arguments}"))?;
        }
        Ok(())
    }
}
