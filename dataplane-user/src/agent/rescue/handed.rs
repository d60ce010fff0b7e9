//! Packets as the kernel hands them over.
use std::time::Duration;

use nodefence_common::RescueHead;

/// After how long a start that failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(2);

/// A packet as it was handed over.
pub(super) type Packet = (RescueHead, Vec<u8>);

/// The number of bytes from the IP header on.
pub(super) fn length(head: &RescueHead, frame: &[u8]) -> usize {
    frame.len().saturating_sub(head.l3_offset.into())
}
