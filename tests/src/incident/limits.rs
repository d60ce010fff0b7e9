//! How long clients wait.

use std::time::Duration;

/// A new connection is given up after this time, with all that belongs to it: SYN, request and answer.
pub const NEW_LIMIT: Duration = Duration::from_secs(5);
/// A datagram counts as lost after this time.
pub const UDP_LIMIT: Duration = Duration::from_secs(2);
