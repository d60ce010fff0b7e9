//! The thread that rescues: takes the packets which the kernel hands over, and goes on to ask for them only as long as it does.
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nodefence_common::{RESCUE_LEASE_NS, RescueHead};

use super::core::{Core, precedence};
use crate::{
    conntrack::{Flow, Tuple},
    dataplane::Rescues,
    flags::monotonic_ns,
    ipvs,
    plan::{Answer, Mode},
    proxy,
    report::RescueRow,
    rescue::{Fate, Tally, own::OwnFound, tries::Recent},
};

mod devices;
mod keeping;
mod packets;
mod waiting;

use keeping::Lane;
use packets::{Helper, Keeping};

/// How often the lease is renewed while nothing comes.
const BEAT: Duration = Duration::from_millis(50);
/// How often to look whether what packets wait for has been done.
const LOOK: Duration = Duration::from_millis(2);
/// Packets taken before the lease is looked at again.
const BATCH: usize = 256;
/// How soon what failed at the beginning is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// How long (ns) the ends of a flow whose entry was deleted are remembered, for the packets that were on their way then.
const MOVED_NS: u64 = 1_000_000_000;
/// How many are, for each half of the memory: 10 MiB.
const MOVED: usize = 65_536;

/// What the agent's other parts see of it.
#[derive(Debug)]
pub(super) struct Desk {
    /// What became of the packets.
    pub(super) tally: Tally,
    idle: Mutex<Option<String>>,
    own: Mutex<OwnFound>,
    /// By the reply direction of entries that were deleted: the original one.
    moved: Mutex<Recent<Tuple, Tuple>>,
    /// A second (CLOCK_MONOTONIC), and how many ICMP errors it has cost.
    icmp: Mutex<(u64, u32)>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            tally: Tally::default(),
            idle: Mutex::default(),
            own: Mutex::default(),
            moved: Mutex::new(Recent::new(MOVED_NS, MOVED)),
            icmp: Mutex::default(),
        }
    }
}

impl Desk {
    /// Why nothing is rescued; `None` where packets are.
    fn why_idle(&self) -> Option<String> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known of packets of this machine's own sockets.
    fn own(&self) -> MutexGuard<'_, OwnFound> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether packets are taken: then entries must not be deleted that were not given to [`Self::remember`] before.
    pub(super) fn takes(&self) -> bool {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes notice of entries that are about to be deleted. Where there is no room for them, what is on its way is refused.
    pub(super) fn remember(&self, flows: &[Flow]) {
        let now = monotonic_ns();
        let mut moved = self.moved();
        for flow in flows.iter().filter(|flow| flow.is_balanced()) {
            moved.put(flow.reply, flow.orig, now);
        }
    }

    fn moved(&self) -> MutexGuard<'_, Recent<Tuple, Tuple>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one from the budget of ICMP errors of the second that `now` (ns) lies in.
    fn may_tell(&self, now: u64, budget: u32) -> bool {
        let current = now / 1_000_000_000;
        let mut icmp = self.icmp.lock().unwrap_or_else(PoisonError::into_inner);
        let (second, spent) = &mut *icmp;
        if *second != current {
            (*second, *spent) = (current, 0);
        }
        *spent += 1;
        *spent <= budget
    }

    /// For `status`.
    pub(super) fn row(&self) -> RescueRow {
        let own = self.own().text();
        let mut row = RescueRow { idle: self.why_idle(), own, ..RescueRow::default() };
        for (fate, counter) in self.tally.get() {
            match fate {
                Fate::PutIn => row.put_in = counter.packets,
                Fate::Tries => row.tries = counter.packets,
                other if counter.packets != 0 => {
                    row.not.insert(other.name().to_owned(), counter.packets);
                }
                _ => {}
            }
        }
        row
    }

    fn set_idle(&self, why: Option<String>) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// The thread.
pub(super) struct Rescue {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Rescue {
    /// Starts it in the calling thread's network namespace.
    pub(super) fn start(core: &Arc<Core>) -> anyhow::Result<Self> {
        let core = Arc::clone(core);
        let rescues = core.dataplane().rescues()?;
        core.rescue.set_idle(Some("about to begin".to_owned()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::Builder::new().name("rescue".into()).spawn(move || {
                let _or_end = core.or_end();
                let desk = Arc::clone(&core.rescue);
                precedence();
                // Without this thread the lease lapses: what would be rescued is refused.
                if let Err(error) = (Worker { core, rescues }).run(&stop) {
                    tracing::error!(%error, "nothing is rescued any more");
                    desk.set_idle(Some(error.to_string()));
                }
            })?
        };
        Ok(Self { stop, thread })
    }

    /// Ends it; packets are refused from now on.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _panicked = self.thread.join();
    }
}

/// Why the agent is not to rescue at all, as it was started and by the cluster file that holds.
fn unwanted(core: &Core) -> Option<&'static str> {
    if core.settings.mode != Mode::Enforce {
        return Some("observe mode, nothing is cut");
    }
    if core.settings.answer != Answer::Refuse {
        return Some("the answer is drop");
    }
    if core.state().view.services.is_none() {
        return Some("the cluster file says nothing of Services");
    }
    match core.proxy().mode {
        Some(proxy::Mode::Ipvs) if !core.takeout.progress().flushes => Some(if ipvs::is_loaded() {
            "net.ipv4.vs.expire_nodest_conn is 0: IPVS holds on to connections"
        } else {
            "kube-proxy is in IPVS mode, but IPVS is not loaded"
        }),
        Some(_) => None,
        None if core.settings.proxy == proxy::Wanted::None => {
            Some("how kube-proxy forwards is not to be looked at (`--proxy none`)")
        }
        None => Some("how kube-proxy forwards is not known; say it with `--proxy nftables|iptables|ipvs`"),
    }
}

struct Worker {
    core: Arc<Core>,
    rescues: Rescues,
}

impl Worker {
    fn run(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let lane = Lane::start(&self.core)?;
        let outcome = self.take_packets(stop, &lane);
        lane.end();
        outcome
    }

    fn take_packets(&mut self, stop: &AtomicBool, lane: &Lane) -> anyhow::Result<()> {
        let desk = Arc::clone(&self.core.rescue);
        let mut helper: Option<Helper> = None;
        let mut tried: Option<Instant> = None;
        let mut leased = 0;
        while !stop.load(Ordering::Relaxed) {
            let unwanted = unwanted(&self.core).map(str::to_owned);
            if unwanted.is_none() && helper.is_none() && tried.is_none_or(|at| at.elapsed() >= AGAIN) {
                tried = Some(Instant::now());
                match Helper::open(Arc::clone(&self.core), Keeping::HandOn(lane.packets.clone())) {
                    Ok(ready) => helper = Some(ready),
                    Err(error) => desk.set_idle(Some(format!("{error:#}"))),
                }
            }
            let Some(able) = helper.as_mut().filter(|_| unwanted.is_none()) else {
                if leased != 0 {
                    leased = 0;
                    self.rescues.lease(0)?;
                }
                if unwanted.is_some() {
                    desk.set_idle(unwanted);
                }
                // What was handed over before the lease ended is not left to whoever comes next.
                while self.rescues.next(|head, frame| desk.tally.add(Fate::Late, length(head, frame))) {}
                std::thread::sleep(BEAT);
                continue;
            };
            let now = monotonic_ns();
            if leased < now + RESCUE_LEASE_NS * 3 / 4 {
                leased = now + RESCUE_LEASE_NS;
                self.rescues.lease(leased)?;
                desk.set_idle(None);
            }
            able.look();
            able.again();
            let more = (0..BATCH).all(|_| self.rescues.next(|head, frame| able.handle(head, frame)));
            if able.broken {
                helper = None;
            } else if !more {
                self.rescues.wait(if able.waits() { LOOK } else { BEAT })?;
            }
        }
        self.rescues.lease(0)?;
        if let Some(able) = &mut helper {
            // What was handed over before that, and by programs that had read the lease by then.
            for pause in [Duration::ZERO, LOOK] {
                std::thread::sleep(pause);
                able.look();
                while self.rescues.next(|head, frame| able.handle(head, frame)) {}
            }
        }
        Ok(())
    }
}

/// Bytes from the IP header on.
fn length(head: &RescueHead, frame: &[u8]) -> usize {
    frame.len().saturating_sub(head.l3_offset.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_a_budget_per_second() {
        let desk = Desk::default();
        let granted = |now| (0..10).filter(|_| desk.may_tell(now, 3)).count();
        assert_eq!(granted(5_000_000_000), 3);
        assert_eq!(granted(5_999_999_999), 0);
        assert_eq!(granted(6_000_000_000), 3);
        assert!(!desk.may_tell(6_000_000_001, 0));
    }
}
