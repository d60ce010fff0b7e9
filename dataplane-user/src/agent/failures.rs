//! What requests are told that name a wrong node, or come at a wrong time.

use crate::report::{ErrorKind, Failure};

pub(super) fn hands_over() -> Failure {
    Failure::failed("this agent is handing over to another; nothing was changed, try again in a few seconds")
}

pub(super) fn not_found(node: &str) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no node `{node}` in the cluster file (see `nodefence nodes`)"),
    )
}
