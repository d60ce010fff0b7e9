//! The few nftables requests that are needed (include/uapi/linux/netfilter/nf_tables.h): is a table or chain there, which sets has a table, and
//! take all elements out of one set. Nothing here can delete or change a table, a chain, a rule or a set.
use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Error;
use crate::{
    netlink::{Broken, Channel, attributes, put_text, str_of},
    nfnetlink::{NFGEN_LEN, message},
    nftables::{
        DEL_SET_ELEM, GET_CHAIN, GET_SET, GET_SET_ELEM, GET_TABLE, NEW_SET, NEW_SET_ELEM, transaction,
    },
};

/// `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_SET_TABLE`, `NFTA_SET_ELEM_LIST_TABLE`.
const TABLE: u16 = 1;
/// `NFTA_SET_NAME`, `NFTA_SET_ELEM_LIST_SET`.
const SET: u16 = 2;
const CHAIN_NAME: u16 = 3;
/// `NFTA_SET_ELEM_LIST_ELEMENTS`.
const ELEMENTS: u16 = 3;
/// How often a list that the kernel broke off is begun anew.
const MAX_ATTEMPTS: usize = 5;

/// A netlink socket to nftables in the network namespace that it was opened in. Blocking.
pub(super) struct Nft {
    channel: Channel,
}

impl Nft {
    pub(super) fn open() -> Result<Self, Error> {
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER).map_err(Error::Open)? })
    }

    /// Whether there is a table of this name.
    pub(super) fn has_table(&mut self, family: u8, table: &str) -> bool {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let request = message(GET_TABLE, flags, family, 0, self.channel.next_sequence(), |out| {
            put_text(out, TABLE, table);
        });
        self.channel.exchange(&request, |_, _| {}).is_ok()
    }

    /// Whether the table has a chain of this name.
    pub(super) fn has_chain(&mut self, family: u8, table: &str, chain: &str) -> bool {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let request = message(GET_CHAIN, flags, family, 0, self.channel.next_sequence(), |out| {
            put_text(out, TABLE, table);
            put_text(out, CHAIN_NAME, chain);
        });
        self.channel.exchange(&request, |_, _| {}).is_ok()
    }

    /// The names of a table's sets that `keep` wants. None where there is no such table.
    pub(super) fn sets(
        &mut self,
        family: u8,
        table: &str,
        keep: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Error> {
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        let sets = self.channel.again(MAX_ATTEMPTS, |channel| {
            let request = message(GET_SET, flags, family, 0, channel.next_sequence(), |out| {
                put_text(out, TABLE, table);
            });
            let mut sets = Vec::new();
            channel.exchange(&request, |kind, body| {
                if kind == NEW_SET {
                    sets.extend(set_name(body, table).filter(|name| keep(name)).map(str::to_owned));
                }
            })?;
            Ok(sets)
        });
        match sets {
            Err(Broken::Refused(libc::ENOENT)) => Ok(Vec::new()),
            other => other.map_err(|broken| failed("list of sets", broken)),
        }
    }

    /// Whether a set has elements. False where it is gone.
    fn has_elements(&mut self, family: u8, table: &str, set: &str) -> Result<bool, Error> {
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        let has = self.channel.again(MAX_ATTEMPTS, |channel| {
            let request = message(GET_SET_ELEM, flags, family, 0, channel.next_sequence(), |out| {
                put_text(out, TABLE, table);
                put_text(out, SET, set);
            });
            let mut some = false;
            match channel.exchange(&request, |kind, body| {
                some |= kind == NEW_SET_ELEM && lists_elements(body);
            }) {
                Err(Broken::Retry) if some => Ok(true),
                Err(Broken::Refused(libc::ENOENT)) => Ok(false),
                read => read.map(|_| some),
            }
        });
        has.map_err(|broken| failed("list of elements", broken))
    }

    /// Takes all elements out of a set. False where there are none. An empty set is left alone: each transaction makes others that are being
    /// prepared begin anew, kube-proxy's among them.
    pub(super) fn flush(&mut self, family: u8, table: &str, set: &str) -> Result<bool, Error> {
        const REQUEST: &str = "removal of elements";
        if !self.has_elements(family, table, set)? {
            return Ok(false);
        }
        let mut answer = 0;
        for _ in 0..MAX_ATTEMPTS {
            let request = flush_request(family, table, set, self.channel.next_sequence());
            self.channel
                .pipeline(&request, 1, |_, errno| answer = errno)
                .map_err(|source| Error::Io { request: REQUEST, source })?;
            match answer {
                0 => return Ok(true),
                libc::ENOENT => return Ok(false),
                // Another transaction came in between.
                libc::EAGAIN | libc::ERESTART | libc::EINTR | libc::EBUSY => {}
                errno => return Err(failed(REQUEST, Broken::Refused(errno))),
            }
        }
        Err(failed(REQUEST, Broken::Refused(answer)))
    }
}

/// A transaction that takes all elements out of one set: a removal that lists none (`nf_tables_delsetelem`, nf_tables_api.c, 4.10 and later). All of it bears one
/// number, so that the first answer, be it to the transaction or to the removal, is the outcome.
pub(super) fn flush_request(family: u8, table: &str, set: &str, sequence: u32) -> Vec<u8> {
    let flush = message(DEL_SET_ELEM, NLM_F_REQUEST | NLM_F_ACK, family, 0, sequence, |out| {
        put_text(out, TABLE, table);
        put_text(out, SET, set);
    });
    transaction(&[flush], [sequence; 2])
}

/// The name of the set, if it is one of this table.
pub(super) fn set_name<'a>(body: &'a [u8], table: &str) -> Option<&'a str> {
    let (mut of, mut name) = (None, None);
    for (kind, value) in attributes(body.get(NFGEN_LEN..)?) {
        match kind {
            TABLE => of = str_of(value),
            SET => name = str_of(value),
            _ => {}
        }
    }
    if of? == table { name } else { None }
}

fn lists_elements(body: &[u8]) -> bool {
    attributes(body.get(NFGEN_LEN..).unwrap_or_default())
        .any(|(kind, elements)| kind == ELEMENTS && attributes(elements).next().is_some())
}

fn failed(request: &'static str, broken: Broken) -> Error {
    let source = match broken {
        Broken::Refused(libc::EPERM) => return Error::Permission,
        Broken::Refused(errno) => io::Error::from_raw_os_error(errno),
        Broken::Retry => io::Error::from_raw_os_error(libc::EINTR),
        Broken::Io(source) => source,
    };
    Error::Io { request, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn a_flush_is_a_removal_without_elements() {
        let bytes = flush_request(2, "kube-proxy", "affinity-x", 7);
        let removal = &bytes[20..bytes.len() - 20];
        // NFT_MSG_DELSETELEM; NLM_F_REQUEST | NLM_F_ACK.
        assert_eq!(removal[4..12], [14, 10, 5, 0, 7, 0, 0, 0]);
        assert_eq!(removal[16..], [
            &[2, 0, 0, 0][..],
            &[15, 0, 1, 0], b"kube-proxy\0\0",
            &[15, 0, 2, 0], b"affinity-x\0\0",
        ].concat());
        for (begin, kind) in [(0, 0x10), (bytes.len() - 20, 0x11)] {
            assert_eq!(bytes[begin..begin + 12], [20, 0, 0, 0, kind, 0, 1, 0, 7, 0, 0, 0]);
            assert_eq!(bytes[begin + 16..begin + 20], [0, 0, 0, 10]);
        }
    }

    #[test]
    fn sets_of_other_tables_are_passed_over() {
        let body = [&[2, 0, 0, 0][..], &[6, 0, 1, 0], b"t\0\0\0", &[6, 0, 2, 0], b"s\0\0\0"].concat();
        assert_eq!(set_name(&body, "t"), Some("s"));
        assert_eq!(set_name(&body, "u"), None);
        for len in 0..body.len() {
            set_name(&body[..len], "t");
        }
    }
}
