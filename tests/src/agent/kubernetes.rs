//! An agent that takes nodes, Services and EndpointSlices from an API server, and has no cluster file.

use std::{path::Path, process::Stdio, sync::Arc};

use anyhow::Result;

use super::Agent;
use crate::{Netns, bin};

impl Agent {
    /// Starts an agent that follows the API server of this kubeconfig, and waits until the agent serves its socket. The server must have the kind NodeMember,
    /// and a member for `node`.
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
    pub fn start_kubernetes(
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        kubeconfig: &Path,
        extra: &[&str],
    ) -> Result<Self> {
        let mut this = Self::begin_kubernetes(ns, node, interfaces, kubeconfig, extra)?;
        this.ready()?;
        Ok(this)
    }

    /// Same as [`Agent::start_kubernetes`], but does not wait for the agent: see [`Agent::ready`].
    ///
    /// # Errors
    /// Fails if the binary is missing, or if it cannot be started.
    pub fn begin_kubernetes(
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        kubeconfig: &Path,
        extra: &[&str],
    ) -> Result<Self> {
        let mut this = Self::new(&bin("nodefence")?, ns, node, interfaces, extra)?;
        this.kubeconfig = Some(kubeconfig.to_owned());
        this.proc = Some(this.spawn(&[], Stdio::null())?);
        Ok(this)
    }
}
