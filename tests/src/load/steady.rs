//! Flows that must go on undisturbed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Running, repeat};
use crate::{Cluster, Conn, Family, Place, client::pattern, emulated, topology::Service};

/// The time limit of each connect, read and write. It is generous, since machines are slow, and a stall here lasts for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// Flows to node C that transfer data all the time. Every byte is compared, and any error fails the test.
#[derive(Debug)]
pub struct Load {
    /// Each thread returns the number of bytes that it transferred.
    running: Running<u64>,
}

impl Load {
    /// Starts a flow from each place to node C. A flow makes echoes and downloads in turn.
    ///
    /// # Errors
    /// Fails if a flow cannot be opened.
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
                    // A flow transfers data for half of the time. On an emulated machine it does for a small part, since there the flows under test need the
                    // only processor too.
                    Ok(start.elapsed() * if emulated() { 15 } else { 1 })
                })?;
                Ok(exchanges * 100_000)
            });
        }
        Ok(Self { running })
    }

    /// Ends the flows. Returns the number of bytes that they transferred.
    ///
    /// # Errors
    /// Fails if a byte was wrong, a connection broke, or nothing was transferred.
    pub fn finish(self) -> Result<u64> {
        let bytes: u64 = self.running.finish()?.into_iter().sum();
        ensure!(bytes > 0, "the load transferred nothing");
        Ok(bytes)
    }
}
