//! Times that nodefence promises, where more than one file holds it to them.

use std::time::Duration;

/// A verdict holds at most this long after the agent last renewed it.
pub const LAPSED: Duration = Duration::from_secs(3);
/// From one renewal of a verdict to the next: a second, and the time of the pass that finds it due.
pub const RENEWED: Duration = Duration::from_millis(1_200);
/// A small cluster file that is renamed over the old one is in force by then. The rename is seen at once (docs/cluster-file.md); the file is read once its folder is
/// quiet, or after half a second.
pub const FOLLOWED: Duration = Duration::from_secs(1);
/// Idle clients of a flagged node are reset by then.
pub const FREED: Duration = Duration::from_secs(1);
/// Where others give a flagged node's destination a weight again, the agent has removed it by then. This holds where the tables are read in 100 ms.
pub const UNDONE: Duration = Duration::from_millis(500);
/// A service that had no other destination is drained once it has had one for this long.
pub const SETTLED: Duration = Duration::from_secs(1);
/// An unflagged node has its destinations in IPVS and its share of new connections again by then. Destinations that a dead agent drained are restored by then.
pub const RESTORED: Duration = Duration::from_secs(5);
/// An agent that is told to end waits for nothing: by then it has restored what it drained from IPVS, and has ended.
pub const ENDED: Duration = Duration::from_secs(1);
