//! Reads parts, one after the other, and has what differs noted.
use super::{
    super::{
        core::Core,
        watched::{Watch, now},
    },
    read::read,
};
use crate::plan::audit::Part;

/// Reads parts, and takes note of what differs. Blocking.
pub(super) fn look(watch: &mut Watch, core: &Core, parts: impl IntoIterator<Item = Part>) {
    for part in parts {
        let begun = now();
        let reading = read(core, part, &mut watch.drops, watch.tracker.fault_after());
        watch.take(part, reading, begun, now());
    }
    watch.tell();
}
