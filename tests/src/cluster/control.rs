//! The control plane: etcd and the API server as in other tests, and the two controllers that make a cluster of them.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};

use super::{
    node::{KUBE_PROXY, token},
    wire,
};
use crate::{
    Netns, Proc,
    kube::{
        Api, ControlPlane,
        assets::asset,
        control::{PLUGINS, TOKEN, spawn, tail},
    },
};

const MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

/// The control plane. The controllers come first, so that they end before the server.
#[derive(Debug)]
pub(super) struct Control {
    controllers: Vec<(&'static str, Proc)>,
    plane: ControlPlane,
    out: PathBuf,
}

impl Control {
    /// Starts it, and waits until the API server is ready.
    pub(super) fn start(ns: &Arc<Netns>, out: &Path, folder: &Path) -> Result<Self> {
        let tokens = folder.join("tokens");
        std::fs::write(&tokens, users())?;
        let options = [
            format!("--token-auth-file={}", tokens.display()),
            // Pods reach the server through its Service, at this address.
            format!("--advertise-address={}", wire::HOST),
            "--endpoint-reconciler-type=lease".to_owned(),
            // The namespace has no name server that knows the nodes.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--authorization-mode=Node".to_owned(),
            format!("{PLUGINS}NodeRestriction,ServiceAccount"),
            // As a cluster has it: requests wait for their turn.
            "--enable-priority-and-fairness=true".to_owned(),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let plane = ControlPlane::start_with(ns, wire::HOST, &options)?;
        let pki = plane.pki();
        let mut this = Self { controllers: Vec::new(), plane, out: out.to_owned() };
        this.begin(MANAGER, |command| {
            command.arg("--use-service-account-credentials=true");
            command.arg("--service-account-private-key-file").arg(pki.join("apiserver.key"));
            command.arg("--root-ca-file").arg(pki.join("apiserver.crt"));
            command.arg("--cert-dir").arg(&pki);
        })?;
        this.begin(SCHEDULER, |_| ())?;
        Ok(this)
    }

    fn begin(&mut self, name: &'static str, options: impl FnOnce(&mut Command)) -> Result<()> {
        let user = format!("system:{name}");
        let kubeconfig = self.plane.kubeconfig_with(name, &token(&user))?;
        let mut command = Command::new(asset(name)?);
        for option in ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"] {
            command.arg(option).arg(&kubeconfig);
        }
        command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        options(&mut command);
        let proc = spawn(&self.plane.ns, command, &self.log(name))?;
        self.controllers.push((name, proc));
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.out.join(format!("{name}.log"))
    }

    /// Checks that the controllers still run.
    pub(super) fn check(&mut self) -> Result<()> {
        let out = self.out.clone();
        for (name, proc) in &mut self.controllers {
            if let Some(status) = proc.ended()? {
                bail!("{name} ended with {status}; its log:\n{}", tail(&out.join(format!("{name}.log"))));
            }
        }
        Ok(())
    }

    /// A client with all rights.
    pub(super) const fn api(&self) -> &Api {
        &self.plane.api
    }

    /// The API server.
    pub(super) const fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The certificate by which clients check the server.
    pub(super) fn authority(&self) -> Result<String> {
        let file = self.plane.pki().join("apiserver.crt");
        std::fs::read_to_string(&file).with_context(|| file.display().to_string())
    }
}

/// The users of the API server, in the format of its file of tokens.
fn users() -> String {
    let mut text = format!("{TOKEN},admin,1,\"system:masters\"\n");
    for user in ["system:kube-controller-manager", "system:kube-scheduler", KUBE_PROXY] {
        text += &format!("{},{user},{user}\n", token(user));
    }
    for node in wire::NODES.map(wire::name) {
        text += &format!("{},system:node:{node},{node},\"system:nodes\"\n", token(&node));
    }
    text
}
