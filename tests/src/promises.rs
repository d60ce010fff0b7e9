//! Times that nodefence promises, where more than one file holds it to them.

use std::time::Duration;

/// So long a verdict holds at most after the agent last renewed it.
pub const LAPSED: Duration = Duration::from_secs(3);
/// From one renewal of a verdict to the next: a second, and the pass that finds it due.
pub const RENEWED: Duration = Duration::from_millis(1_200);
/// A small cluster file that is renamed over the old one holds by then: it is seen at once (docs/cli.md), and read once its folder is quiet, for which half a
/// second is waited at most.
pub const FOLLOWED: Duration = Duration::from_secs(1);
/// After a flag idle clients were told by then.
pub const FREED: Duration = Duration::from_secs(1);
/// A weight that others gave to a flagged node's destination again is gone by then, where the tables are read in 100 ms.
pub const UNDONE: Duration = Duration::from_millis(500);
/// A service that had nobody else is drained once it has had another destination for so long.
pub const SETTLED: Duration = Duration::from_secs(1);
/// By when a node whose flag is taken back has its destinations in IPVS and its share of new connections again, and what a dead agent drained is back.
pub const RESTORED: Duration = Duration::from_secs(5);
/// An agent that is told to end waits for nothing: what it drained from IPVS is back by then, and it is gone.
pub const ENDED: Duration = Duration::from_secs(1);
