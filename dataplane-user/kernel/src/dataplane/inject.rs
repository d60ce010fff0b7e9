//! The injector: new frames enter as ingress of a device, through a program under BPF_PROG_TEST_RUN. No device is made for this.
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use nodefence_common::{Addr, Counter, Event, INJECTED_NOT_FOR_BUDGET};

use super::{
    answer::{self, AnswerFrame},
    error::Error,
    programs::Program,
    sys,
};

/// Injects frames as if a device had received them. A clone is cheap. Each clone may be used by a thread of its own, which must be in the
/// device's network namespace.
#[derive(Clone, Debug)]
pub struct Injector {
    program: Arc<OwnedFd>,
    unanswered: Arc<[Count; 2]>,
}

/// Packets and bytes.
#[derive(Debug, Default)]
struct Count([AtomicU64; 2]);

impl Count {
    fn add(&self, event: &Event) {
        let [packets, bytes] = &self.0;
        packets.fetch_add(1, Ordering::Relaxed);
        let len = event.packet_len.saturating_sub(event.l3_offset.into());
        bytes.fetch_add(len.into(), Ordering::Relaxed);
    }

    fn get(&self) -> Counter {
        let [packets, bytes] = &self.0;
        Counter { packets: packets.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

/// Why a packet that the kernel handed over got no answer. User space counts these packets from the time when the injector was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// No answer can be built from what was captured.
    Unanswerable,
    /// The kernel refused the answer.
    NotInjected,
}

impl Unanswered {
    /// The name that `counters` shows, beside the kernel's own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unanswerable => "unanswerable",
            Self::NotInjected => "not_injected",
        }
    }

    /// One line on what it means.
    pub const fn help(self) -> &'static str {
        match self {
            Self::Unanswerable => {
                "Of those handed over: no answer could be built, none was sent (since the agent started)."
            }
            Self::NotInjected => {
                "Of those handed over: the kernel did not take the answer (since the agent started)."
            }
        }
    }
}

/// The head of `struct __sk_buff` up to and including `cb` (include/uapi/linux/bpf.h). Everything else in it must be zero.
const CONTEXT: usize = 68;
const CB0: usize = 48;
const CB1: usize = 52;

impl Injector {
    pub(super) fn new(program: &Program) -> Result<Self, Error> {
        let fd = program.fd.as_fd().try_clone_to_owned();
        let program = Arc::new(fd.map_err(Error::call("open the injector once more"))?);
        Ok(Self { program, unanswered: Arc::default() })
    }

    /// Answers a packet that the kernel program wanted to answer. The kernel program has taken the answer from the budget. A packet that
    /// gets no answer is counted: the sender repeats the packet, and meets the cut again.
    pub fn answer(&self, event: &Event) {
        self.answered(event, |_| None);
    }

    /// Answers a packet for which nothing was taken yet from the budget of ICMP answers. Returns false if the answer needs the budget and
    /// the budget is used up.
    pub fn answer_within_budget(&self, event: &Event) -> bool {
        self.answered(event, |answer| answer.icmp_to)
    }

    /// Returns false if the answer needs the budget and the budget is used up.
    fn answered(&self, event: &Event, budget: impl FnOnce(&AnswerFrame) -> Option<Addr>) -> bool {
        let [unanswerable, not_injected] = &*self.unanswered;
        let Ok(answer) = answer::answer(event) else {
            unanswerable.add(event);
            return true;
        };
        match self.run(event.ifindex, &answer.frame, budget(&answer)) {
            Ok(INJECTED_NOT_FOR_BUDGET) => return false,
            Ok(0) => {}
            _ => not_injected.add(event),
        }
        true
    }

    /// The packets that this injector and its clones left without an answer, by reason.
    pub fn unanswered(&self) -> [(Unanswered, Counter); 2] {
        let [unanswerable, not_injected] = &*self.unanswered;
        [(Unanswered::Unanswerable, unanswerable.get()), (Unanswered::NotInjected, not_injected.get())]
    }

    /// Injects one frame as ingress of a device. `frame` begins with an Ethernet header. If the device has no Ethernet header, the header
    /// is removed, and its addresses do not matter.
    pub fn inject(&self, ifindex: u32, frame: &[u8]) -> Result<(), Error> {
        let refused = |reason: String| Error::Inject { ifindex, reason };
        match self.run(ifindex, frame, None) {
            Ok(0) => Ok(()),
            Ok(_) => Err(refused("the kernel did not take the frame: the interface is down, or the queue of received packets is full".into())),
            Err(e) => Err(refused(format!("BPF_PROG_TEST_RUN over {} bytes: {e}", frame.len()))),
        }
    }

    /// Returns what the program returned. If the frame is an ICMP answer that is to be taken from the budget, `budget` is its receiver.
    fn run(&self, ifindex: u32, frame: &[u8], budget: Option<Addr>) -> io::Result<u32> {
        let mut context = [0; CONTEXT];
        context[CB0..CB1].copy_from_slice(&ifindex.to_ne_bytes());
        context[CB1..].copy_from_slice(&budget.map_or([0; 16], |sender| sender.bytes));
        loop {
            match sys::test_run(self.program.as_fd(), frame, &context) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nodefence_common::{EventKind, HEAD_LEN};

    use super::*;

    #[test]
    fn what_gets_no_answer_is_counted() {
        // This is no program, so the kernel refuses to run it.
        let program = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let injector = Injector { program, unanswered: Arc::default() };
        let mut head = [0; HEAD_LEN];
        head[0] = 0x45;
        head[3] = 40;
        head[9] = 6;
        head[12..20].copy_from_slice(&[192, 0, 2, 9, 10, 244, 2, 7]);
        head[32] = 0x50;
        head[33] = 16;
        let event = Event {
            time_ns: 1,
            kind: EventKind::Answer as u32,
            reason: 4,
            ifindex: 7,
            node: 3,
            packet_len: 40,
            vlan_tci: 0,
            vlan_proto: 0,
            l3_offset: 0,
            head_len: 40,
            zero: 0,
            head,
        };
        answer::answer(&event).unwrap();
        injector.answer(&event);
        assert!(injector.clone().answer_within_budget(&Event { head_len: 30, ..event }));
        let one = Counter { packets: 1, bytes: 40 };
        assert_eq!(injector.unanswered(), [(Unanswered::Unanswerable, one), (Unanswered::NotInjected, one)]);
    }
}
