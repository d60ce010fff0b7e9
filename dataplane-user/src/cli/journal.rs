//! The priority of log lines for systemd's journal: a prefix of each line (sd-daemon(3), `SD_WARNING` and others), which the journal removes.

use std::{
    io::{self, Write},
    os::fd::AsFd,
};

use nix::sys::stat::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Whether `to` leads to the journal: `JOURNAL_STREAM` has the device and inode of that stream (systemd.exec(5)). The variable alone is not
/// enough, since it stays set where the output is redirected.
pub(super) fn reads(to: impl AsFd) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(to).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// A writer of lines, with the prefix where the journal reads them.
#[derive(Clone, Debug)]
pub(super) struct Prefixed<W> {
    pub(super) to: W,
    pub(super) journal: bool,
}

/// A writer of lines of one priority.
pub(super) struct Lines<W> {
    to: W,
    prefix: &'static str,
}

impl<W: Clone> Prefixed<W> {
    /// The writer for lines of this level.
    pub(super) fn of(&self, level: Level) -> Lines<W> {
        let prefix = if self.journal { prefix(level) } else { "" };
        Lines { to: self.to.clone(), prefix }
    }
}

impl<'a, W: Write + Clone + 'a> MakeWriter<'a> for Prefixed<W> {
    type Writer = Lines<W>;

    fn make_writer(&'a self) -> Self::Writer {
        self.of(Level::INFO)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        self.of(*meta.level())
    }
}

const fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

impl<W: Write> Write for Lines<W> {
    /// Writes the text in one call, with the prefix before each line. A backtrace has many lines, and the journal makes an entry of each.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.prefix.is_empty() {
            return self.to.write(text);
        }
        let mut prefixed = Vec::with_capacity(text.len() + self.prefix.len());
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            prefixed.extend_from_slice(self.prefix.as_bytes());
            prefixed.extend_from_slice(line);
        }
        self.to.write_all(&prefixed)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_says_how_grave_it_is_where_the_journal_reads_it() {
        for (level, journal, expected) in [
            (Level::ERROR, true, "<3>one\n<3>two\n"),
            (Level::WARN, true, "<4>one\n<4>two\n"),
            (Level::INFO, true, "<6>one\n<6>two\n"),
            (Level::DEBUG, true, "<7>one\n<7>two\n"),
            (Level::TRACE, true, "<7>one\n<7>two\n"),
            (Level::ERROR, false, "one\ntwo\n"),
        ] {
            let mut lines = Prefixed { to: Vec::new(), journal }.of(level);
            assert_eq!(lines.write(b"one\ntwo\n").unwrap(), 8);
            assert_eq!(String::from_utf8(lines.to).unwrap(), expected, "{level}");
        }
    }
}
