//! An agent that takes nodes, Services and EndpointSlices from an API server, and has no cluster file.

use std::{path::Path, process::Stdio, sync::Arc};

use anyhow::Result;

use super::Agent;
use crate::{Netns, bin};

impl Agent {
    /// Starts an agent that follows the API server of this kubeconfig. Does not wait for the agent: see [`Agent::ready`]. The agent is ready once the server
    /// has the kind NodeMember, and a member for `node`.
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
        Self::begin_kubernetes_of(&bin("nodefence")?, ns, node, interfaces, kubeconfig, extra)
    }

    /// Same as [`Agent::begin_kubernetes`], with the binary of another build.
    ///
    /// # Errors
    /// Fails as [`Agent::begin_kubernetes`] does.
    pub fn begin_kubernetes_of(
        program: &Path,
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        kubeconfig: &Path,
        extra: &[&str],
    ) -> Result<Self> {
        let mut this = Self::new(program, ns, node, interfaces, extra)?;
        this.kubeconfig = Some(kubeconfig.to_owned());
        this.begin_again()?;
        Ok(this)
    }

    /// Starts the agent again, once the one before has ended. Does not wait for it: see [`Agent::ready`].
    ///
    /// # Errors
    /// Fails if the agent cannot be started.
    pub fn begin_again(&mut self) -> Result<()> {
        self.proc = Some(self.spawn(&[], Stdio::null())?);
        Ok(())
    }
}
