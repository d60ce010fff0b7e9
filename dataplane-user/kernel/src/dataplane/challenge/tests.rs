use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use nodefence_common::Addr;

use super::{
    Challenged, Entry, Manner, Owned, Report, Surroundings, counts, key, round,
    segments::{Challenge, Choice, choose, frames},
};
use crate::conntrack::{Flow, TcpState, Tuple};

fn flow(client_port: u16) -> Flow {
    let tuple = |src: [u8; 4], dst: [u8; 4], src_port, dst_port| Tuple {
        src: Addr::v4(src),
        dst: Addr::v4(dst),
        src_port,
        dst_port,
        protocol: 6,
    };
    Flow {
        orig: tuple([192, 0, 2, 9], [198, 51, 100, 1], client_port, 80),
        reply: tuple([10, 244, 2, 7], [10, 2, 0, 11], 8080, client_port),
        tcp: Some(TcpState::Established),
        liberal: false,
        status: 0,
        zone: None,
        id: u32::from(client_port),
        timeout: 100,
    }
}

#[test]
fn who_may_wait_is_challenged() {
    use TcpState::*;
    let choice = |tcp| choose(&Flow { tcp, ..flow(1) });
    for state in [SynRecv, Established, FinWait, CloseWait, LastAck] {
        assert_eq!(choice(Some(state)), Choice::Challenge, "{state:?}");
    }
    for state in [None, SynSent, SynSent2] {
        assert_eq!(choice(Some(state)), Choice::Opening, "{state:?}");
    }
    assert_eq!(choice(Some(Close)), Choice::Closed);
    assert_eq!(choice(Some(TimeWait)), Choice::Ended);
    assert_eq!(choice(Option::None), Choice::NotTcp);
}

/// Every challenge goes from the backend to where the flow's answers go, and its checksums are right. Exactly one of four ACKs lies in the
/// past in both numbers, whatever conntrack has seen.
#[test]
fn challenges_are_well_formed() {
    let mac = [2, 0, 0, 0, 0, 1];
    for challenge in [Challenge::SynAck, Challenge::OneAck, Challenge::FourAcks] {
        let mut numbers = Vec::new();
        frames(&flow(50_000), Some(mac), challenge, |frame| {
            let packet = SlicedPacket::from_ethernet(&frame).unwrap();
            let ethernet = packet.link.as_ref().unwrap().to_header().unwrap().ethernet2().unwrap();
            assert_eq!(ethernet.destination, mac);
            assert_eq!(ethernet.source[0] & 3, 2, "locally administered, not a group");
            let Some(NetSlice::Ipv4(ip)) = &packet.net else { panic!("{packet:?}") };
            let ip = ip.header().to_header();
            assert_eq!((ip.source, ip.destination), ([10, 244, 2, 7], [10, 2, 0, 11]));
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { panic!("{packet:?}") };
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4(ip.source, ip.destination).unwrap());
            assert_eq!((tcp.source_port(), tcp.destination_port()), (8080, 50_000));
            assert_eq!((tcp.ack(), tcp.syn()), (true, challenge == Challenge::SynAck));
            assert!(!tcp.rst() && !tcp.fin() && tcp.payload().is_empty() && tcp.window_size() > 0);
            numbers.push((tcp.sequence_number(), tcp.acknowledgment_number()));
        });
        assert_eq!(numbers.len(), challenge.segments());
        if challenge == Challenge::FourAcks {
            for seen in [(0_u32, 0_u32), (1 << 31, 7), (0xffff_ffff, 1 << 30), (12_345, 0xdead_beef)] {
                let past = |number: u32, seen: u32| (number.wrapping_sub(seen) as i32) < 0;
                let both = numbers.iter().filter(|(seq, ack)| past(*seq, seen.0) && past(*ack, seen.1));
                assert_eq!(both.count(), 1, "{seen:?}");
            }
        }
    }
    frames(&flow(1), None, Challenge::SynAck, |frame| {
        assert_eq!(&frame[..14], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
    });
}

/// An injector that takes a limited number of frames and ends the challenge after some batches.
struct Fake {
    entry: Option<Entry>,
    takes: usize,
    batches: usize,
    seen: Vec<(u32, Vec<u8>)>,
    unflagged: Vec<usize>,
    /// Frames of a batch that are refused, by their place in it.
    refused: Vec<usize>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            entry: ENTRY,
            takes: usize::MAX,
            batches: usize::MAX,
            seen: Vec::new(),
            unflagged: Vec::new(),
            refused: Vec::new(),
        }
    }
}

impl Surroundings for Fake {
    fn entry(&mut self, _: Addr) -> Option<Entry> {
        self.entry
    }
    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<bool> {
        self.batches = self.batches.saturating_sub(1);
        let mut taken = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let takes = self.takes > 0 && !self.refused.contains(&at);
            if takes {
                self.takes -= 1;
                self.seen.push(frame.clone());
            }
            taken.push(takes);
        }
        taken
    }
    fn go_on(&self, node: usize) -> bool {
        self.batches > 0 && !self.unflagged.contains(&node)
    }
}

const ENTRY: Option<Entry> = Some(Entry { ifindex: 7, mac: Some([2, 0, 0, 0, 0, 1]) });

fn owned(client_port: u16) -> Owned {
    Owned { node: 0, flow: flow(client_port) }
}

fn try_round(fake: &mut Fake, challenge: Challenge, flows: u16) -> (Challenged, Report) {
    let flows: Vec<_> = (1..=flows).map(owned).collect();
    let (challenged, mut reports) = try_flows(fake, challenge, &flows, 1);
    (challenged, reports.remove(0))
}

fn try_flows(
    fake: &mut Fake,
    challenge: Challenge,
    flows: &[Owned],
    nodes: usize,
) -> (Challenged, Vec<Report>) {
    let mut reports = vec![Report::default(); nodes];
    let manner = Manner { per_second: u32::MAX, ..Manner::default() };
    let mut liberal = |flows: &[Flow]| Ok(flows.len());
    let challenged = round(flows, challenge, &manner, fake, &mut liberal, &mut reports).unwrap();
    (challenged, reports)
}

#[test]
fn nodes_that_are_challenged_together_are_counted_apart() {
    let flows: Vec<_> =
        (1..=30).map(|port| Owned { node: usize::from(port % 3), flow: flow(port) }).collect();
    // The flows are sorted by node. The injector refuses two frames of the first node and one of the last.
    let mut fake = Fake { refused: vec![3, 7, 29], ..Fake::default() };
    let (challenged, reports) = try_flows(&mut fake, Challenge::OneAck, &flows, 3);
    let counted = |report: &Report| (report.segments, report.liberal, report.skipped.not_injected);
    assert_eq!(reports.iter().map(counted).collect::<Vec<_>>(), [(8, 10, 2), (10, 10, 0), (9, 10, 1)]);
    assert_eq!(counts(3, challenged.into_values()), [8, 10, 9]);
    // conntrack translates one of four segments, and which one is not known. So all must be taken.
    let mut fake = Fake { refused: vec![5], ..Fake::default() };
    let (challenged, report) = try_round(&mut fake, Challenge::FourAcks, 3);
    assert_eq!((challenged.len(), report.segments, report.skipped.not_injected), (2, 11, 1));
    // The second node is no longer flagged.
    let mut fake = Fake { unflagged: vec![1], ..Fake::default() };
    let (challenged, reports) = try_flows(&mut fake, Challenge::SynAck, &flows, 3);
    assert_eq!(reports.iter().map(|report| report.stopped).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!((counts(3, challenged.into_values()), fake.seen.len()), (vec![10, 0, 10], 20));
}

#[test]
fn only_who_is_challenged_is_made_liberal() {
    for (entry, challenge, liberal) in
        [(ENTRY, Challenge::OneAck, 10), (None, Challenge::OneAck, 0), (ENTRY, Challenge::SynAck, 0)]
    {
        let mut fake = Fake { entry, takes: usize::MAX, batches: usize::MAX, ..Fake::default() };
        let (_, report) = try_round(&mut fake, challenge, 10);
        assert_eq!(report.liberal, liberal, "{challenge:?}");
    }
    // The challenge ends after one batch. Flows of later batches are not made liberal.
    let mut fake = Fake { entry: ENTRY, takes: usize::MAX, batches: 1, ..Fake::default() };
    let (challenged, report) = try_round(&mut fake, Challenge::OneAck, 2_000);
    assert_eq!((challenged.len(), report.liberal), (super::BATCH, super::BATCH));
}

#[test]
fn a_round_challenges_each_flow_once() {
    let mut fake = Fake { entry: ENTRY, takes: usize::MAX, batches: usize::MAX, ..Fake::default() };
    let (challenged, report) = try_round(&mut fake, Challenge::FourAcks, 1_000);
    assert_eq!((challenged.len(), report.segments, fake.seen.len()), (1_000, 4_000, 4_000));
    assert!(
        challenged.contains_key(&key(&flow(1_000))) && fake.seen.iter().all(|(ifindex, _)| *ifindex == 7)
    );
    assert_eq!(report.skipped, super::Skipped::default());
}

#[test]
fn what_cannot_be_challenged_is_counted() {
    let mut fake = Fake { entry: None, takes: usize::MAX, batches: usize::MAX, ..Fake::default() };
    let (challenged, report) = try_round(&mut fake, Challenge::SynAck, 10);
    assert_eq!((challenged.len(), report.skipped.no_device), (0, 10));
    let mut fake = Fake { entry: ENTRY, takes: 7, batches: usize::MAX, ..Fake::default() };
    let (challenged, report) = try_round(&mut fake, Challenge::SynAck, 10);
    assert_eq!((challenged.len(), report.skipped.not_injected, report.segments), (7, 3, 7));
}

#[test]
fn an_unflag_ends_it() {
    let mut fake = Fake { entry: ENTRY, takes: usize::MAX, batches: 1, ..Fake::default() };
    let (challenged, report) = try_round(&mut fake, Challenge::SynAck, 2_000);
    assert_eq!((challenged.len(), report.stopped), (super::BATCH, true));
}

#[test]
fn the_pace_is_kept() {
    let mut fake = Fake { entry: ENTRY, takes: usize::MAX, batches: usize::MAX, ..Fake::default() };
    let flows: Vec<_> = (1..=1_000).map(owned).collect();
    let manner = Manner { per_second: 10_000, ..Manner::default() };
    let start = std::time::Instant::now();
    let mut liberal = |_: &[Flow]| Ok(0);
    round(&flows, Challenge::SynAck, &manner, &mut fake, &mut liberal, &mut [Report::default()]).unwrap();
    assert!(start.elapsed() >= std::time::Duration::from_millis(99));
}

/// Promised: 100,000 idle clients are freed within a second of the flag.
#[test]
fn at_its_own_pace_a_round_challenges_a_hundred_thousand_within_a_second() {
    let mut fake = Fake { entry: ENTRY, takes: usize::MAX, batches: usize::MAX, ..Fake::default() };
    let flows: Vec<_> = (0..100_000)
        .map(|at: u32| Owned { node: 0, flow: Flow { id: at, ..flow((at % 50_000) as u16 + 10_000) } })
        .collect();
    let start = std::time::Instant::now();
    let mut liberal = |_: &[Flow]| Ok(0);
    let mut reports = [Report::default()];
    let challenged =
        round(&flows, Challenge::SynAck, &Manner::default(), &mut fake, &mut liberal, &mut reports).unwrap();
    let [report] = reports;
    let took = start.elapsed();
    assert_eq!((challenged.len(), report.segments), (100_000, 100_000));
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
}
