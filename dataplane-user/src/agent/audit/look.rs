//! Reads parts of the tables, one after the other, and notes what differs.
use super::{
    super::watched::{AuditMemory, now},
    read::{AuditContext, read},
};
use crate::plan::audit::Part;

/// Reads parts, and takes note of what differs. Blocking.
pub(super) fn look(memory: &mut AuditMemory, context: &AuditContext, parts: impl IntoIterator<Item = Part>) {
    for part in parts {
        let begun = now();
        let reading = read(context, part);
        memory.take(part, reading, begun, now());
    }
    memory.tell();
}
