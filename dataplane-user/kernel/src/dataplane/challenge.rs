//! Frees clients that wait for an answer of a flagged node. Each open TCP flow of the node is challenged, and challenged once more if it
//! stays open. Nodes that were flagged together are challenged together: the kernel's table is listed once for all of them. Whether a
//! challenged flow has closed is looked up flow by flow.
//!
//! A client that waits for an answer sends nothing, so no packet of the client meets the cut. A segment that the client cannot accept makes
//! its stack answer with the exact numbers (RFC 9293 section 3.10.7.4), and that answer meets the cut. [`segments`] chooses the segment.
//! The functions block: run them on a thread of their own.
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

/// Flows that are challenged or looked up at once. Between two batches of challenges the pace is kept, and nodes that are no longer flagged
/// are left out.
const BATCH: usize = 1_024;
/// When to look for open flows after the first round. After the last of these looks the open flows are challenged again: Linux answers such
/// segments at most every 500 ms for each socket (`tcp_invalid_ratelimit`).
const LOOKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(600)];
/// When to look for open flows after the second round.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// Where a challenge enters: it is injected as ingress of the device that leads to the backend, as if the backend had sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The device's index.
    pub ifindex: u32,
    /// The device's MAC address. `None` if the device has no link layer.
    pub mac: Option<[u8; 6]>,
}

/// What a challenge needs from its caller.
pub trait Surroundings {
    /// The device that leads to a backend. `None` if no attached device does.
    fn entry(&mut self, backend: Addr) -> Option<Entry>;

    /// Injects frames as ingress of their devices. Returns for each frame whether it was taken.
    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<bool>;

    /// Called when the flows are counted (`over` is false), and when every flow was challenged once. The reports, one for each node, have no
    /// closed flows yet.
    fn first_round(&mut self, _reports: &[Report], _over: bool) {}

    /// Whether to go on with this node. False, after its flag was withdrawn, ends the node's challenge early.
    fn go_on(&self, node: usize) -> bool;
}

/// How to challenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Manner {
    /// Segments a second at most.
    pub per_second: u32,
    /// conntrack translates a SYN|ACK in the reply direction whatever its numbers (found by the probe at start).
    pub syn_ack: bool,
    /// conntrack takes numbers far in the past for INVALID (found by the probe at start). Flows that are challenged by one bare ACK are
    /// then made liberal first.
    pub far_is_invalid: bool,
}

impl Default for Manner {
    /// For a kernel about which nothing is known.
    fn default() -> Self {
        Self { per_second: 200_000, syn_ack: true, far_is_invalid: true }
    }
}

/// What a challenge did to the flows of one node, and what became of them.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// Flows of the node in conntrack.
    pub listed: usize,
    /// Flows challenged.
    pub challenged: usize,
    /// Of the challenged flows, those that are gone, in CLOSE or in TIME_WAIT at the end.
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
    /// flow is looked up again.
    pub seconds: f64,
    /// Seconds until the end of the first round, which challenges the flows of all nodes.
    pub challenge_seconds: f64,
    /// The kernel interrupted the listing again and again: flows may be missing.
    pub incomplete: bool,
    /// The flag was withdrawn before all flows were challenged.
    pub stopped: bool,
}

/// Flows that were not challenged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Skipped {
    /// In state CLOSE: a RST was seen.
    pub closed: usize,
    /// Not TCP: the client is cut when it next sends.
    pub not_tcp: usize,
    /// In the handshake: the client repeats its SYN, which meets the cut.
    pub opening: usize,
    /// Closed by both sides.
    pub ended: usize,
    /// No attached device leads to the backend.
    pub no_device: usize,
    /// The injector did not take the challenge.
    pub not_injected: usize,
}

/// A flow and its node. The node is given by its place among the challenge's nodes.
#[derive(Clone, Copy)]
struct Owned {
    node: usize,
    flow: Flow,
}

/// Challenges the clients of flows that were listed since `start`, and once more those whose flows are still there. A backend's owner is the place of its node, from 0 on.
/// Gives one report for each node, in the order of the places.
///
/// # Errors
/// Fails if conntrack cannot be read.
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
    // Each packet restarts its entry's timer, so the flow with the least time left has been idle longest. The longest idle flows come
    // first: the clients of the others may send something by themselves meanwhile.
    flows.sort_by_key(|owned| owned.flow.timeout);
    surroundings.first_round(&reports, false);

    let bare_ack = if manner.far_is_invalid { Challenge::OneAck } else { Challenge::FourAcks };
    let challenge = if manner.syn_ack { Challenge::SynAck } else { bare_ack };
    let challenged = round(&flows, challenge, manner, surroundings, &mut liberal(conntrack), &mut reports)?;
    let round_end = Instant::now();
    for (report, challenged) in reports.iter_mut().zip(counts(nodes, challenged.values().copied())) {
        report.challenged = challenged;
        report.challenge_seconds = start.elapsed().as_secs_f64();
        report.seconds = report.challenge_seconds;
    }
    surroundings.first_round(&reports, true);

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

/// Counts a listed flow. Returns whether to challenge it.
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

/// How often each node occurs. `nodes` is the number of nodes.
fn counts(nodes: usize, each: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut counts = vec![0; nodes];
    for node in each {
        counts[node] += 1;
    }
    counts
}

/// Leaves out the flows of nodes whose flag was withdrawn, and notes that in the nodes' reports.
fn stop(left: &mut Vec<Owned>, surroundings: &impl Surroundings, reports: &mut [Report]) {
    let mut stopped: HashSet<usize> = left.iter().map(|owned| owned.node).collect();
    stopped.retain(|node| !surroundings.go_on(*node));
    for node in &stopped {
        reports[*node].stopped = true;
    }
    left.retain(|owned| !stopped.contains(&owned.node));
}

/// Looks up challenged flows. Returns those that are still open, and counts the others as closed.
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

/// Makes flows liberal. Returns how many were changed.
type MakeLiberal<'a> = &'a mut dyn FnMut(&[Flow]) -> Result<usize, conntrack::Error>;

fn liberal(conntrack: &mut Conntrack) -> impl FnMut(&[Flow]) -> Result<usize, conntrack::Error> {
    |flows| conntrack.make_all_liberal(flows).map(|done| done.changed)
}

/// Tells an entry from a later one with the same addresses and ports.
type Key = (u32, conntrack::Tuple);

fn key(flow: &Flow) -> Key {
    (flow.id, flow.orig)
}

/// Flows whose challenge the injector took, each with its node.
type Challenged = HashMap<Key, usize>;

/// Challenges each flow. Returns the flows whose challenge the injector took. For a challenge by one bare ACK, the challenged flows, and no
/// others, are made liberal just before.
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
        // Sorted by node: the flows of each node are made liberal by a call of their own, and counted for that node.
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
            // conntrack translates only one of several segments, and which one is not known. So all must be taken.
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
