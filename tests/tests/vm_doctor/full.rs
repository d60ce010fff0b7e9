//! A conntrack table that is nearly full. Its maximum holds for the whole machine, so this test needs a machine of its own.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{ipvs::cluster, load};

use super::doctor::lines;

const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// The maximum of the table, which is restored when this value is dropped.
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
    let agent = cluster.agent()?;
    let ports: Vec<SocketAddr> =
        (20_000..22_000).map(|port| (Ipv4Addr::new(10, 2, 0, 13), port).into()).collect();
    load::each::datagrams(&cluster.client, Ipv4Addr::new(192, 0, 2, 2).into(), 1, &ports)?;
    let count = cluster.a.ns.exec("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
    let count: u64 = count.trim().parse().context("a count")?;
    ensure!(count >= 1_900, "only {count} entries");
    let said = || -> Result<[String; 3]> {
        lines(&agent)?.into_iter().find(|[_, name, _]| name == "conntrack table").context("no line")
    };
    ensure!(said()?[0] == "ok", "{:?}", said()?);
    {
        // Some entries may end meanwhile, so 94 % is right too.
        let _maximum = Maximum::set(count * 100 / 95)?;
        let [level, _, found] = said()?;
        let full =
            found.starts_with("nearly full, ") && (found.ends_with("(95 %)") || found.ends_with("(94 %)"));
        ensure!(level == "warn" && full, "{level}: {found}");
    }
    ensure!(said()?[0] == "ok", "{:?}", said()?);
    Ok(())
}
