//! The log of the clients: one line for each request, and one for each time in which the clients' own process stood still.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The kind of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A client with one TCP connection, on which it sends request after request. When the connection ends, it makes the next one.
    Keep,
    /// A new TCP connection for one request.
    New,
    /// A TCP connection on which nothing is sent any more.
    Idle,
    /// A datagram from a port that is always the same.
    Udp,
    /// A datagram from a port of its own.
    Fresh,
}

impl Kind {
    /// Whether requests of this kind are datagrams.
    pub fn is_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Fresh)
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It was answered.
    Answered,
    /// ECONNREFUSED.
    Refused,
    /// ECONNRESET.
    Reset,
    /// The server closed the connection.
    Closed,
    /// The client gave up.
    TimedOut,
    /// The client still waited at the end of the run.
    Waiting,
    /// Another error.
    Other,
}

/// One request. An idle connection is one request, which begins once the connection is idle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The kind of the client.
    pub kind: Kind,
    /// The number of the client. Each new connection and each datagram from a port of its own is a client.
    pub client: u32,
    /// The number of the client's connection, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connection: u32,
    /// CLOCK_MONOTONIC at the beginning, in microseconds. A request on a connection that has to be made begins with the first SYN.
    pub at: u64,
    /// How long it took, in microseconds.
    pub took: u64,
    /// How it ended.
    pub end: End,
    /// How many SYNs were sent again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub syns_again: u32,
    /// The node whose server answers on this connection, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl Record {
    /// The moment of the end.
    pub fn ended(&self) -> u64 {
        self.at + self.took
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A time in which the clients' process did not run. What a client saw at its end may have happened at any moment of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gap {
    /// CLOCK_MONOTONIC at the beginning, in microseconds.
    pub at: u64,
    /// The length, in microseconds.
    pub took: u64,
}

/// All that the clients recorded.
#[derive(Clone, Default, Debug)]
pub struct Log {
    /// The requests in the order of their ends.
    pub records: Vec<Record>,
    /// The gaps in the order of time.
    pub gaps: Vec<Gap>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Request(Record),
    Gap { gap: Gap },
}

impl Log {
    /// Writes a file with one line of JSON for each request and each gap.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        let mut out = BufWriter::new(file);
        let requests = self.records.iter().cloned().map(Line::Request);
        for line in requests.chain(self.gaps.iter().map(|gap| Line::Gap { gap: *gap })) {
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
        }
        out.flush().with_context(|| format!("write {}", path.display()))
    }

    /// Reads such a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or with the number of a line that is neither a request nor a gap.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let mut this = Self::default();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = serde_json::from_str(&line?)
                .with_context(|| format!("{} line {}: no request and no gap", path.display(), number + 1))?;
            match line {
                Line::Request(record) => this.records.push(record),
                Line::Gap { gap } => this.gaps.push(gap),
            }
        }
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let full = Record {
            kind: Kind::New,
            client: 7,
            connection: 1,
            at: 5,
            took: 9,
            end: End::TimedOut,
            syns_again: 2,
            node: Some("node-3".to_owned()),
        };
        let short = Record { connection: 0, syns_again: 0, node: None, kind: Kind::Udp, ..full.clone() };
        let gaps = vec![Gap { at: 3, took: 4 }];
        let log = Log { records: vec![full, short], gaps };
        let file = tempfile::NamedTempFile::new().expect("a file");
        log.write(file.path()).expect("written");
        let read = Log::read(file.path()).expect("read");
        assert_eq!((read.records, read.gaps), (log.records, log.gaps));
        std::fs::write(file.path(), "{\"gap\":{\"at\":1,\"took\":2}}\n{}\n").expect("written");
        let error = Log::read(file.path()).expect_err("no request").to_string();
        assert!(error.contains("line 2: no request"), "{error}");
    }
}
