//! The packets that the kernel hands over to be rescued, and the lease that makes it do so.
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

/// The packets to rescue. Blocking, for a thread of its own: the thread that renews the lease must be the one that takes the packets.
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

    /// Has the kernel hand packets over until then (CLOCK_MONOTONIC ns), be it in the past.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn lease(&mut self, until: u64) -> Result<(), Error> {
        self.until.set(0, &until, 0).map_err(Error::map(names::RESCUE_UNTIL))
    }

    /// How many packets the kernel was about to hand over so far.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn asked(&self) -> Result<u64, Error> {
        self.budget.get(&rescue_budget::ASKED, 0).map_err(Error::map(names::RESCUE_BUDGET))
    }

    /// Has the kernel hand over no more than so many of those that it [asks](Self::asked) for.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn allow(&mut self, up_to: u64) -> Result<(), Error> {
        self.budget.set(rescue_budget::ALLOWED, &up_to, 0).map_err(Error::map(names::RESCUE_BUDGET))
    }

    /// Hands the next packet to `each`, head and frame. `false` where there is none.
    pub fn next(&mut self, each: impl FnOnce(&RescueHead, &[u8])) -> bool {
        // A packet in another version's layout cannot come: the map is this object's alone.
        let Some(record) = self.ring.next() else { return false };
        if let Some((head, frame)) = RescueHead::from_bytes(&record) {
            each(&head, frame);
        }
        true
    }

    /// Waits until there is a packet, `limit` at most.
    ///
    /// # Errors
    /// Where the ring buffer cannot be waited on.
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.ring.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(Error::call("wait on the packets to rescue")(e.into())),
        }
    }
}
