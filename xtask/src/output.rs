//! The formats in which verbs print results.

use clap::ValueEnum;

/// Output format of a result.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    /// Columns for people.
    Table,
    /// JSON for programs.
    Json,
}
