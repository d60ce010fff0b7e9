//! Frees the clients that wait: on a flag, every TCP flow of the node is asked for its numbers once.
//!
//! A client that waits for an answer sends nothing, so nothing of its meets the cut. A segment that it cannot accept makes its
//! stack answer with the exact numbers (RFC 9293 section 3.10.7.4), and that answer meets the ordinary cut. Which segment
//! asks best is [`ask`]'s matter. Blocking: run it on a thread of its own.
use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nodefence_common::Addr;
use serde::Serialize;

use crate::conntrack::{self, Backends, Conntrack, Family, Flow};

pub mod ask;
mod live;

pub use live::{Live, inject};

use ask::{Choice, Question};

/// Frames handed to the injector at once; between two of these the pace is kept and the caller is asked whether to go on.
const BATCH: usize = 1_024;
/// After the first round: when to look whether all are closed. The last is when the rest is asked again: Linux answers such
/// segments at most every 500 ms and socket (`tcp_invalid_ratelimit`).
const LOOKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(600)];
/// After the second round: when to count.
const LAST_LOOK: Duration = Duration::from_millis(200);
/// One listing at a time, also where several sweeps run: each walks the kernel's whole table.
static LISTING: Mutex<()> = Mutex::new(());

/// Where a question enters: as ingress of the device that leads to the backend, as if the backend had sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Index of the device.
    pub ifindex: u32,
    /// The device's own MAC address; `None` where it has no link layer.
    pub mac: Option<[u8; 6]>,
}

/// What the sweep needs of its surroundings.
pub trait Surroundings {
    /// The device that leads to a backend; `None` where no attached device does.
    fn entry(&mut self, backend: Addr) -> Option<Entry>;

    /// Injects frames as ingress of their devices; how many were taken.
    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> usize;

    /// False ends the sweep early (the flag was taken back).
    fn go_on(&self) -> bool;
}

/// How to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Manner {
    /// Questions a second at most.
    pub per_second: u32,
    /// conntrack translates a SYN|ACK with any numbers in the reply direction (found by the probe at start).
    pub syn_ack: bool,
    /// conntrack takes numbers far in the past for INVALID (found by the probe at start): flows that are asked by bare ACK are made
    /// liberal first.
    pub far_is_invalid: bool,
}

impl Default for Manner {
    /// For a kernel of which nothing is known.
    fn default() -> Self {
        Self { per_second: 200_000, syn_ack: true, far_is_invalid: true }
    }
}

/// What a sweep did and saw.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// Flows of the node in conntrack.
    pub listed: usize,
    /// Flows asked.
    pub asked: usize,
    /// Of those: gone or in CLOSE at the end.
    pub closed: usize,
    /// Flows not asked, by reason.
    pub skipped: Skipped,
    /// Segments injected, both rounds.
    pub segments: usize,
    /// Flows asked a second time.
    pub asked_again: usize,
    /// Flows made liberal in the reply direction.
    pub liberal: usize,
    /// Seconds until all that were asked were seen closed, or until the end.
    pub seconds: f64,
    /// Seconds that asking took in the first round.
    pub asking_seconds: f64,
    /// Listed flows by conntrack zone, the default one left out.
    pub zones: BTreeMap<u16, usize>,
    /// The kernel broke the listing off again and again: flows may be missing.
    pub incomplete: bool,
    /// The flag was taken back, or the agent ended, before all were asked.
    pub stopped: bool,
}

/// Flows that were not asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Skipped {
    /// In CLOSE: a RST was seen.
    pub closed: usize,
    /// Not TCP: cut when the client next sends.
    pub not_tcp: usize,
    /// Being opened: the SYN is repeated, and meets the cut.
    pub opening: usize,
    /// Closed in order.
    pub ended: usize,
    /// No attached device leads to the backend.
    pub no_device: usize,
    /// The injector did not take the question.
    pub not_injected: usize,
}

/// Asks all clients of a node's backends, then the ones that are still there once more.
///
/// # Errors
/// Where conntrack cannot be listed.
pub fn sweep(
    conntrack: &mut Conntrack,
    backends: &Backends,
    manner: &Manner,
    surroundings: &mut impl Surroundings,
) -> Result<Report, conntrack::Error> {
    let start = Instant::now();
    let mut report = Report::default();
    let mut flows = list(conntrack, backends, Some(&mut report))?;
    report.listed = flows.len();
    flows.retain(|flow| match ask::choose(flow) {
        Choice::Ask => true,
        Choice::Closed => skip(&mut report.skipped.closed),
        Choice::NotTcp => skip(&mut report.skipped.not_tcp),
        Choice::Opening => skip(&mut report.skipped.opening),
        Choice::Ended => skip(&mut report.skipped.ended),
    });
    // Every packet starts the timer anew, so the least time left is the longest idle: those first, the rest may well send
    // something by itself meanwhile.
    flows.sort_by_key(|flow| flow.timeout);

    let bare_ack = if manner.far_is_invalid { Question::OneAck } else { Question::FourAcks };
    let question = if manner.syn_ack { Question::SynAck } else { bare_ack };
    let asked = round(&flows, question, manner, surroundings, &mut liberal(conntrack), &mut report)?;
    report.asked = asked.len();
    let round_end = Instant::now();
    report.asking_seconds = start.elapsed().as_secs_f64();

    let mut left = flows;
    for look in LOOKS {
        if asked.is_empty() || !surroundings.go_on() {
            break;
        }
        thread::sleep((round_end + look).saturating_duration_since(Instant::now()));
        left = still_open(conntrack, backends, &asked)?;
        report.closed = asked.len() - left.len();
        report.seconds = start.elapsed().as_secs_f64();
        if left.is_empty() {
            return Ok(report);
        }
    }
    report.stopped |= !surroundings.go_on();
    if asked.is_empty() || report.stopped {
        report.seconds = start.elapsed().as_secs_f64();
        return Ok(report);
    }
    let again = round(&left, bare_ack, manner, surroundings, &mut liberal(conntrack), &mut report)?;
    report.asked_again = again.len();
    thread::sleep(LAST_LOOK);
    report.closed = asked.len() - still_open(conntrack, backends, &asked)?.len();
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn skip(count: &mut usize) -> bool {
    *count += 1;
    false
}

/// Makes flows liberal; how many it changed.
type MakeLiberal<'a> = &'a mut dyn FnMut(&[Flow]) -> Result<usize, conntrack::Error>;

fn liberal(conntrack: &mut Conntrack) -> impl FnMut(&[Flow]) -> Result<usize, conntrack::Error> {
    |flows| conntrack.make_all_liberal(flows).map(|done| done.changed)
}

/// Lists the flows of both families; fills in what of the listing belongs in the report.
fn list(
    conntrack: &mut Conntrack,
    backends: &Backends,
    mut report: Option<&mut Report>,
) -> Result<Vec<Flow>, conntrack::Error> {
    let _one = LISTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut flows = Vec::new();
    for family in [Family::V4, Family::V6] {
        let has_family = backends.addresses().any(|addr| addr.as_v4().is_some() == (family == Family::V4));
        if !has_family {
            continue;
        }
        let dump = conntrack.dump(family, |flow| backends.matches(flow))?;
        if let Some(report) = report.as_deref_mut() {
            report.incomplete |= dump.incomplete;
            for (zone, count) in dump.zones {
                *report.zones.entry(zone.id()).or_default() += count;
            }
        }
        flows.extend(dump.flows);
    }
    Ok(flows)
}

/// Which of the asked flows are neither gone nor in CLOSE.
fn still_open(
    conntrack: &mut Conntrack,
    backends: &Backends,
    asked: &HashSet<Key>,
) -> Result<Vec<Flow>, conntrack::Error> {
    let mut flows = list(conntrack, backends, None)?;
    flows.retain(|flow| asked.contains(&key(flow)) && ask::choose(flow) == Choice::Ask);
    Ok(flows)
}

/// What tells one entry from a later one with the same addresses and ports.
type Key = (u32, conntrack::Tuple);

fn key(flow: &Flow) -> Key {
    (flow.id, flow.orig)
}

/// Asks each flow; gives those whose question was taken by the injector. Where the question takes it, flows are made liberal just
/// before: those that are asked, and no others.
fn round(
    flows: &[Flow],
    question: Question,
    manner: &Manner,
    surroundings: &mut impl Surroundings,
    liberal: MakeLiberal<'_>,
    report: &mut Report,
) -> Result<HashSet<Key>, conntrack::Error> {
    let start = Instant::now();
    let mut entries: BTreeMap<Addr, Option<Entry>> = BTreeMap::new();
    let mut asked = HashSet::with_capacity(flows.len());
    let (mut frames, mut sent) = (Vec::with_capacity(BATCH * 4), 0_u32);
    for batch in flows.chunks(BATCH) {
        if !surroundings.go_on() {
            report.stopped = true;
            break;
        }
        frames.clear();
        let mut reached = Vec::with_capacity(batch.len());
        for flow in batch {
            let backend = flow.reply.src;
            match *entries.entry(backend).or_insert_with(|| surroundings.entry(backend)) {
                Some(entry) => {
                    ask::frames(flow, entry.mac, question, |frame| frames.push((entry.ifindex, frame)));
                    reached.push(*flow);
                }
                None => report.skipped.no_device += 1,
            }
        }
        if question == Question::OneAck && !reached.is_empty() {
            report.liberal += liberal(&reached)?;
        }
        let mut keys: Vec<Key> = reached.iter().map(key).collect();
        let taken = surroundings.inject(&frames);
        report.segments += taken;
        let refused = (frames.len() - taken.min(frames.len())).div_ceil(question.segments());
        report.skipped.not_injected += refused;
        keys.truncate(keys.len().saturating_sub(refused));
        asked.extend(keys);

        sent = sent.saturating_add(u32::try_from(frames.len()).unwrap_or(u32::MAX));
        let due = Duration::from_secs_f64(f64::from(sent) / f64::from(manner.per_second.max(1)));
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests;
