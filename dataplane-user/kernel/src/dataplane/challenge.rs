//! Frees the clients that wait: on a flag, every TCP flow of the node is challenged once. Nodes that were flagged together are challenged
//! together: the kernel's table is walked once for all of them. Whether a challenged flow has closed is looked up flow by flow.
//!
//! A client that waits for an answer sends nothing, so none of its packets meets the cut. A segment that it cannot accept makes its stack
//! answer with the exact numbers (RFC 9293 section 3.10.7.4), and that answer meets the cut. [`segments`] chooses the segment. Blocking:
//! run it on a thread of its own.
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    thread,
    time::{Duration, Instant},
};

use nodefence_common::Addr;
use serde::Serialize;

use crate::conntrack::{self, Backends, Conntrack, Dump, Flow};

mod inject;
pub mod segments;

pub use inject::inject;

use segments::{Challenge, Choice};

/// Frames handed to the injector at once. Between two batches the pace is kept, and the caller is asked whether to go on.
const BATCH: usize = 1_024;
/// After the first round: when to look whether all are closed. The last is when the rest is challenged again: Linux answers such
/// segments at most every 500 ms and socket (`tcp_invalid_ratelimit`).
const LOOKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(600)];
/// After the second round: when to count.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// Where a challenge enters: as ingress of the device that leads to the backend, as if the backend had sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Index of the device.
    pub ifindex: u32,
    /// The device's own MAC address; `None` where it has no link layer.
    pub mac: Option<[u8; 6]>,
}

/// What the challenge needs of its surroundings.
pub trait Surroundings {
    /// The device that leads to a backend; `None` where no attached device does.
    fn entry(&mut self, backend: Addr) -> Option<Entry>;

    /// Injects frames as ingress of their devices; for each whether it was taken.
    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<bool>;

    /// False ends the challenge of this node early (its flag was withdrawn).
    fn go_on(&self, node: usize) -> bool;
}

/// How to challenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Manner {
    /// Challenges a second at most.
    pub per_second: u32,
    /// conntrack translates a SYN|ACK with any numbers in the reply direction (found by the probe at start).
    pub syn_ack: bool,
    /// conntrack takes numbers far in the past for INVALID (found by the probe at start): flows that are challenged by bare ACK are made
    /// liberal first.
    pub far_is_invalid: bool,
}

impl Default for Manner {
    /// For a kernel of which nothing is known.
    fn default() -> Self {
        Self { per_second: 200_000, syn_ack: true, far_is_invalid: true }
    }
}

/// What a challenge did at one node, and what it saw.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// Flows of the node in conntrack.
    pub listed: usize,
    /// Flows challenged.
    pub challenged: usize,
    /// Of those: gone or in CLOSE at the end.
    pub closed: usize,
    /// Flows not challenged, by reason.
    pub skipped: Skipped,
    /// Segments injected, both rounds.
    pub segments: usize,
    /// Flows challenged a second time.
    pub challenged_again: usize,
    /// Flows made liberal in the reply direction.
    pub liberal: usize,
    /// Seconds until all challenged flows of this node were seen closed, or until the end. The flows of all nodes are challenged before any
    /// is looked at again.
    pub seconds: f64,
    /// Seconds that challenging took in the first round, of all nodes together.
    pub challenge_seconds: f64,
    /// The kernel broke the listing off again and again: flows may be missing.
    pub incomplete: bool,
    /// The flag was withdrawn before all flows were challenged.
    pub stopped: bool,
}

/// Flows that were not challenged.
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
    /// The injector did not take the challenge.
    pub not_injected: usize,
}

/// A flow, and whose it is: one of the challenge's nodes, by its place among them.
#[derive(Clone, Copy)]
struct Owned {
    node: usize,
    flow: Flow,
}

/// Challenges the clients of flows that were listed since `start`, and once more those whose flows are still there. A backend's owner is the place of its node, from 0 on.
/// Gives one report for each node, in the order of the places.
///
/// # Errors
/// Where conntrack cannot be read.
pub fn challenge(
    conntrack: &mut Conntrack,
    listed: Vec<Dump>,
    start: Instant,
    backends: &Backends<usize>,
    nodes: usize,
    manner: &Manner,
    surroundings: &mut impl Surroundings,
) -> Result<Vec<Report>, conntrack::Error> {
    let mut reports = vec![Report::default(); nodes];
    for report in &mut reports {
        report.incomplete = listed.iter().any(|dump| dump.incomplete);
    }
    let owned = |flow| Some(Owned { node: *backends.of_flow(&flow)?, flow });
    let mut flows: Vec<Owned> = listed.into_iter().flat_map(|dump| dump.flows).filter_map(owned).collect();
    flows.retain(|owned| is_to_be_challenged(owned, &mut reports[owned.node]));
    // Every packet starts the timer anew, so the least time left is the longest idle: those first, the rest may well send
    // something by itself meanwhile.
    flows.sort_by_key(|owned| owned.flow.timeout);

    let bare_ack = if manner.far_is_invalid { Challenge::OneAck } else { Challenge::FourAcks };
    let challenge = if manner.syn_ack { Challenge::SynAck } else { bare_ack };
    let challenged = round(&flows, challenge, manner, surroundings, &mut liberal(conntrack), &mut reports)?;
    let round_end = Instant::now();
    for (report, challenged) in reports.iter_mut().zip(counts(nodes, challenged.values().copied())) {
        report.challenged = challenged;
        report.challenge_seconds = start.elapsed().as_secs_f64();
        report.seconds = report.challenge_seconds;
    }

    let mut left = flows;
    left.retain(|owned| challenged.contains_key(&key(&owned.flow)));
    for look in LOOKS {
        if left.is_empty() {
            return Ok(reports);
        }
        thread::sleep((round_end + look).saturating_duration_since(Instant::now()));
        stop(&mut left, surroundings, &mut reports);
        if left.is_empty() {
            return Ok(reports);
        }
        left = look_at(conntrack, start, &left, &mut reports)?;
    }
    stop(&mut left, surroundings, &mut reports);
    if left.is_empty() {
        return Ok(reports);
    }
    let again = round(&left, bare_ack, manner, surroundings, &mut liberal(conntrack), &mut reports)?;
    for (report, again) in reports.iter_mut().zip(counts(nodes, again.into_values())) {
        report.challenged_again = again;
    }
    thread::sleep(LAST_LOOK);
    look_at(conntrack, start, &left, &mut reports)?;
    Ok(reports)
}

/// Counts a flow that was listed; whether it is to be challenged.
fn is_to_be_challenged(owned: &Owned, report: &mut Report) -> bool {
    report.listed += 1;
    let skipped = match segments::choose(&owned.flow) {
        Choice::Challenge => return true,
        Choice::Closed => &mut report.skipped.closed,
        Choice::NotTcp => &mut report.skipped.not_tcp,
        Choice::Opening => &mut report.skipped.opening,
        Choice::Ended => &mut report.skipped.ended,
    };
    *skipped += 1;
    false
}

/// How many there are of each of so many nodes.
fn counts(nodes: usize, each: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut counts = vec![0; nodes];
    for node in each {
        counts[node] += 1;
    }
    counts
}

/// Leaves out the flows of nodes whose flag was withdrawn.
fn stop(left: &mut Vec<Owned>, surroundings: &impl Surroundings, reports: &mut [Report]) {
    let mut stopped: HashSet<usize> = left.iter().map(|owned| owned.node).collect();
    stopped.retain(|node| !surroundings.go_on(*node));
    for node in &stopped {
        reports[*node].stopped = true;
    }
    left.retain(|owned| !stopped.contains(&owned.node));
}

/// Looks which of these flows, which were challenged, are neither gone nor in CLOSE, and counts the others as closed.
fn look_at(
    conntrack: &mut Conntrack,
    start: Instant,
    before: &[Owned],
    reports: &mut [Report],
) -> Result<Vec<Owned>, conntrack::Error> {
    let mut left: Vec<Owned> = Vec::new();
    for batch in before.chunks(BATCH) {
        let flows: Vec<Flow> = batch.iter().map(|owned| owned.flow).collect();
        let there = conntrack.still_there(&flows)?;
        let open: HashSet<Key> =
            there.iter().filter(|flow| segments::choose(flow) == Choice::Challenge).map(key).collect();
        left.extend(batch.iter().filter(|owned| open.contains(&key(&owned.flow))));
    }
    let open = counts(reports.len(), left.iter().map(|owned| owned.node));
    for node in before.iter().map(|owned| owned.node).collect::<HashSet<usize>>() {
        reports[node].closed = reports[node].challenged - open[node];
        reports[node].seconds = start.elapsed().as_secs_f64();
    }
    Ok(left)
}

/// Makes flows liberal; how many it changed.
type MakeLiberal<'a> = &'a mut dyn FnMut(&[Flow]) -> Result<usize, conntrack::Error>;

fn liberal(conntrack: &mut Conntrack) -> impl FnMut(&[Flow]) -> Result<usize, conntrack::Error> {
    |flows| conntrack.make_all_liberal(flows).map(|done| done.changed)
}

/// What tells one entry from a later one with the same addresses and ports.
type Key = (u32, conntrack::Tuple);

fn key(flow: &Flow) -> Key {
    (flow.id, flow.orig)
}

/// Flows whose challenge was taken by the injector, and whose they are.
type Challenged = HashMap<Key, usize>;

/// Challenges each flow; returns those whose challenge the injector took. Where the manner wants it, flows are made liberal just before:
/// those that are challenged, and no others.
fn round(
    flows: &[Owned],
    challenge: Challenge,
    manner: &Manner,
    surroundings: &mut impl Surroundings,
    liberal: MakeLiberal<'_>,
    reports: &mut [Report],
) -> Result<Challenged, conntrack::Error> {
    let start = Instant::now();
    let mut entries: BTreeMap<Addr, Option<Entry>> = BTreeMap::new();
    let mut challenged = Challenged::with_capacity(flows.len());
    let mut frames = Vec::with_capacity(BATCH * 4);
    let mut sent = 0_u32;
    for batch in flows.chunks(BATCH) {
        let mut batch = batch.to_vec();
        stop(&mut batch, surroundings, reports);
        // One node's behind each other: each is made liberal by requests of its own, and counted.
        batch.sort_by_key(|owned| owned.node);
        frames.clear();
        let mut reached = Vec::with_capacity(batch.len());
        for owned in batch {
            let backend = owned.flow.reply.src;
            match *entries.entry(backend).or_insert_with(|| surroundings.entry(backend)) {
                Some(entry) => {
                    segments::frames(&owned.flow, entry.mac, challenge, |frame| {
                        frames.push((entry.ifindex, frame))
                    });
                    reached.push(owned);
                }
                None => reports[owned.node].skipped.no_device += 1,
            }
        }
        if challenge == Challenge::OneAck {
            for of_one in reached.chunk_by(|one, next| one.node == next.node) {
                let flows: Vec<Flow> = of_one.iter().map(|owned| owned.flow).collect();
                if let Some(owned) = of_one.first() {
                    reports[owned.node].liberal += liberal(&flows)?;
                }
            }
        }
        let taken = surroundings.inject(&frames);
        for (owned, taken) in reached.iter().zip(taken.chunks(challenge.segments())) {
            let report = &mut reports[owned.node];
            report.segments += taken.iter().filter(|taken| **taken).count();
            // Of several segments only one is translated, and nobody knows which.
            if taken.iter().all(|taken| *taken) {
                challenged.insert(key(&owned.flow), owned.node);
            } else {
                report.skipped.not_injected += 1;
            }
        }

        sent = sent.saturating_add(u32::try_from(frames.len()).unwrap_or(u32::MAX));
        let due = Duration::from_secs_f64(f64::from(sent) / f64::from(manner.per_second.max(1)));
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok(challenged)
}

#[cfg(test)]
mod tests;
