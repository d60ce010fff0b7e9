//! Packets of clients that kube-proxy keeps at one endpoint. What it keeps has to be emptied first, which in nftables mode waits for whoever changes
//! its rules: one mutex for each network namespace is held through a whole transaction (`nf_tables_valid_genid`, net/netfilter/nf_tables_api.c). So
//! they have a thread of their own, and whoever renews the lease waits for nobody.
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use nodefence_common::RescueHead;

use super::{
    length,
    packets::{Helper, Keeping},
};
use crate::{
    agent::core::{Core, precedence},
    proxy,
    rescue::Fate,
};

/// How many wait at most: 2 MiB.
const MOST: usize = 1024;

/// A packet as it was handed over.
pub(super) type Packet = (RescueHead, Vec<u8>);

/// The thread.
pub(super) struct Lane {
    pub(super) packets: SyncSender<Packet>,
    thread: JoinHandle<()>,
}

impl Lane {
    /// Starts it in the calling thread's network namespace.
    pub(super) fn start(core: &Arc<Core>) -> std::io::Result<Self> {
        let (packets, from) = sync_channel(MOST);
        let core = Arc::clone(core);
        let thread = std::thread::Builder::new().name("rescue-kept".into()).spawn(move || {
            let _or_end = core.or_end();
            precedence();
            run(&core, &from);
        })?;
        Ok(Self { packets, thread })
    }

    /// Ends it once it has seen to what it was given; nobody else may have a sender by then.
    pub(super) fn end(self) {
        drop(self.packets);
        let _panicked = self.thread.join();
    }
}

fn run(core: &Arc<Core>, packets: &Receiver<Packet>) {
    let mut helper: Option<Helper> = None;
    for (head, frame) in packets {
        if helper.as_ref().is_none_or(|helper| helper.broken) {
            let open = Helper::open(Arc::clone(core), Keeping::Empty(proxy::Forget::default()));
            helper =
                open.inspect_err(|error| tracing::warn!("a packet could not be rescued: {error:#}")).ok();
        }
        match &mut helper {
            Some(able) => {
                able.look();
                able.handle(&head, &frame);
            }
            None => core.rescue.tally.add(Fate::NotPutIn, length(&head, &frame)),
        }
    }
}
