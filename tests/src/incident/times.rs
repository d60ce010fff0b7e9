//! When what happens in a run.

use std::time::Duration;

/// The times of a run, counted from the freeze.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long the clients run before the freeze.
    pub calm: Duration,
    /// From the freeze to the flag.
    pub flag: Duration,
    /// How long the node stays frozen in a run without a flag.
    pub stock: Duration,
    /// How long the node stays frozen in a run with a flag.
    pub flagged: Duration,
    /// How long the clients go on once the node is back.
    pub after: Duration,
}

impl Times {
    /// The times on real kubelets. Without a flag, kube-proxy stops using the frozen node after about 60 s.
    pub const FULL: Self = Self {
        calm: Duration::from_secs(10),
        flag: Duration::from_secs(1),
        stock: Duration::from_secs(75),
        flagged: Duration::from_secs(30),
        after: Duration::from_secs(15),
    };
}
