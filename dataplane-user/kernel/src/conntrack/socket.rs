use std::{collections::HashSet, io};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    Error, Family, Flow, TCP, Tuple,
    codec::{self, Direction},
};
use crate::netlink::{Broken, Channel};

/// How often a dump that the kernel broke off is begun anew.
pub(super) const MAX_ATTEMPTS: u32 = 5;
/// Requests sent before their acknowledgements are read; they fit the socket's receive buffer.
pub(super) const BATCH: usize = 64;

/// What a dump found.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// The entries that the filter kept, each once.
    pub flows: Vec<Flow>,
    /// Entries read, kept or not.
    pub seen: usize,
    /// Entries that could not be read.
    pub malformed: usize,
    /// The kernel broke the dump off each time: entries may be missing.
    pub incomplete: bool,
}

/// What came of a request to make flows liberal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Liberal {
    /// Entries changed.
    pub changed: usize,
    /// Entries that were gone by then.
    pub gone: usize,
    /// Entries that the kernel would not change.
    pub refused: usize,
}

/// A netlink socket to the conntrack table of the network namespace that it was opened in. Blocking: keep it off async threads.
pub struct Conntrack {
    pub(super) channel: Channel,
}

impl Conntrack {
    /// Opens the socket in the caller's network namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER).map_err(Error::Open)? })
    }

    /// Lists the entries of one family that `keep` wants. Entries are filtered as they stream in; only kept ones stay in memory.
    ///
    /// A dump that the kernel breaks off (ENOBUFS, `NLM_F_DUMP_INTR`) is begun anew, five times at most.
    ///
    /// # Errors
    /// [`Error::NoConntrack`], [`Error::Permission`], [`Error::Io`].
    pub fn dump(&mut self, family: Family, mut keep: impl FnMut(&Flow) -> bool) -> Result<Dump, Error> {
        let mut dump = Dump::default();
        let mut known = HashSet::new();
        for _ in 0..MAX_ATTEMPTS {
            // What an earlier attempt kept is kept: a flow that it saw and that is gone by now does no harm.
            (dump.seen, dump.malformed) = (0, 0);
            match self.dump_once(family, &mut keep, &mut dump, &mut known) {
                Ok(()) => {
                    dump.incomplete = false;
                    return Ok(dump);
                }
                Err(Broken::Retry) => dump.incomplete = true,
                Err(other) => return Err(fatal(other)),
            }
        }
        Ok(dump)
    }

    fn dump_once(
        &mut self,
        family: Family,
        keep: &mut impl FnMut(&Flow) -> bool,
        dump: &mut Dump,
        known: &mut HashSet<Flow>,
    ) -> Result<(), Broken> {
        let request = codec::dump_request(family, self.channel.next_sequence());
        self.each(&request, codec::CT_NEW, |body| {
            dump.seen += 1;
            match codec::parse(body) {
                Some(flow) => {
                    if keep(&flow) && known.insert(identity(&flow)) {
                        dump.flows.push(flow);
                    }
                }
                None => dump.malformed += 1,
            }
        })
    }

    /// The entry whose answers look like this, in the default zone.
    ///
    /// # Errors
    /// [`Error::NoConntrack`], [`Error::Permission`], [`Error::Io`].
    pub fn by_reply(&mut self, reply: &Tuple) -> Result<Option<Flow>, Error> {
        Ok(self.look_up(reply, Direction::Reply)?.filter(|flow| flow.reply == *reply))
    }

    /// The entry whose client sends this, in the default zone.
    ///
    /// # Errors
    /// As [`Self::by_reply`].
    pub fn by_original(&mut self, original: &Tuple) -> Result<Option<Flow>, Error> {
        Ok(self.look_up(original, Direction::Original)?.filter(|flow| flow.orig == *original))
    }

    /// The kernel looks for the tuple in both directions (`nf_conntrack_find_get`).
    fn look_up(&mut self, tuple: &Tuple, direction: Direction) -> Result<Option<Flow>, Error> {
        for _ in 0..MAX_ATTEMPTS {
            let request = codec::lookup_request(tuple, direction, self.channel.next_sequence());
            let mut found = None;
            match self.each(&request, codec::CT_NEW, |body| found = codec::parse(body)) {
                Ok(()) => return Ok(found),
                Err(Broken::Refused(libc::ENOENT)) => return Ok(None),
                Err(Broken::Retry) => {}
                Err(other) => return Err(fatal(other)),
            }
        }
        Err(Error::Io { request: "lookup", source: io::Error::from_raw_os_error(libc::EINTR) })
    }

    /// How many packets conntrack has found INVALID in this network namespace.
    ///
    /// # Errors
    /// As [`Self::dump`].
    pub fn invalid(&mut self) -> Result<u64, Error> {
        for _ in 0..MAX_ATTEMPTS {
            let request = codec::stats_request(self.channel.next_sequence());
            let mut sum = 0;
            match self.each(&request, codec::CT_STATS_CPU, |body| {
                sum += u64::from(codec::parse_invalid(body).unwrap_or(0));
            }) {
                Ok(()) => return Ok(sum),
                Err(Broken::Retry) => {}
                Err(other) => return Err(fatal(other)),
            }
        }
        Err(Error::Io { request: "count", source: io::Error::from_raw_os_error(libc::EINTR) })
    }

    /// Sends a dump request and hands over the bodies of all messages of one kind that answer it.
    pub(super) fn each(
        &mut self,
        request: &[u8],
        kind: u16,
        mut body: impl FnMut(&[u8]),
    ) -> Result<(), Broken> {
        let hand_over = |this, payload: &[u8]| {
            if this == kind {
                body(payload);
            }
        };
        self.channel.exchange(request, hand_over).map(drop)
    }

    /// Lets conntrack accept any sequence number in the reply direction of this one flow (`IP_CT_TCP_FLAG_BE_LIBERAL`), so that
    /// a question with an unknown sequence is translated on kernels that would call it INVALID. False where the entry is gone.
    ///
    /// # Errors
    /// [`Error::NotTcp`], [`Error::Permission`], [`Error::Io`].
    pub fn make_liberal(&mut self, flow: &Flow) -> Result<bool, Error> {
        if codec::liberal_request(flow, 0).is_none() {
            return Err(Error::NotTcp(*flow));
        }
        let done = self.make_all_liberal(std::slice::from_ref(flow))?;
        if done.refused > 0 {
            let source = io::Error::other("the kernel refused the change");
            return Err(Error::Io { request: "update", source });
        }
        Ok(done.changed == 1)
    }

    /// [`Self::make_liberal`] for many flows; such as are not TCP are left out.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`]; entries that cannot be changed are counted.
    pub fn make_all_liberal(&mut self, flows: &[Flow]) -> Result<Liberal, Error> {
        const REQUEST: &str = "update";
        let mut done = Liberal::default();
        for batch in flows.chunks(BATCH) {
            let (mut requests, mut count) = (Vec::new(), 0);
            for flow in batch.iter().filter(|flow| flow.orig.protocol == TCP) {
                if let Some(request) = codec::liberal_request(flow, self.channel.next_sequence()) {
                    requests.extend_from_slice(&request);
                    count += 1;
                }
            }
            if count == 0 {
                continue;
            }
            let mut forbidden = false;
            self.channel
                .pipeline(&requests, count, |_, errno| match errno {
                    0 => done.changed += 1,
                    libc::ENOENT => done.gone += 1,
                    libc::EPERM => forbidden = true,
                    _ => done.refused += 1,
                })
                .map_err(|source| Error::Io { request: REQUEST, source })?;
            if forbidden {
                return Err(Error::Permission);
            }
        }
        Ok(done)
    }
}

/// What of an entry stays the same from one attempt to the next.
fn identity(flow: &Flow) -> Flow {
    Flow { tcp: None, liberal: false, status: 0, timeout: 0, ..*flow }
}

pub(super) fn fatal(broken: Broken) -> Error {
    let failed = |source| Error::Io { request: "dump", source };
    match broken {
        Broken::Retry => failed(io::Error::from_raw_os_error(libc::EINTR)),
        Broken::Io(source) => failed(source),
        Broken::Refused(libc::EPERM) => Error::Permission,
        // nfnetlink_rcv_msg (nfnetlink.c): the subsystem is not there and could not be loaded.
        Broken::Refused(libc::EINVAL | libc::EOPNOTSUPP) => Error::NoConntrack,
        Broken::Refused(other) => failed(io::Error::from_raw_os_error(other)),
    }
}
