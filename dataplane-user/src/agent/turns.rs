//! How many rounds of asking idle clients go on at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Rounds at once for requests, and as many for all others: each lists the whole of conntrack a few times, on the node that
/// carries the others' load meanwhile. An operator's flag does not queue behind a file that flags hundreds.
const AT_ONCE: usize = 2;

/// Who may ask now.
pub(super) struct Turns {
    pub(super) requests: Arc<Semaphore>,
    pub(super) others: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { requests: Arc::new(Semaphore::new(AT_ONCE)), others: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}
