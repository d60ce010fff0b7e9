//! An error as text: for the log, and for rows.

use crate::causes::causes;

/// An error with all its causes, in one line.
pub(super) fn chain(error: impl Into<anyhow::Error>) -> String {
    causes(&error.into())
}
