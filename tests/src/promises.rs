//! Promised times of nodefence that more than one file checks.

use std::time::Duration;

/// A verdict holds at most this long after the agent last renewed it.
pub const LAPSED: Duration = Duration::from_secs(3);
/// From one renewal of a verdict to the next: a second, and the time of the pass that finds the renewal due.
pub const RENEWED: Duration = Duration::from_millis(1_200);
/// A small cluster file that is renamed over the old one is in force after at most this time. The agent sees the rename at once (docs/cluster-file.md). It
/// reads the file once the file's folder is quiet, or after half a second.
pub const FOLLOWED: Duration = Duration::from_secs(1);
/// A change of an object in the API server is in force after at most this time. The server tells the agent of the change at once, and the agent makes at most
/// ten views a second.
pub const WATCHED: Duration = Duration::from_secs(1);
/// Idle clients of a flagged node are reset after at most this time.
pub const FREED: Duration = Duration::from_secs(1);
/// A destination of a flagged node that another program gives a weight again is drained again after at most this time. This holds if the tables are read in 100
/// ms.
pub const UNDONE: Duration = Duration::from_millis(500);
/// A destination that was its service's last one is drained once the service has had another one for this time.
pub const SETTLED: Duration = Duration::from_secs(1);
/// An unflagged node has its destinations in IPVS and its share of new connections again after at most this time. Destinations that a dead agent drained are
/// restored in this time too.
pub const RESTORED: Duration = Duration::from_secs(5);
/// An agent that is told to end has restored what it drained in IPVS, and has ended, after at most this time. It waits for nothing.
pub const ENDED: Duration = Duration::from_secs(1);
