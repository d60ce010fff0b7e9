//! `status --ready` where no agent answers.

use std::path::Path;

use crate::{agent::stands_by, report::ClientError};

/// The error, with what is known of the pod that was asked for.
pub(super) fn no_answer(error: ClientError, run_dir: &Path, pod: Option<&str>) -> anyhow::Error {
    let why = match (&error, pod) {
        (ClientError::Unreachable { .. }, Some(pod)) => stands_by(run_dir, pod),
        _ => None,
    };
    let error = anyhow::Error::new(error);
    match why {
        Some(why) => error.context(why),
        None => error,
    }
}
