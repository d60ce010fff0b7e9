//! The thread `rescue`. It takes the packets that the kernel hands over, and has the kernel hand over more only as long as it takes them.
use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nodefence_common::RESCUE_LEASE_NS;

use super::{
    chain::chain,
    sight::Sight,
    threads::{Crew, Priority},
    timed::processor_time,
};
use crate::{
    dataplane::Rescues,
    flags::monotonic_ns,
    ipvs,
    plan::{Answer, Mode},
    proxy,
    rescue::{Fate, budget::Budget},
};

mod devices;
mod handed;
mod packets;
mod refuse;
mod sticky;
mod waiting_packets;

use handed::{AGAIN, length};
use packets::{Helper, Sticky};
use sticky::Lane;

pub(super) use packets::RescueContext;

/// How often the lease is renewed while nothing comes.
const BEAT: Duration = Duration::from_millis(50);
/// How often to look whether what packets wait for has been done.
const LOOK: Duration = Duration::from_millis(2);
/// How many packets are taken before the lease is looked at again.
const BATCH: usize = 256;
/// How often (ns) the budget is looked at while packets come.
const BUDGET: u64 = 5_000_000;

/// The thread `rescue`. Dropping this value ends the thread; packets are refused from then on.
pub(super) struct Rescue {
    stop: Arc<AtomicBool>,
    crew: Crew,
    thread: Option<JoinHandle<()>>,
}

impl Rescue {
    /// Starts the thread in the calling thread's network namespace.
    pub(super) fn start(context: RescueContext, rescues: Rescues, crew: &Crew) -> std::io::Result<Self> {
        context.state.set_idle(Some("about to begin".to_owned()));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let lanes = crew.clone();
        // Without this thread the lease lapses: packets that would be rescued are refused.
        let work = move || (Worker { context, rescues }).run(&stopped, &lanes);
        let thread = crew.thread("rescue", Priority::First, work)?;
        Ok(Self { stop, crew: crew.clone(), thread: Some(thread) })
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        // The agent ends with this thread.
        self.crew.end();
        self.stop.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Why the agent is not to rescue at all, by its settings, its mode, the view and how kube-proxy forwards.
fn unwanted(context: &RescueContext) -> Option<Cow<'static, str>> {
    let Sight { settings, .. } = &context.sight;
    let world = context.sight.world();
    if world.held.mode != Mode::Enforce {
        return Some("observe mode, nothing is cut".into());
    }
    if settings.answer != Answer::Refuse {
        return Some("the answer is drop".into());
    }
    if world.view.services.is_none() {
        return Some(format!("{} says nothing of Services", world.view.source).into());
    }
    let why = match world.proxy.mode {
        Some(proxy::Mode::Ipvs) if !context.drain.progress().flushes => Some(if ipvs::is_loaded() {
            "net.ipv4.vs.expire_nodest_conn is 0: IPVS holds on to connections"
        } else {
            "kube-proxy is in IPVS mode, but IPVS is not loaded"
        }),
        Some(_) => None,
        None if settings.proxy == proxy::ProxyChoice::None => {
            Some("how kube-proxy forwards is not to be looked at (`--proxy none`)")
        }
        None => Some("how kube-proxy forwards is not known; say it with `--proxy nftables|iptables|ipvs`"),
    };
    why.map(Cow::Borrowed)
}

struct Worker {
    context: RescueContext,
    rescues: Rescues,
}

impl Worker {
    fn run(mut self, stop: &AtomicBool, crew: &Crew) -> anyhow::Result<()> {
        let lane = Lane::start(&self.context, crew)?;
        let outcome = self.take_packets(stop, &lane);
        lane.end();
        outcome
    }

    fn take_packets(&mut self, stop: &AtomicBool, lane: &Lane) -> anyhow::Result<()> {
        let state = Arc::clone(&self.context.state);
        let mut helper: Option<Helper> = None;
        let mut tried: Option<Instant> = None;
        let mut leased = 0;
        let mut budget = Budget::new(self.context.sight.settings.rescue_per_second);
        let mut looked = 0;
        while !stop.load(Ordering::Relaxed) {
            let unwanted = unwanted(&self.context).map(Cow::into_owned);
            if unwanted.is_none() && helper.is_none() && tried.is_none_or(|at| at.elapsed() >= AGAIN) {
                tried = Some(Instant::now());
                match Helper::open(self.context.clone(), Sticky::HandOn(lane.packets.clone())) {
                    Ok(ready) => helper = Some(ready),
                    Err(error) => state.set_idle(Some(chain(error))),
                }
            }
            let Some(able) = helper.as_mut().filter(|_| unwanted.is_none()) else {
                if leased != 0 {
                    leased = 0;
                    self.rescues.lease(0)?;
                }
                if unwanted.is_some() {
                    state.set_idle(unwanted);
                }
                // Packets that were handed over before the lease ended are not left to the next thread.
                while self.rescues.next(|head, frame| state.tally.add(Fate::Late, length(head, frame))) {}
                std::thread::sleep(BEAT);
                continue;
            };
            let now = monotonic_ns();
            if leased < now + RESCUE_LEASE_NS * 3 / 4 {
                leased = now + RESCUE_LEASE_NS;
                self.rescues.lease(leased)?;
                state.set_idle(None);
            }
            if now >= looked + BUDGET {
                looked = now;
                let busy = u64::try_from(processor_time().as_nanos()).unwrap_or(u64::MAX);
                let allowed = budget.look(now, self.rescues.asked()?, busy);
                self.rescues.allow(allowed.up_to)?;
                state.add_beyond(allowed.beyond);
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
            // Packets are left that were handed over before the lease ended, or by programs that had read the lease by then.
            for pause in [Duration::ZERO, LOOK] {
                std::thread::sleep(pause);
                able.look();
                while self.rescues.next(|head, frame| able.handle(head, frame)) {}
            }
        }
        Ok(())
    }
}
