//! Flows that must not notice anything.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Running, repeat};
use crate::{Cluster, Conn, Family, Place, client::pattern, emulated, topology::Service};

/// Generous: machines are slow, but stalls here last for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// Flows to node C that go on all the time. Every byte is compared, no error is forgiven.
#[derive(Debug)]
pub struct Load {
    /// Each gives the bytes that it transferred.
    running: Running<u64>,
}

impl Load {
    /// Starts flows to node C, one from each place, each of echoes and downloads in turn.
    ///
    /// # Errors
    /// Where one cannot be opened.
    pub fn on_c(cluster: &Cluster, family: Family) -> Result<Self> {
        let mut running = Running::default();
        for place in Place::ALL {
            let to = cluster.service(Service::Web, place, family);
            let mut conn = Conn::connect_beside_flagged(cluster.at(place), to, "node-c", LIMIT)?;
            running.start(move |stop| {
                let payload = pattern(40_000);
                let exchanges = repeat(stop, || {
                    let start = Instant::now();
                    conn.echo(&payload).with_context(|| format!("echo, {place:?}"))?;
                    conn.download(60_000).with_context(|| format!("download, {place:?}"))?;
                    // Half of the time. On an emulated machine, which has one processor, a small part: the flows under test need the processor too.
                    Ok(start.elapsed() * if emulated() { 15 } else { 1 })
                })?;
                Ok(exchanges * 100_000)
            });
        }
        Ok(Self { running })
    }

    /// Ends the flows.
    ///
    /// # Errors
    /// Where a byte was wrong, a connection broke, or nothing was transferred.
    pub fn finish(self) -> Result<u64> {
        let bytes: u64 = self.running.finish()?.into_iter().sum();
        ensure!(bytes > 0, "the load transferred nothing");
        Ok(bytes)
    }
}
