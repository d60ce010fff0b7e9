use std::{
    collections::{BTreeMap, HashSet},
    io,
};

use netlink_packet_core::{NLM_F_DUMP_INTR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};

use super::{Error, Flow, Zone, codec};

/// Receive buffer of a dump. The kernel sizes its own buffers by it (`netlink_dump`, af_netlink.c), up to 32 KiB.
const BUFFER_LEN: usize = 64 * 1024;
/// How often a dump that the kernel broke off is begun anew.
const MAX_ATTEMPTS: u32 = 5;
/// Requests sent before their acknowledgements are read; they fit the socket's receive buffer.
const BATCH: usize = 64;
/// Seconds without an answer after which the kernel is not waited for any longer.
const TIMEOUT_SECONDS: i64 = 5;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Which half of the table to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = libc::AF_INET as u8,
    /// IPv6.
    V6 = libc::AF_INET6 as u8,
}

/// What a dump found.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// The entries that the filter kept, each once.
    pub flows: Vec<Flow>,
    /// Entries read, kept or not.
    pub seen: usize,
    /// Entries that could not be read.
    pub malformed: usize,
    /// Kept entries by zone other than the default one.
    pub zones: BTreeMap<Zone, usize>,
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
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

/// Why one pass over a dump ended early.
enum Broken {
    /// Begin anew.
    Retry,
    Fatal(Error),
}

impl Conntrack {
    /// Opens the socket in the caller's network namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::new(NETLINK_NETFILTER).map_err(Error::Open)?;
        socket.bind_auto().map_err(Error::Open)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(Error::Open)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))
            .map_err(|errno| Error::Open(errno.into()))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER_LEN), sequence: 0 })
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
                Err(Broken::Fatal(error)) => return Err(error),
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
        self.sequence = self.sequence.wrapping_add(1);
        self.each(&codec::dump_request(family, self.sequence), codec::CT_NEW, |body| {
            dump.seen += 1;
            match codec::parse(body) {
                Some(flow) => {
                    if keep(&flow) && known.insert(identity(&flow)) {
                        if let Some(zone) = flow.zone {
                            *dump.zones.entry(zone).or_default() += 1;
                        }
                        dump.flows.push(flow);
                    }
                }
                None => dump.malformed += 1,
            }
        })
    }

    /// How many packets conntrack has found INVALID in this network namespace.
    ///
    /// # Errors
    /// As [`Self::dump`].
    pub fn invalid(&mut self) -> Result<u64, Error> {
        for _ in 0..MAX_ATTEMPTS {
            self.sequence = self.sequence.wrapping_add(1);
            let mut sum = 0;
            match self.each(&codec::stats_request(self.sequence), codec::CT_STATS_CPU, |body| {
                sum += u64::from(codec::parse_invalid(body).unwrap_or(0));
            }) {
                Ok(()) => return Ok(sum),
                Err(Broken::Retry) => {}
                Err(Broken::Fatal(error)) => return Err(error),
            }
        }
        Err(Error::Io { request: "count", source: io::Error::from_raw_os_error(libc::EINTR) })
    }

    /// Sends a dump request and hands over the bodies of all messages of one kind that answer it.
    fn each(&mut self, request: &[u8], kind: u16, mut body: impl FnMut(&[u8])) -> Result<(), Broken> {
        const REQUEST: &str = "dump";
        let sequence = self.sequence;
        self.send(request, REQUEST).map_err(Broken::Fatal)?;
        let mut interrupted = false;
        loop {
            let bytes = match self.receive() {
                Ok(bytes) => bytes,
                // Something was lost; the rest must be read all the same, one socket runs one dump at a time.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    interrupted = true;
                    continue;
                }
                Err(source) => return Err(Broken::Fatal(Error::Io { request: REQUEST, source })),
            };
            for message in messages(bytes).filter(|message| message.sequence_number() == sequence) {
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match message.message_type() {
                    NLMSG_DONE if interrupted => return Err(Broken::Retry),
                    // Newer kernels end a failed dump with its error.
                    NLMSG_DONE => match errno(message.payload()) {
                        errno if errno > 0 && !message.payload().is_empty() => return Err(broken(errno)),
                        _ => return Ok(()),
                    },
                    NLMSG_ERROR => return Err(broken(errno(message.payload()))),
                    this if this == kind => body(message.payload()),
                    _ => {}
                }
            }
        }
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
            let first = self.sequence.wrapping_add(1);
            let mut request = Vec::new();
            let mut waiting = 0;
            for message in batch.iter().filter_map(|flow| {
                codec::liberal_request(flow, self.sequence.wrapping_add(1))
                    .inspect(|_| self.sequence = self.sequence.wrapping_add(1))
            }) {
                request.extend_from_slice(&message);
                waiting += 1;
            }
            if waiting == 0 {
                continue;
            }
            let last = self.sequence;
            self.send(&request, REQUEST)?;
            while waiting > 0 {
                let bytes = self.receive().map_err(|source| Error::Io { request: REQUEST, source })?;
                for message in messages(bytes) {
                    let sequence = message.sequence_number();
                    if message.message_type() != NLMSG_ERROR
                        || sequence.wrapping_sub(first) > last.wrapping_sub(first)
                    {
                        continue;
                    }
                    waiting -= 1;
                    match errno(message.payload()) {
                        0 => done.changed += 1,
                        libc::ENOENT => done.gone += 1,
                        libc::EPERM => return Err(Error::Permission),
                        _ => done.refused += 1,
                    }
                }
            }
        }
        Ok(done)
    }

    fn send(&self, request: &[u8], name: &'static str) -> Result<(), Error> {
        loop {
            match self.socket.send(request, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { request: name, source }),
            }
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, 0) {
                Ok(_) => return Ok(&self.buffer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What of an entry stays the same from one attempt to the next.
fn identity(flow: &Flow) -> Flow {
    Flow { tcp: None, liberal: false, status: 0, timeout: 0, ..*flow }
}

/// The whole messages of a datagram.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(bytes).ok()?;
        let len = message.length() as usize;
        let (this, rest) = (bytes.get(..len)?, bytes.get(len.next_multiple_of(4)..).unwrap_or_default());
        bytes = rest;
        Some(NetlinkBuffer::new(this))
    })
}

/// Whether a message of this type ends a dump.
pub(super) const fn is_end(kind: u16) -> bool {
    matches!(kind, NLMSG_DONE | NLMSG_ERROR)
}

/// The error number of an NLMSG_ERROR's payload, positive; 0 is an acknowledgement.
fn errno(payload: &[u8]) -> i32 {
    payload.first_chunk().map_or(libc::EBADMSG, |&code| i32::from_ne_bytes(code).saturating_neg())
}

fn broken(errno: i32) -> Broken {
    match errno {
        libc::ENOBUFS | libc::EINTR | libc::EAGAIN | libc::EBUSY => Broken::Retry,
        libc::EPERM => Broken::Fatal(Error::Permission),
        // nfnetlink_rcv_msg (nfnetlink.c): the subsystem is not there and could not be loaded.
        libc::EINVAL | libc::EOPNOTSUPP => Broken::Fatal(Error::NoConntrack),
        other => Broken::Fatal(Error::Io { request: "dump", source: io::Error::from_raw_os_error(other) }),
    }
}
