//! The text of the file: a line that says what it is, a line for each object, and a line with the checksum of all lines before it. Objects are written and
//! read one by one, so that neither takes memory for a second copy of the cluster.

use std::{
    io::{self, BufRead, Read as _, Write},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::objects::{StoredConflict, StoredNode, StoredService, StoredSlice};
use crate::{
    enforce::Now,
    source::{Kept, Stored, StoredAge, Texts},
};

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;
/// The longest line that is read, in bytes. The API server takes no object of more than 1.5 MiB or so.
const LONGEST_LINE: u64 = 16 << 20;

/// The field that every version has.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    version: u32,
    /// The source, by its name for programs.
    source: String,
    confirmed: Stamp,
}

/// A time by two clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    wall: Timestamp,
    /// The boot to which the next field belongs.
    boot_id: String,
    boot_ns: u64,
}

/// A line but the first.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Node(StoredNode),
    Service(StoredService),
    Slice(StoredSlice),
    LeftOut(StoredConflict),
    /// The checksum of all lines before.
    End(u32),
}

/// When the view in the file was confirmed again, as a file of its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Confirmed {
    version: u32,
    /// The checksum of the view.
    view: u32,
    confirmed: Stamp,
}

/// Why a file gives no view.
#[derive(Debug)]
pub(super) enum Unread {
    /// It cannot be read at this moment.
    Io(io::Error),
    /// It is another version's or another source's: a text that follows the file's name. An agent that runs may use it.
    Others(String),
    /// It is of no use to anybody: a text that follows the file's name.
    Refused(String),
}

impl Stamp {
    pub(super) fn new(at: Now, boot_id: &str) -> Self {
        let boot_ns = u64::try_from(at.boot.as_nanos()).unwrap_or(u64::MAX);
        Self { wall: at.wall, boot_id: boot_id.to_owned(), boot_ns }
    }

    /// The age, where it can be known: within the same boot by the clock that is never set, else by the wall clock, and at least the time since the boot. A time
    /// that has not come is wrong.
    pub(super) fn age(&self, boot_id: &str, now: Now) -> Option<StoredAge> {
        let age = if !boot_id.is_empty() && self.boot_id == boot_id {
            now.boot.checked_sub(Duration::from_nanos(self.boot_ns))?
        } else {
            // A wall clock that was set back must not make it younger than the boot.
            Duration::try_from(now.wall.duration_since(self.wall)).ok()?.max(now.boot)
        };
        let before_boot = age.saturating_sub(now.boot);
        let since = age.saturating_sub(before_boot);
        let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let confirmed = Now {
            mono: now.mono.saturating_sub(nanoseconds),
            boot: now.boot.saturating_sub(since),
            wall: now.wall.checked_sub(age).unwrap_or(now.wall),
        };
        Some(StoredAge { confirmed, before_boot })
    }
}

/// Counts the checksum of what is written.
struct Summing<W> {
    to: W,
    sum: crc32fast::Hasher,
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> Summing<W> {
    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self, line)?;
        self.write_all(b"\n")
    }
}

/// Writes a view. Returns its checksum.
pub(super) fn write(to: impl Write, kept: &Kept, confirmed: Stamp) -> io::Result<u32> {
    let mut to = Summing { to, sum: crc32fast::Hasher::new() };
    to.line(&First { version: VERSION, source: kept.source.key().to_owned(), confirmed })?;
    for node in kept.objects.nodes() {
        to.line(&Line::Node(StoredNode::of(node)))?;
    }
    for service in kept.objects.services() {
        to.line(&Line::Service(StoredService::of(service)))?;
    }
    for slice in kept.objects.slices() {
        to.line(&Line::Slice(StoredSlice::of(&slice)))?;
    }
    for conflict in &kept.left_out {
        to.line(&Line::LeftOut(StoredConflict::of(conflict)))?;
    }
    let sum = to.sum.clone().finalize();
    to.line(&Line::End(sum))?;
    to.flush()?;
    Ok(sum)
}

/// The text that says when the view of this checksum was confirmed again.
pub(super) fn confirmed(view: u32, confirmed: Stamp) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Confirmed { version: VERSION, view, confirmed })
}

/// When the view of this checksum was confirmed again. `None` where the text says nothing of that.
pub(super) fn read_confirmed(text: &[u8], view: u32) -> Option<Stamp> {
    let read: Confirmed = serde_json::from_slice(text).ok()?;
    (read.version == VERSION && read.view == view).then_some(read.confirmed)
}

/// A view from a file, and when its first line says that it was confirmed.
pub(super) struct ReadView {
    pub(super) stored: Stored,
    pub(super) confirmed: Stamp,
    pub(super) sum: u32,
}

/// Reads a view of this source. `age`: what it has until the caller knows better.
pub(super) fn read(mut from: impl BufRead, source: &str, age: StoredAge) -> Result<ReadView, Unread> {
    let mut line = Vec::new();
    let mut sum = crc32fast::Hasher::new();
    next(&mut from, &mut line)?;
    let Header { version } = parse(&line)?;
    if version != VERSION {
        return Err(Unread::Others(format!("is of version {version}, expected {VERSION}")));
    }
    let first: First = parse(&line)?;
    if first.source != source {
        return Err(Unread::Others(format!("is of the source `{}`, expected `{source}`", first.source)));
    }
    let mut texts = Texts::default();
    let mut stored =
        Stored { nodes: Vec::new(), services: Vec::new(), slices: Vec::new(), left_out: Vec::new(), age };
    let told = loop {
        sum.update(&line);
        next(&mut from, &mut line)?;
        match parse(&line)? {
            Line::Node(node) => stored.nodes.push(node.read(&mut texts)),
            Line::Service(service) => stored.services.push(service.read(&mut texts)),
            Line::Slice(slice) => match slice.read(&mut texts) {
                Some(slice) => stored.slices.push(slice),
                None => return Err(damaged("an endpoint names content that is not there")),
            },
            Line::LeftOut(conflict) => stored.left_out.push(conflict.read()),
            Line::End(told) => break told,
        }
    };
    let sum = sum.finalize();
    if told != sum {
        return Err(damaged("the checksum is another one"));
    }
    if !from.fill_buf().map_err(Unread::Io)?.is_empty() {
        return Err(damaged("it goes on after its end"));
    }
    Ok(ReadView { stored, confirmed: first.confirmed, sum })
}

/// Reads the next line.
fn next(from: &mut impl BufRead, line: &mut Vec<u8>) -> Result<(), Unread> {
    line.clear();
    from.take(LONGEST_LINE).read_until(b'\n', line).map_err(Unread::Io)?;
    match line.last() {
        Some(b'\n') => Ok(()),
        Some(_) if line.len() as u64 == LONGEST_LINE => Err(damaged("a line is too long")),
        _ => Err(damaged("it ends too early")),
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, Unread> {
    serde_json::from_slice(line).map_err(|error| damaged(&error.to_string()))
}

fn damaged(why: &str) -> Unread {
    Unread::Refused(format!("is damaged: {why}"))
}
