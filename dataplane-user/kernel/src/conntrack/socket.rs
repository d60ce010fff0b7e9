use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    Error, Family, Flow, TCP, Tuple, Zone,
    codec::{self, Direction},
};
use crate::netlink::{Broken, Channel};

/// How often a dump is attempted at most, where the kernel breaks it off.
pub(super) const MAX_ATTEMPTS: usize = 5;
/// Number of requests that are sent before their acknowledgements are read. So many acknowledgements fit the socket's receive
/// buffer.
pub(super) const BATCH: usize = 64;
/// Number of entries that are looked up before the answers are read. An answer is some five times as long as an acknowledgement.
const LOOKED_UP: usize = 32;

/// The outcome of a dump.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// The entries that the filter kept, each once.
    pub flows: Vec<Flow>,
    /// Number of entries read, kept or not.
    pub seen: usize,
    /// Number of entries that could not be read.
    pub malformed: usize,
    /// The kernel broke the dump off each time: entries may be missing.
    pub incomplete: bool,
    /// How often the kernel went through its table for this dump.
    pub attempts: usize,
}

/// The outcomes of requests, each about one entry or filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    /// Requests that were carried out.
    pub changed: usize,
    /// Entries that were gone already.
    pub gone: usize,
    /// Requests that the kernel would not carry out.
    pub refused: usize,
}

/// A netlink socket to the conntrack table of the network namespace that it was opened in. Blocking: keep it off async threads.
pub struct Conntrack {
    pub(super) channel: Channel,
    /// Entries of other zones are neither listed nor found. `None`: no zone counts as another one.
    pub(super) zone: Option<u16>,
}

impl Conntrack {
    /// Opens the socket in the caller's network namespace, for the entries of this zone (0: the default one) and no others.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(zone: u16) -> Result<Self, Error> {
        Ok(Self { zone: Some(zone), ..Self::open_all_zones()? })
    }

    /// Opens the socket for the entries of all zones: to read them, and for requests that have no zone.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_all_zones() -> Result<Self, Error> {
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER).map_err(Error::Open)?, zone: None })
    }

    /// Lists the entries of one family and of this socket's zone that `keep` wants. Entries are filtered as they stream in; only
    /// kept entries stay in memory.
    ///
    /// A dump that the kernel breaks off (ENOBUFS, `NLM_F_DUMP_INTR`) is begun anew, with five attempts at most.
    ///
    /// # Errors
    /// [`Error::NoConntrack`], [`Error::Permission`], [`Error::Io`].
    pub fn dump(&mut self, family: Family, mut keep: impl FnMut(&Flow) -> bool) -> Result<Dump, Error> {
        Ok(self.dump_past(family, std::slice::from_mut(&mut keep))?.pop().unwrap_or_default())
    }

    /// As [`Self::dump`], for several filters at once: the kernel goes through its table once for all of them.
    ///
    /// # Errors
    /// As [`Self::dump`].
    pub fn dump_past<K: FnMut(&Flow) -> bool>(
        &mut self,
        family: Family,
        keeps: &mut [K],
    ) -> Result<Vec<Dump>, Error> {
        let mut dumps: Vec<Dump> = keeps.iter().map(|_| Dump::default()).collect();
        for attempt in 1..=MAX_ATTEMPTS {
            let done = self.dump_once(family, keeps, &mut dumps);
            for dump in &mut dumps {
                dump.attempts = attempt;
                dump.incomplete = done.is_err();
                // The kernel may list an entry twice: it begins a bucket anew where the entry at which it stopped is gone
                // (`ctnetlink_dump_table`).
                dump.flows
                    .sort_unstable_by(|a, b| a.id.cmp(&b.id).then_with(|| identity(a).cmp(&identity(b))));
                dump.flows.dedup_by_key(|flow| identity(flow));
            }
            match done {
                Ok(()) => break,
                Err(Broken::Retry) => {}
                Err(other) => return Err(fatal("dump", other)),
            }
        }
        Ok(dumps)
    }

    fn dump_once<K: FnMut(&Flow) -> bool>(
        &mut self,
        family: Family,
        keeps: &mut [K],
        dumps: &mut [Dump],
    ) -> Result<(), Broken> {
        let request = codec::dump_request(family, self.channel.next_sequence());
        let zone = self.zone;
        let mut seen = 0;
        let mut malformed = 0;
        let done = each(&mut self.channel, &request, codec::CT_NEW, |body| {
            seen += 1;
            match codec::parse(body) {
                Some(flow) if zone.is_some_and(|zone| !flow.is_in(zone)) => {}
                Some(flow) => {
                    for (keep, dump) in keeps.iter_mut().zip(dumps.iter_mut()) {
                        if keep(&flow) {
                            dump.flows.push(flow);
                        }
                    }
                }
                None => malformed += 1,
            }
        });
        for dump in dumps {
            dump.seen = seen;
            dump.malformed = malformed;
        }
        done
    }

    /// Returns those of these entries that still exist, as they are now. An entry is found by its reply direction and zone, and
    /// must have its id still. This is a lookup of one bucket for each entry, where a dump would go through the whole table.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`].
    pub fn still_there(&mut self, flows: &[Flow]) -> Result<Vec<Flow>, Error> {
        let mut there = Vec::new();
        for batch in flows.chunks(LOOKED_UP) {
            let mut requests = Vec::new();
            for flow in batch {
                requests.extend_from_slice(&codec::entry_request(flow, self.channel.next_sequence()));
            }
            let mut refused = None;
            let answered = self.channel.look_up(&requests, batch.len(), |place, answer| match answer {
                Ok(body) => {
                    let found = codec::parse(body).filter(|found| identity(found) == identity(&batch[place]));
                    there.extend(found);
                }
                Err(libc::ENOENT) => {}
                Err(errno) => refused = Some(errno),
            });
            let failed = |source| Error::Io { request: "lookup", source };
            answered.map_err(failed)?;
            if let Some(errno) = refused {
                return Err(fatal("lookup", Broken::Refused(errno)));
            }
        }
        Ok(there)
    }

    /// The entry with this reply direction, in this socket's zone. A socket without a zone looks in the default zone.
    ///
    /// # Errors
    /// [`Error::NoConntrack`], [`Error::Permission`], [`Error::Io`].
    pub fn by_reply(&mut self, reply: &Tuple) -> Result<Option<Flow>, Error> {
        Ok(self.look_up(reply, Direction::Reply)?.filter(|flow| flow.reply == *reply))
    }

    /// The entry with this original direction, in the zone of [`Self::by_reply`].
    ///
    /// # Errors
    /// As [`Self::by_reply`].
    pub fn by_original(&mut self, original: &Tuple) -> Result<Option<Flow>, Error> {
        Ok(self.look_up(original, Direction::Original)?.filter(|flow| flow.orig == *original))
    }

    /// The kernel looks for the tuple in both directions (`nf_conntrack_find_get`). It compares only the zone of the direction in
    /// which it finds the tuple.
    fn look_up(&mut self, tuple: &Tuple, direction: Direction) -> Result<Option<Flow>, Error> {
        let zone = self.zone.unwrap_or_default();
        let found = self.channel.again(MAX_ATTEMPTS, |channel| {
            let request = codec::lookup_request(tuple, direction, zone, channel.next_sequence());
            let mut found = None;
            each(channel, &request, codec::CT_NEW, |body| found = codec::parse(body))?;
            Ok(found)
        });
        match found {
            Err(Broken::Refused(libc::ENOENT)) => Ok(None),
            Ok(found) => Ok(found.filter(|flow| flow.is_in(zone))),
            Err(broken) => Err(fatal("lookup", broken)),
        }
    }

    /// Lets conntrack accept any sequence number in the reply direction of these flows (`IP_CT_TCP_FLAG_BE_LIBERAL`). So a
    /// challenge with an unknown sequence number is translated on kernels that would call it INVALID. Flows that are not TCP have
    /// no window, and are left out.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`]; entries that cannot be changed are counted.
    pub fn make_all_liberal(&mut self, flows: &[Flow]) -> Result<Answered, Error> {
        let tcp: Vec<Flow> = flows.iter().filter(|flow| flow.orig.protocol == TCP).copied().collect();
        self.send_each("update", &tcp, codec::liberal_request)
    }

    /// Sends one request for each subject, many at a time. `name` is the name of the requests in an error.
    pub(super) fn send_each<T>(
        &mut self,
        name: &'static str,
        subjects: &[T],
        request: impl Fn(&T, u32) -> Vec<u8>,
    ) -> Result<Answered, Error> {
        let mut answered = Answered::default();
        for batch in subjects.chunks(BATCH) {
            let mut requests = Vec::new();
            for subject in batch {
                requests.extend_from_slice(&request(subject, self.channel.next_sequence()));
            }
            let mut forbidden = false;
            self.channel
                .pipeline(&requests, batch.len(), |_, errno| match errno {
                    0 => answered.changed += 1,
                    libc::ENOENT => answered.gone += 1,
                    libc::EPERM => forbidden = true,
                    _ => answered.refused += 1,
                })
                .map_err(|source| Error::Io { request: name, source })?;
            if forbidden {
                return Err(Error::Permission);
            }
        }
        Ok(answered)
    }
}

/// Sends a request and hands over the bodies of all messages of one type that answer it.
pub(super) fn each(
    channel: &mut Channel,
    request: &[u8],
    kind: u16,
    mut body: impl FnMut(&[u8]),
) -> Result<(), Broken> {
    let hand_over = |this, payload: &[u8]| {
        if this == kind {
            body(payload);
        }
    };
    channel.exchange(request, hand_over).map(drop)
}

/// The parts of an entry that stay the same for as long as it lives.
fn identity(flow: &Flow) -> (u32, Tuple, Tuple, Option<Zone>) {
    (flow.id, flow.orig, flow.reply, flow.zone)
}

pub(super) fn fatal(request: &'static str, broken: Broken) -> Error {
    let failed = |source| Error::Io { request, source };
    match broken {
        Broken::Retry => failed(io::Error::from_raw_os_error(libc::EINTR)),
        Broken::Io(source) => failed(source),
        Broken::Refused(libc::EPERM) => Error::Permission,
        // nfnetlink_rcv_msg (nfnetlink.c): the subsystem is not there and could not be loaded.
        Broken::Refused(libc::EINVAL | libc::EOPNOTSUPP) => Error::NoConntrack,
        Broken::Refused(other) => failed(io::Error::from_raw_os_error(other)),
    }
}
