use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> usize {
        let mut sent = 0;
        for same_device in frames.chunk_by(|a, b| a.0 == b.0) {
            let Some((ifindex, _)) = same_device.first() else { continue };
            let report = self.injector.inject_all(*ifindex, same_device.iter().map(|(_, frame)| frame));
            if let Some(error) = report.first_error {
                tracing::warn!(%error, failed = report.failed, "questions to idle clients were not injected");
            }
            sent += usize::try_from(report.sent).unwrap_or(usize::MAX);
        }
        sent
    }

    fn go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}
