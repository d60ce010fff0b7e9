//! Rescues packets of clients with session affinity. The affinity must be deleted from kube-proxy's tables first. In nftables mode the deletion
//! waits for other programs that change rules: one mutex for each network namespace is held through a whole transaction
//! (`nf_tables_valid_genid`, net/netfilter/nf_tables_api.c). So a thread of its own handles these packets, and the thread that renews the
//! lease never waits. Each transaction also makes other transactions in preparation begin anew, kube-proxy's too. So transactions are at
//! least [`PACE`] apart, and each one is for all packets that wait.
use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    handed::{AGAIN, Packet, length},
    packets::{Helper, RescueContext, Sticky},
    refuse::refuse,
};
use crate::{
    agent::{
        chain::chain,
        threads::{Crew, Priority},
    },
    proxy,
    rescue::Fate,
};

/// How many packets wait at most: 2 MiB.
const MOST: usize = 1024;

/// The least time between two transactions.
const PACE: Duration = Duration::from_millis(50);

/// The thread frees its memory after this long without a packet.
const IDLE: Duration = Duration::from_secs(10);

/// The thread `rescue-sticky`.
pub(super) struct Lane {
    pub(super) packets: SyncSender<Packet>,
    thread: JoinHandle<()>,
}

impl Lane {
    /// Starts the thread in the calling thread's network namespace.
    pub(super) fn start(context: &RescueContext, crew: &Crew) -> std::io::Result<Self> {
        let (packets, from) = sync_channel(MOST);
        let context = context.clone();
        let thread = crew.hand("rescue-sticky", Priority::First, move || run(&context, &from))?;
        Ok(Self { packets, thread })
    }

    /// Ends the thread once it has handled its packets. No other sender of packets may exist by then.
    pub(super) fn end(self) {
        drop(self.packets);
        let _panicked = self.thread.join();
    }
}

fn run(context: &RescueContext, packets: &Receiver<Packet>) {
    let mut helper: Option<Helper> = None;
    let mut tried: Option<Instant> = None;
    let mut committed: Option<Instant> = None;
    loop {
        let first = match packets.recv_timeout(IDLE) {
            Ok(packet) => packet,
            Err(RecvTimeoutError::Timeout) => {
                // The helper keeps the view of its last packet in memory.
                helper = None;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        std::thread::sleep(committed.map_or(Duration::ZERO, |at| PACE.saturating_sub(at.elapsed())));
        let mut together = vec![first];
        together.extend(packets.try_iter().take(MOST));
        helper = helper.filter(|helper| !helper.broken);
        if helper.is_none() && tried.is_none_or(|at| at.elapsed() >= AGAIN) {
            helper = match Helper::open(context.clone(), Sticky::Forget(proxy::Forget::default())) {
                Ok(ready) => Some(ready),
                Err(error) => {
                    tried = Some(Instant::now());
                    tracing::warn!(
                        event = "sticky-rescue-unavailable",
                        "packets of clients with affinity cannot be rescued: {}",
                        chain(error)
                    );
                    None
                }
            };
        }
        if let Some(able) = &mut helper {
            if rescue(context, able, together) {
                committed = Some(Instant::now());
            }
        } else {
            together.iter().for_each(|packet| refused(context, packet, Fate::NotSent));
        }
    }
}

/// Rescues these packets. Returns whether that took a transaction of nftables.
fn rescue(context: &RescueContext, helper: &mut Helper, mut packets: Vec<Packet>) -> bool {
    helper.look();
    packets.retain(|(head, frame)| helper.comes_again(head, frame));
    if packets.is_empty() {
        return false;
    }
    match helper.forget() {
        Ok(committed) => {
            // The transaction may have taken long, so entries, flags and the clock are read anew.
            helper.look();
            for packet in &packets {
                if helper.broken {
                    refused(context, packet, Fate::NotSent);
                } else {
                    helper.go_on(&packet.0, &packet.1);
                }
            }
            committed
        }
        Err(error) => {
            tracing::debug!(event = "affinity-not-forgotten", %error, "the affinity of clients could not be deleted; their packets are refused");
            packets.iter().for_each(|packet| refused(context, packet, Fate::Affinity));
            true
        }
    }
}

fn refused(context: &RescueContext, (head, frame): &Packet, why: Fate) {
    let fate = refuse(&context.injector, head, frame, why);
    context.state.tally.add(fate, length(head, frame));
}
