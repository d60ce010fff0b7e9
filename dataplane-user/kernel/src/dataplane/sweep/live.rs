use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use nodefence_common::Addr;

use super::{Entry, Surroundings};
use crate::dataplane::{Error, Injector, Interface, LinkLayer, interfaces, route::Lookup};

/// The surroundings of a running agent. To be used on a thread in the network namespace it was made in.
pub struct Live {
    injector: Injector,
    lookup: Lookup,
    attached: Vec<Interface>,
    stop: Arc<AtomicBool>,
}

/// Threads at most, the caller's included.
const MAX_THREADS: usize = 4;
/// Frames for which a thread is worth its start.
const LEAST_SHARE: usize = 128;

impl Live {
    /// Questions enter by the device that the route to the backend uses, where that is one of `attached` (indexes). The sweep ends
    /// early once `stop` is true.
    ///
    /// # Errors
    /// Where routes or devices cannot be looked up.
    pub fn new(injector: Injector, attached: &HashSet<u32>, stop: Arc<AtomicBool>) -> Result<Self, Error> {
        let mut devices = interfaces::list()?;
        devices.retain(|device| attached.contains(&device.ifindex));
        Ok(Self { injector, lookup: Lookup::open()?, attached: devices, stop })
    }
}

impl Surroundings for Live {
    fn entry(&mut self, backend: Addr) -> Option<Entry> {
        let route = match self.lookup.route(backend.into()) {
            Ok(route) => route?,
            Err(error) => {
                tracing::warn!(%error, backend = %std::net::IpAddr::from(backend), "no route for a question");
                return None;
            }
        };
        let device = self.attached.iter().find(|device| device.ifindex == route.ifindex && !route.local)?;
        Some(Entry {
            ifindex: device.ifindex,
            mac: device.mac.filter(|_| device.link_layer() == Ok(LinkLayer::L2)),
        })
    }

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<bool> {
        let (taken, error) = inject(&self.injector, frames);
        if let Some(error) = error {
            let failed = taken.iter().filter(|taken| !**taken).count();
            tracing::warn!(%error, failed, "questions to idle clients were not injected");
        }
        taken
    }

    fn go_on(&self, _node: usize) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Injects frames, spread over the processors: a question is worked off, as far as the wire or the client's socket and often
/// back, by the thread that injects it. For each whether it was taken, and the first refusal.
pub fn inject(injector: &Injector, frames: &[(u32, Vec<u8>)]) -> (Vec<bool>, Option<Error>) {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(MAX_THREADS));
    let share = frames.len().div_ceil(threads).max(LEAST_SHARE);
    thread::scope(|scope| {
        let mut shares = frames.chunks(share);
        let own = shares.next().unwrap_or_default();
        let others: Vec<_> = shares.map(|share| scope.spawn(|| inject_share(injector, share))).collect();
        let (mut taken, mut first) = inject_share(injector, own);
        for other in others {
            let (more, error) = other.join().unwrap_or_default();
            taken.extend(more);
            first = first.or(error);
        }
        // A thread that fell has put in nobody knows what.
        taken.resize(frames.len(), false);
        (taken, first)
    })
}

fn inject_share(injector: &Injector, frames: &[(u32, Vec<u8>)]) -> (Vec<bool>, Option<Error>) {
    let mut first = None;
    let put_in = |(ifindex, frame): &(u32, Vec<u8>)| match injector.inject(*ifindex, frame) {
        Ok(()) => true,
        Err(error) => {
            first.get_or_insert(error);
            false
        }
    };
    let taken = frames.iter().map(put_in).collect();
    (taken, first)
}
