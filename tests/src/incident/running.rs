//! The clients while they run.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::{
    cluster::Cluster,
    manifests::{TCP_PORT, UDP_PORT},
    record::Log,
};
use crate::{Proc, bin};

/// The clients have written their log this long after they were told to end.
const LOGGED: Duration = Duration::from_secs(30);

/// The clients' process. It is killed when this is dropped.
pub(crate) struct Clients {
    process: Proc,
    log: PathBuf,
}

impl Clients {
    /// Starts the clients, which reach the servers by the NodePorts of the node `through`. Returns once all established connections exist. `log` is the file
    /// that they write at their end, and `load` the name of their load.
    pub(crate) fn start(cluster: &dyn Cluster, through: &str, log: &Path, load: &str) -> Result<Self> {
        let address = cluster.address(through)?;
        let mut command = Command::new(bin("nodefence-incident")?);
        command.args(["client", &address.to_string()]);
        command.args([TCP_PORT.to_string(), UDP_PORT.to_string()]).arg(log).arg(load);
        let process = Proc::spawn_ready(cluster.clients(), command)?;
        Ok(Self { process, log: log.to_owned() })
    }

    /// Ends the clients, and returns what they recorded.
    pub(crate) fn end(mut self) -> Result<Log> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(LOGGED)?;
        ensure!(status.success(), "the clients ended with {status}");
        Log::read(&self.log)
    }
}
