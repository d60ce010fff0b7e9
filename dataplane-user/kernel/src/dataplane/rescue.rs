//! The packets that the kernel hands over to be rescued. The kernel does so only while a lease holds.
use std::{os::fd::AsFd as _, time::Duration};

use aya::{
    Ebpf,
    maps::{Array, Map, MapData, MapError, RingBuf},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use nodefence_common::{RescueHead, rescue_budget};

use super::{error::Error, names};

/// The packets to rescue. The calls block, so use a thread of its own. The thread that renews the lease must be the one that takes the
/// packets.
pub struct Rescues {
    ring: RingBuf<MapData>,
    until: Array<MapData, u64>,
    budget: Array<MapData, u64>,
}

impl Rescues {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        fn map<T: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, Error> {
            let map = ebpf.take_map(name).ok_or(Error::Missing { kind: "map", name })?;
            T::try_from(map).map_err(Error::map(name))
        }
        Ok(Self {
            ring: map(ebpf, names::RESCUE)?,
            until: map(ebpf, names::RESCUE_UNTIL)?,
            budget: map(ebpf, names::RESCUE_BUDGET)?,
        })
    }

    /// Makes the kernel hand packets over until `until` (CLOCK_MONOTONIC ns), which may be in the past.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn lease(&mut self, until: u64) -> Result<(), Error> {
        self.until.set(0, &until, 0).map_err(Error::map(names::RESCUE_UNTIL))
    }

    /// How many packets the kernel has wanted to hand over so far.
    ///
    /// # Errors
    /// Fails if the map cannot be read.
    pub fn asked(&self) -> Result<u64, Error> {
        self.budget.get(&rescue_budget::ASKED, 0).map_err(Error::map(names::RESCUE_BUDGET))
    }

    /// Lets the kernel hand packets over until [`asked`](Self::asked) reaches `up_to`.
    ///
    /// # Errors
    /// Fails if the map cannot be written.
    pub fn allow(&mut self, up_to: u64) -> Result<(), Error> {
        self.budget.set(rescue_budget::ALLOWED, &up_to, 0).map_err(Error::map(names::RESCUE_BUDGET))
    }

    /// Hands the head and the frame of the next packet to `each`. Returns `false` if there is no packet.
    pub fn next(&mut self, each: impl FnOnce(&RescueHead, &[u8])) -> bool {
        // The map is this object's alone, so every packet has this version's layout.
        let Some(record) = self.ring.next() else { return false };
        if let Some((head, frame)) = RescueHead::from_bytes(&record) {
            each(&head, frame);
        }
        true
    }

    /// Waits until there is a packet, for `limit` at most.
    ///
    /// # Errors
    /// Fails if poll(2) on the ring buffer fails.
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.ring.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(Error::call("wait on the packets to rescue")(e.into())),
        }
    }
}
