use std::{io, net::SocketAddr, path::Path};

use netlink_sys::protocols::NETLINK_GENERIC;

use super::{
    Destination, Error, Service, ServiceKey,
    codec::{self, Request},
};
use crate::netlink::{Broken, Channel};

/// A file that each network namespace has while IPVS is loaded. A look at this file never loads IPVS. A request to generic
/// netlink for the family by name may load it, on a node whose kube-proxy does not use IPVS.
const LOADED: &str = "/proc/thread-self/net/ip_vs";
/// How often a list is read at most, where the kernel breaks it off or it changes while it is read.
const MAX_ATTEMPTS: usize = 5;
const SERVICES: &str = "list of services";
const DESTINATIONS: &str = "list of destinations";

/// Whether the kernel has IPVS loaded, as seen from the calling thread's network namespace.
pub fn is_loaded() -> bool {
    Path::new(LOADED).exists()
}

/// The content of a list of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed<T> {
    /// The items, each once and in the order of their keys, unless the method that lists them says otherwise.
    pub items: Vec<T>,
    /// Number of answers that could not be read.
    pub malformed: usize,
    /// The list changed each time while it was read: it may lack items, and have items that are gone already.
    pub incomplete: bool,
}

/// An item that the kernel lists once for each key.
trait Keyed {
    type Key: Ord;

    fn key(&self) -> Self::Key;
}

impl Keyed for Service {
    type Key = ServiceKey;

    fn key(&self) -> ServiceKey {
        self.key
    }
}

impl Keyed for ServiceKey {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

impl Keyed for Destination {
    type Key = SocketAddr;

    fn key(&self) -> SocketAddr {
        self.address
    }
}

/// A socket to the IPVS tables of the network namespace that it was opened in. Blocking: keep it off async threads.
///
/// After [`Error::NotLoaded`] open another socket: the family of a module that is loaded again gets another number.
pub struct Ipvs {
    pub(super) channel: Channel,
    /// The number that the kernel gave to the IPVS family.
    pub(super) family: u16,
}

impl Ipvs {
    /// Opens the socket in the caller's network namespace, and checks that IPVS answers.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotLoaded`], [`Error::Permission`], [`Error::Io`].
    pub fn open() -> Result<Self, Error> {
        if !is_loaded() {
            return Err(Error::NotLoaded);
        }
        let mut channel = Channel::open(NETLINK_GENERIC).map_err(Error::Open)?;
        let request = codec::family_request(channel.next_sequence());
        let mut family = None;
        channel
            .exchange(&request, |_, payload| family = family.or(codec::parse_family_number(payload)))
            .map_err(|broken| failed("family", broken))?;
        let family = family.ok_or(Error::Malformed { request: "family" })?;
        let mut this = Self { channel, family };
        this.one(Request::GetInfo, "info", |_| Some(()))?;
        Ok(this)
    }

    /// One service; `None` where it does not exist.
    ///
    /// # Errors
    /// As [`Self::open`], and [`Error::Malformed`].
    pub fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, Error> {
        match self.one(Request::GetService(key), "service", codec::parse_service) {
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            other => other.map(Some),
        }
    }

    /// All services.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn services(&mut self) -> Result<Listed<Service>, Error> {
        self.list(Request::Services, SERVICES, codec::parse_service).map(in_order)
    }

    /// The keys of all services, as the kernel lists them: in no order, and sometimes one key more than once. This is much
    /// cheaper than [`Self::services`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn keys(&mut self) -> Result<Listed<ServiceKey>, Error> {
        let listed = self.list(Request::Services, SERVICES, codec::parse_service_key)?;
        // Only a list of several readings is sorted, to have each key once. For one reading that costs more than it saves.
        Ok(if listed.incomplete { in_order(listed) } else { listed })
    }

    /// The destinations of one service; none where the service does not exist.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, Error> {
        let parse = |payload: &[u8]| codec::parse_destination(payload, key.family());
        self.list(Request::Destinations(key), DESTINATIONS, parse).map(in_order)
    }

    /// Whether a service may have a destination whose address and port `is` accepts. False only where all destinations were
    /// read at one time and `is` accepted none. This is much cheaper than [`Self::destinations`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn may_have(&mut self, key: &ServiceKey, is: impl Fn(SocketAddr) -> bool) -> Result<bool, Error> {
        let bytes = Request::Destinations(key).encode(self.family, self.channel.next_sequence());
        let mut may = false;
        let family = key.family();
        let read = self.channel.exchange(&bytes, |_, payload| {
            may = may || codec::parse_destination_address(payload, family).is_none_or(&is);
        });
        match read {
            // The list may have changed between two pieces.
            Ok(pieces) => Ok(may || pieces > 1),
            Err(Broken::Retry) => Ok(true),
            Err(broken) => Err(failed(DESTINATIONS, broken)),
        }
    }

    fn one<T>(
        &mut self,
        request: Request<'_>,
        name: &'static str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, Error> {
        let family = self.family;
        let answer = self.channel.again(MAX_ATTEMPTS, |channel| {
            let mut answer = None;
            let bytes = request.encode(family, channel.next_sequence());
            channel.exchange(&bytes, |_, payload| answer = parse(payload))?;
            Ok(answer)
        });
        answer.map_err(|broken| failed(name, broken))?.ok_or(Error::Malformed { request: name })
    }

    /// Reads a list until two readings agree.
    ///
    /// The kernel lists its table in pieces of up to 32 KiB and remembers only how many items it has passed. Where items come
    /// and go between two pieces, another item may be left out or listed twice (`ip_vs_genl_dump_services`, ip_vs_ctl.c). The
    /// kernel does not mark such a list as interrupted. Before Linux 7.1 it also counts the services of other network
    /// namespaces. Therefore a list of more than one piece is read until two readings in a row have the same keys in the same
    /// order.
    ///
    /// Items stay in the kernel's order. Where no two readings agree, items of later readings come before those of earlier
    /// ones.
    fn list<T: Keyed>(
        &mut self,
        request: Request<'_>,
        name: &'static str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Listed<T>, Error> {
        let mut all: Vec<T> = Vec::new();
        let mut last: Option<Vec<T>> = None;
        let mut malformed = 0;
        for _ in 0..MAX_ATTEMPTS {
            let bytes = request.encode(self.family, self.channel.next_sequence());
            let mut items = Vec::with_capacity(last.as_ref().map_or(0, Vec::len));
            malformed = 0;
            let read = self.channel.exchange(&bytes, |_, payload| match parse(payload) {
                Some(item) => items.push(item),
                None => malformed += 1,
            });
            let pieces = match read {
                Ok(pieces) => Some(pieces),
                Err(Broken::Retry) => None,
                Err(broken) => return Err(failed(name, broken)),
            };
            let agrees = |last: &Vec<T>| last.iter().map(T::key).eq(items.iter().map(T::key));
            if pieces.is_some_and(|pieces| pieces <= 1 || last.as_ref().is_some_and(agrees)) {
                return Ok(Listed { items, malformed, incomplete: false });
            }
            all.extend(last.replace(items).unwrap_or_default());
        }
        let mut items = last.unwrap_or_default();
        items.extend(all.into_iter().rev());
        Ok(Listed { items, malformed, incomplete: true })
    }
}

fn in_order<T: Keyed>(mut listed: Listed<T>) -> Listed<T> {
    tidy(&mut listed.items, T::key);
    listed
}

/// Sorts items by their keys. Of several items with one key the first stays.
pub(super) fn tidy<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K) {
    if items.is_sorted_by(|a, b| key(a) > key(b)) {
        // The kernel lists first the destination that was added last.
        items.reverse();
    } else {
        items.sort_by_key(&key);
        items.dedup_by(|a, b| key(a) == key(b));
    }
}

/// The error of a failed exchange.
pub(super) fn failed(request: &'static str, broken: Broken) -> Error {
    match broken {
        Broken::Retry => Error::Io { request, source: io::Error::from_raw_os_error(libc::EINTR) },
        Broken::Io(source) => Error::Io { request, source },
        Broken::Refused(libc::EPERM | libc::EACCES) => Error::Permission,
        // genl_rcv_msg, ctrl_getfamily (genetlink.c): no family of that number or name.
        Broken::Refused(libc::ENOENT) => Error::NotLoaded,
        Broken::Refused(other) => Error::Io { request, source: io::Error::from_raw_os_error(other) },
    }
}
