//! A cluster behind IPVS, and an agent that reports faults soon.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nodefence_tests::{
    Agent, Cluster,
    audit::{Audit, FAULT_AFTER},
    ipvs,
};

/// The limit of waits that have no promised time.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// More than twice [`FAULT_AFTER`].
const A_WHILE: Duration = Duration::from_secs(5);

pub(super) fn cluster() -> Result<Cluster> {
    let cluster = ipvs::cluster()?;
    let ns = &cluster.a.ns;
    // Idle flows must not lapse during a test.
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "900")?;
    ns.sysctl("netfilter/nf_conntrack_udp_timeout_stream", "900")?;
    Ok(cluster)
}

pub(super) fn agent(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let args = [&["--proxy", "ipvs", "--fault-after", FAULT_AFTER], extra].concat();
    let file = cluster.with_own_backends(&cluster.services_file());
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &args)
}

/// Checks for longer than a difference needs to become a fault that there is no fault, and that nothing differs at the end.
pub(super) fn nothing_for_a_while(agent: &Agent) -> Result<()> {
    let begun = Instant::now();
    loop {
        let audit = Audit::of(agent)?;
        ensure!(audit.in_state("fault").is_empty(), "{:#}\n{}", audit.report["differences"], agent.log());
        if begun.elapsed() > A_WHILE {
            ensure!(
                audit.report["differences"] == serde_json::json!([]),
                "{:#}",
                audit.report["differences"]
            );
            return Ok(());
        }
    }
}
