//! The addresses that injected frames must have.
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::dataplane::{LinkLayer, interfaces};

/// How long a device's address counts as current.
const AGE: Duration = Duration::from_secs(10);
/// How soon devices are listed again for one that is not among them.
const AGAIN: Duration = Duration::from_millis(200);

/// The devices' own link-layer addresses.
#[derive(Default)]
pub(super) struct Devices {
    known: HashMap<u32, [u8; 6]>,
    listed: Option<Instant>,
}

impl Devices {
    /// The address by which the device takes a frame as its own; `None` for a device into which frames cannot be injected.
    pub(super) fn address(&mut self, ifindex: u32) -> Option<[u8; 6]> {
        let age = self.listed.map(|at| at.elapsed());
        let stale = age.is_none_or(|age| age > AGE);
        if stale || (!self.known.contains_key(&ifindex) && age.is_some_and(|age| age > AGAIN)) {
            self.listed = Some(Instant::now());
            match interfaces::list() {
                Ok(all) => {
                    let address = |device: &interfaces::Interface| match device.link_layer() {
                        Ok(LinkLayer::L2) => device.mac,
                        // The injector takes the header off.
                        Ok(LinkLayer::L3) => Some([0; 6]),
                        Err(_) => None,
                    };
                    let known = all.iter().filter_map(|device| Some((device.ifindex, address(device)?)));
                    self.known = known.collect();
                }
                Err(error) => tracing::debug!(
                    event = "devices-not-listed",
                    %error,
                    "the devices cannot be listed"
                ),
            }
        }
        self.known.get(&ifindex).copied()
    }
}
