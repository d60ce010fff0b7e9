//! The ring buffer as a stream of records.
#![expect(unsafe_code, reason = "registering a descriptor with tokio")]
use aya::maps::{Map, MapData, RingBuf};
use nodefence_common::Event;
use tokio::io::{Interest, unix::AsyncFd};

use super::{error::Error, names};

/// The records that the kernel programs write. There must be one reader: two streams would share the records between them.
pub struct EventStream {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl EventStream {
    /// Must be called in a tokio runtime.
    pub(super) fn new(events: &Map) -> Result<Self, Error> {
        let wrap = Error::map(names::EVENTS);
        let Map::RingBuf(data) = events else {
            return Err(Error::Missing { kind: "ring buffer", name: names::EVENTS });
        };
        let fd = std::os::fd::AsFd::as_fd(data.fd()).try_clone_to_owned();
        let fd = fd.map_err(Error::call("open the events map once more"))?;
        let map = MapData::from_fd(fd).and_then(Map::from_map_data).map_err(&wrap)?;
        let ring = RingBuf::try_from(map).map_err(&wrap)?;
        // SAFETY: the ring owns its descriptor, and gives the same one until it is dropped. It is dropped together with `AsyncFd`.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        let ring = ring.map_err(|error| Error::call("wait on the events map")(error.into()))?;
        Ok(Self { ring })
    }

    /// The next record. A record of another version's size is skipped.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = take(self.ring.get_mut()) {
                return Ok(event);
            }
            let mut guard = self.ring.readable_mut().await.map_err(Error::call("wait on the events map"))?;
            match take(guard.get_inner_mut()) {
                Some(event) => return Ok(event),
                None => guard.clear_ready(),
            }
        }
    }
}

fn take(ring: &mut RingBuf<MapData>) -> Option<Event> {
    while let Some(item) = ring.next() {
        if let Some(event) = Event::from_bytes(&item) {
            return Some(event);
        }
    }
    None
}
