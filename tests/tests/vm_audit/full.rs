//! A conntrack table that is nearly full. The maximum is the machine's, so this runs where the machine is the test's own.

use std::{fs, net::UdpSocket};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::audit::{outcomes, repair, wait_faults};

use super::common::{LIMIT, agent, cluster};

const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Put back when dropped.
struct Maximum(String);

impl Maximum {
    fn set(to: u64) -> Result<Self> {
        let before = fs::read_to_string(MAX).context(MAX)?;
        fs::write(MAX, to.to_string())
            .with_context(|| format!("{MAX}; this test needs a machine of its own"))?;
        Ok(Self(before))
    }
}

impl Drop for Maximum {
    fn drop(&mut self) {
        let _written = fs::write(MAX, &self.0);
    }
}

#[test]
fn a_table_that_is_nearly_full_is_found() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    cluster.client.run(|| -> Result<()> {
        let socket = UdpSocket::bind("192.0.2.2:0")?;
        for port in 20_000..22_000 {
            socket.send_to(b"x", ("10.2.0.13", port))?;
        }
        Ok(())
    })?;
    let count = cluster.a.ns.exec("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
    let count: u64 = count.trim().parse().context("a count")?;
    ensure!(count >= 1_900, "only {count} entries");
    wait_faults(&agent, &[], LIMIT)?;
    let fault = "conntrack-full net.netfilter.nf_conntrack_max";
    {
        let _maximum = Maximum::set(count * 100 / 95)?;
        let audit = wait_faults(&agent, &[fault], LIMIT)?;
        let row = audit.row(fault).context("no row")?;
        ensure!(
            row["detail"].as_str().is_some_and(
                |detail| detail.ends_with("entries (95 %)") || detail.ends_with("entries (94 %)")
            ),
            "{row}"
        );
        ensure!(repair(&agent, &["--kind", "conntrack-full"])? == outcomes([("conntrack-full left", 1)]));
    }
    wait_faults(&agent, &[], LIMIT).map(drop)
}
