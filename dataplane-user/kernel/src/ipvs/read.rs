use std::{io, net::SocketAddr, path::Path};

use netlink_sys::protocols::NETLINK_GENERIC;

use super::{
    Destination, Error, Service, ServiceKey,
    codec::{self, Request},
};
use crate::netlink::{Broken, Channel};

/// Exists, in each network namespace, where IPVS is loaded. Asking generic netlink for the family by name may load it, on a node whose
/// kube-proxy uses something else.
const LOADED: &str = "/proc/thread-self/net/ip_vs";
/// How often a list that the kernel broke off, or that changed while it was read, is begun anew.
const MAX_ATTEMPTS: usize = 5;
const SERVICES: &str = "list of services";
const DESTINATIONS: &str = "list of destinations";

/// Whether the kernel has IPVS loaded, as seen from the calling thread's network namespace.
pub fn is_loaded() -> bool {
    Path::new(LOADED).exists()
}

/// What a list of the kernel's had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed<T> {
    /// Each once, in order of their keys, where nothing else is said.
    pub items: Vec<T>,
    /// Answers that could not be read.
    pub malformed: usize,
    /// The list changed each time while it was read: something may be missing, or be gone already.
    pub incomplete: bool,
}

/// What the kernel lists of each key once.
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
/// After [`Error::NotLoaded`] open another one: a module that is loaded again gets another number.
pub struct Ipvs {
    pub(super) channel: Channel,
    /// The family's number.
    pub(super) family: u16,
}

impl Ipvs {
    /// Opens the socket in the caller's network namespace, and sees whether IPVS answers.
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

    /// One service; `None` where there is no such.
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

    /// What tells the services from each other, as the kernel lists them: in no order, and now and then one more than once. It takes much less than
    /// [`Self::services`] does.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn keys(&mut self) -> Result<Listed<ServiceKey>, Error> {
        let listed = self.list(Request::Services, SERVICES, codec::parse_service_key)?;
        // Of several readings. Else it costs more than it saves.
        Ok(if listed.incomplete { in_order(listed) } else { listed })
    }

    /// The destinations of one service; none where there is no such service.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, Error> {
        let parse = |payload: &[u8]| codec::parse_destination(payload, key.family());
        self.list(Request::Destinations(key), DESTINATIONS, parse).map(in_order)
    }

    /// Whether a service may have a destination whose address and port `is` takes: false only where all of them were read, at one time, and none is.
    /// It takes much less than [`Self::destinations`] does.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn may_have(&mut self, key: &ServiceKey, is: impl Fn(SocketAddr) -> bool) -> Result<bool, Error> {
        let bytes = Request::Destinations(key).encode(self.family, self.channel.next_sequence());
        let (mut may, family) = (false, key.family());
        let read = self.channel.exchange(&bytes, |_, payload| {
            may = may || codec::parse_destination_address(payload, family).is_none_or(&is);
        });
        match read {
            // What came in pieces may have changed in between.
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

    /// The kernel walks its table in pieces of up to 32 KiB and remembers only how far it came, so that an item can be passed over
    /// or told twice where others come and go in between (`ip_vs_genl_dump_services`, ip_vs_ctl.c; it does not mark such
    /// lists as interrupted, and before Linux 7.1 the services of other network namespaces count too). Therefore a list of
    /// more than one piece is read until two readings in a row agree on the keys, in the order that the kernel has them in. In
    /// that order they are given, what the latest reading had before what earlier ones had.
    fn list<T: Keyed>(
        &mut self,
        request: Request<'_>,
        name: &'static str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Listed<T>, Error> {
        let (mut all, mut last): (Vec<T>, Option<Vec<T>>) = (Vec::new(), None);
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

/// Each once, of several with one key the first, in order of their keys.
pub(super) fn tidy<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K) {
    if items.is_sorted_by(|a, b| key(a) > key(b)) {
        // The kernel lists the destination that was added last first.
        items.reverse();
    } else {
        items.sort_by_key(&key);
        items.dedup_by(|a, b| key(a) == key(b));
    }
}

/// What a failed exchange means.
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
