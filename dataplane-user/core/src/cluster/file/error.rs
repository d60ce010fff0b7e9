use std::{io, path::PathBuf};

/// Longest cluster file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Why a cluster file was not taken. The last good view stays.
#[derive(Debug, thiserror::Error)]
#[error("cluster file {}: {problem}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a cluster file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    /// A folder, a pipe or a device: what it is.
    #[error("is {0}; expected a regular file")]
    NotAFile(&'static str),
    /// More than [`MAX_FILE_BYTES`].
    #[error("is {0} bytes long; the limit is {MAX_FILE_BYTES}")]
    TooLarge(u64),
    /// Nothing but white space.
    #[error("is empty; write `nodes: []` (with --allow-empty) for a cluster without nodes")]
    Empty,
    /// Its end is missing.
    #[error(
        "does not end with a line feed: was it cut short while it was written? Write aside, then rename over it"
    )]
    Truncated,
    /// It changed while it was read, time and again.
    #[error("changed each time it was read; write aside, then rename over it")]
    Unsettled,
    /// Not text.
    #[error("is not UTF-8 (first bad byte at offset {0})")]
    NotUtf8(usize),
    /// `nodes` is missing, or has no value.
    #[error(
        "has no list `nodes`; expected at its top `nodes:` with a list of nodes, each with name and address"
    )]
    NoList,
    /// `services` has no value.
    #[error(
        "`services` has no value; expected a list, `[]` for a cluster without Services, or no `services` at all"
    )]
    NoServices,
    /// `nodes` is empty and that was not allowed.
    #[error("`nodes` is empty; if that is meant, start the agent with --allow-empty")]
    NoNodes,
    /// Neither valid YAML nor valid JSON of the expected shape, or a value that is refused: where, and what is wrong.
    #[error("{0}")]
    Invalid(String),
}
