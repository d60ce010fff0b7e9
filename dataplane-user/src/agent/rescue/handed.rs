//! Packets as they are handed over.
use std::time::Duration;

use nodefence_common::RescueHead;

/// How soon what failed at the beginning is tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(2);

/// A packet as it was handed over.
pub(super) type Packet = (RescueHead, Vec<u8>);

/// Bytes from the IP header on.
pub(super) fn length(head: &RescueHead, frame: &[u8]) -> usize {
    frame.len().saturating_sub(head.l3_offset.into())
}
