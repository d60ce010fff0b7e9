//! A cluster behind IPVS, an agent that finds faults soon, and what the tables say.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nodefence_tests::{
    Agent, Cluster,
    audit::{Audit, FAULT_AFTER},
    ipvs,
};

/// For waits that nothing is promised of.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Longer than [`FAULT_AFTER`], and than twice that.
const A_WHILE: Duration = Duration::from_secs(5);

pub(super) fn cluster() -> Result<Cluster> {
    let cluster = ipvs::cluster()?;
    let ns = &cluster.a.ns;
    // Idle flows must not lapse while they are looked at.
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "900")?;
    ns.sysctl("netfilter/nf_conntrack_udp_timeout_stream", "900")?;
    Ok(cluster)
}

pub(super) fn agent(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    let args = [&["--proxy", "ipvs", "--fault-after", FAULT_AFTER], extra].concat();
    let file = cluster.with_own_backends(&cluster.services_file());
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &args)
}

/// Looks for longer than a fault takes; there may be none, and at the end no difference either.
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
