//! Node B's destinations in IPVS, beside a kube-proxy that writes the same tables.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Beside;
use crate::{audit::BOTH, client::wait_until, ipvs::saved};

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(120);

/// The destinations of node B that get new connections, as lines of `ipvsadm`.
///
/// # Errors
/// Fails if `ipvsadm` fails.
pub fn weighted(beside: &Beside) -> Result<Vec<String>> {
    let b = &beside.cluster.b;
    let own = BOTH.into_iter().flat_map(|family| [b.address(family), b.pod_address(family)]);
    let of_b: Vec<String> = own
        .map(|address| if address.is_ipv4() { format!("-r {address}:") } else { format!("-r [{address}]:") })
        .collect();
    let lines = saved(&beside.cluster.a.ns)?.into_iter();
    Ok(lines.filter(|line| of_b.iter().any(|of| line.contains(of)) && !line.ends_with("-w 0")).collect())
}

/// Waits until all of node B's destinations are drained.
///
/// # Errors
/// Fails if they are not in time. The error includes the table and the agent's log.
pub fn wait_drained(beside: &Beside) -> Result<()> {
    let out = || -> Result<bool> {
        let row = beside.status()?["ipvs"]["nodes"]["node-b"].clone();
        Ok(weighted(beside)?.is_empty() && row["waiting"] == 0 && row["drained"].as_u64() > Some(0))
    };
    wait_until("node B is drained", LIMIT, || out().unwrap_or(false)).map(drop).with_context(|| {
        format!("{:?}\n{:?}\n{}", beside.status(), saved(&beside.cluster.a.ns), beside.agent.log())
    })
}
