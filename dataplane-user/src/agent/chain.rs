//! An error as text: for the log, and for rows.

/// An error with all its causes, in one line.
pub(super) fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
