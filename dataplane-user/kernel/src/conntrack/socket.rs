use std::{collections::HashSet, io};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    Error, Family, Flow, TCP, Tuple,
    codec::{self, Direction},
};
use crate::netlink::{Broken, Channel};

/// How often a dump that the kernel broke off is begun anew.
pub(super) const MAX_ATTEMPTS: usize = 5;
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

/// What came of requests that are about one thing each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    /// Requests that were carried out.
    pub changed: usize,
    /// Entries that were gone by then.
    pub gone: usize,
    /// Requests that the kernel would not carry out.
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
                Err(other) => return Err(fatal("dump", other)),
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
        each(&mut self.channel, &request, codec::CT_NEW, |body| {
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
        let found = self.channel.again(MAX_ATTEMPTS, |channel| {
            let request = codec::lookup_request(tuple, direction, channel.next_sequence());
            let mut found = None;
            each(channel, &request, codec::CT_NEW, |body| found = codec::parse(body))?;
            Ok(found)
        });
        match found {
            Err(Broken::Refused(libc::ENOENT)) => Ok(None),
            other => other.map_err(|broken| fatal("lookup", broken)),
        }
    }

    /// Lets conntrack accept any sequence number in the reply direction of these flows (`IP_CT_TCP_FLAG_BE_LIBERAL`), so that a question with an
    /// unknown sequence is translated on kernels that would call it INVALID. Such as are not TCP have no window, and are left out.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`]; entries that cannot be changed are counted.
    pub fn make_all_liberal(&mut self, flows: &[Flow]) -> Result<Answered, Error> {
        let tcp: Vec<Flow> = flows.iter().filter(|flow| flow.orig.protocol == TCP).copied().collect();
        self.send_each("update", &tcp, codec::liberal_request)
    }

    /// Sends one request for each subject, many at a time; `name` is what they are called.
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

/// Sends a dump request and hands over the bodies of all messages of one kind that answer it.
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

/// What of an entry stays the same from one attempt to the next.
fn identity(flow: &Flow) -> Flow {
    Flow { tcp: None, liberal: false, status: 0, timeout: 0, ..*flow }
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
