//! The few nftables requests that are needed (include/uapi/linux/netfilter/nf_tables.h): whether a table or chain exists, the sets
//! of a table, the addresses in a set, and the deletion of a set's elements. Nothing here can delete or change a table, a chain, a
//! rule or a set.
use std::{collections::BTreeSet, io, net::IpAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Error;
use crate::{
    netlink::{Broken, Channel, address_of, attributes, nest, put, put_text, str_of},
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
/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
/// `NFTA_SET_ELEM_KEY`, and `NFTA_DATA_VALUE` in it.
const KEY: u16 = 1;
const VALUE: u16 = 1;
/// How often a list or a deletion is attempted at most, where the kernel breaks it off.
const MAX_ATTEMPTS: usize = 5;
const LIST_OF_ELEMENTS: &str = "list of elements";
const REMOVAL: &str = "removal of elements";
/// The most elements in one transaction: a list of elements has 16 bits for its length, and the whole transaction must fit into the
/// socket's send buffer (`netlink_sendmsg`).
const IN_ONE: usize = 512;

/// An element of a set: the set's family and name, and an address.
pub(super) type Element = (u8, String, IpAddr);

/// The elements to delete from a set, by its family and name: these addresses, or all where none is listed.
type FromSet<'a> = (u8, &'a str, Vec<IpAddr>);

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

    /// The names of a table's sets that `keep` wants; no names where the table does not exist.
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
            // No such table; or no nf_tables in this kernel (`nfnetlink_rcv_msg`, net/netfilter/nfnetlink.c: EINVAL).
            Err(Broken::Refused(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP)) => Ok(Vec::new()),
            other => other.map_err(|broken| failed("list of sets", broken)),
        }
    }

    /// Whether a set has elements. False where the set is gone.
    fn has_elements(&mut self, family: u8, table: &str, set: &str) -> Result<bool, Error> {
        let has = self.channel.again(MAX_ATTEMPTS, |channel| {
            let mut some = false;
            match list_elements(channel, family, table, set, |_| some = true) {
                Err(Broken::Retry) if some => Ok(true),
                read => read.map(|()| some),
            }
        });
        has.map_err(|broken| failed(LIST_OF_ELEMENTS, broken))
    }

    /// The addresses that a set has as elements; no addresses where the set is gone.
    pub(super) fn addresses(&mut self, family: u8, table: &str, set: &str) -> Result<Vec<IpAddr>, Error> {
        let addresses = self.channel.again(MAX_ATTEMPTS, |channel| {
            let mut addresses = Vec::new();
            list_elements(channel, family, table, set, |element| addresses.extend(key_of(element)))?;
            Ok(addresses)
        });
        addresses.map_err(|broken| failed(LIST_OF_ELEMENTS, broken))
    }

    /// Deletes all elements of a set. False where the set has none. An empty set is left alone: each transaction makes other
    /// transactions that are being prepared begin anew, kube-proxy's among them.
    pub(super) fn flush(&mut self, family: u8, table: &str, set: &str) -> Result<bool, Error> {
        self.delete_elements(table, |nft| {
            let some = nft.has_elements(family, table, set)?;
            Ok(some.then(|| (family, set, Vec::new())).into_iter().collect())
        })
    }

    /// Deletes these elements of a table's sets, in one transaction unless they are very many; false where none of them exists.
    /// Missing elements are left out: the kernel aborts a transaction in which one element is missing.
    pub(super) fn remove(&mut self, table: &str, elements: &BTreeSet<Element>) -> Result<bool, Error> {
        let all: Vec<&Element> = elements.iter().collect();
        let mut removed = false;
        for some in all.chunks(IN_ONE) {
            removed |= self.delete_elements(table, |nft| {
                let mut lists: Vec<FromSet<'_>> = Vec::new();
                for of_set in some.chunk_by(|one, next| one.0 == next.0 && one.1 == next.1) {
                    let (family, set, _) = of_set[0];
                    let mut there = Vec::new();
                    for element in of_set.iter().copied() {
                        if nft.has(table, element)? {
                            there.push(element.2);
                        }
                    }
                    if !there.is_empty() {
                        lists.push((*family, set, there));
                    }
                }
                Ok(lists)
            })?;
        }
        Ok(removed)
    }

    /// Deletes from sets, in one transaction, the elements that `there` finds in them; false where `there` finds none. `there` is
    /// called anew where another transaction came in between, or an element has gone meanwhile.
    fn delete_elements<'a>(
        &mut self,
        table: &str,
        mut there: impl FnMut(&mut Self) -> Result<Vec<FromSet<'a>>, Error>,
    ) -> Result<bool, Error> {
        let mut answer = 0;
        for _ in 0..MAX_ATTEMPTS {
            let lists = there(self)?;
            if lists.is_empty() {
                return Ok(false);
            }
            // Only the last request is acknowledged, and all requests have one sequence number. So the first answer is the outcome: an
            // error of any request, an error of the whole transaction, or that acknowledgement (`nfnetlink_rcv_batch`,
            // net/netfilter/nfnetlink.c).
            let sequence = self.channel.next_sequence();
            let mut removals = Vec::new();
            for (at, (family, set, addresses)) in lists.iter().enumerate() {
                let asks = if at + 1 == lists.len() { NLM_F_ACK } else { 0 };
                removals.push(removal(*family, table, set, addresses, asks, sequence));
            }
            self.channel
                .pipeline(&transaction(&removals, [sequence; 2]), 1, |_, errno| answer = errno)
                .map_err(|source| Error::Io { request: REMOVAL, source })?;
            match answer {
                0 => return Ok(true),
                libc::ENOENT | libc::EAGAIN | libc::ERESTART | libc::EINTR | libc::EBUSY => {}
                errno => return Err(failed(REMOVAL, Broken::Refused(errno))),
            }
        }
        Err(failed(REMOVAL, Broken::Refused(answer)))
    }

    /// Whether the set has this element. The element is found without a list of all, and without the mutex of transactions
    /// (`nf_tables_getsetelem`, nf_tables_api.c).
    fn has(&mut self, table: &str, (family, set, address): &Element) -> Result<bool, Error> {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let found = self.channel.again(MAX_ATTEMPTS, |channel| {
            let request = message(GET_SET_ELEM, flags, *family, 0, channel.next_sequence(), |out| {
                put_elements(out, table, set, &[*address]);
            });
            channel.exchange(&request, |_, _| {})
        });
        match found {
            Ok(_) => Ok(true),
            Err(Broken::Refused(libc::ENOENT)) => Ok(false),
            Err(broken) => Err(failed("question for an element", broken)),
        }
    }
}

/// A request that deletes elements of a set: all elements where the request lists none (`nf_tables_delsetelem`, nf_tables_api.c,
/// 4.10 and later).
fn removal(family: u8, table: &str, set: &str, addresses: &[IpAddr], asks: u16, sequence: u32) -> Vec<u8> {
    message(DEL_SET_ELEM, NLM_F_REQUEST | asks, family, 0, sequence, |out| {
        put_elements(out, table, set, addresses);
    })
}

fn put_elements(out: &mut Vec<u8>, table: &str, set: &str, addresses: &[IpAddr]) {
    put_text(out, TABLE, table);
    put_text(out, SET, set);
    if addresses.is_empty() {
        return;
    }
    nest(out, ELEMENTS, |out| {
        for address in addresses {
            nest(out, ELEMENT, |out| {
                nest(out, KEY, |out| match address {
                    IpAddr::V4(address) => put(out, VALUE, &address.octets()),
                    IpAddr::V6(address) => put(out, VALUE, &address.octets()),
                });
            });
        }
    });
}

/// The name of the set, if the set is one of this table.
pub(super) fn set_name<'a>(body: &'a [u8], table: &str) -> Option<&'a str> {
    let mut of = None;
    let mut name = None;
    for (kind, value) in attributes(body.get(NFGEN_LEN..)?) {
        match kind {
            TABLE => of = str_of(value),
            SET => name = str_of(value),
            _ => {}
        }
    }
    if of? == table { name } else { None }
}

/// Hands over each element of a set; no element where the set is gone.
fn list_elements(
    channel: &mut Channel,
    family: u8,
    table: &str,
    set: &str,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Broken> {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = message(GET_SET_ELEM, flags, family, 0, channel.next_sequence(), |out| {
        put_text(out, TABLE, table);
        put_text(out, SET, set);
    });
    let listed = channel.exchange(&request, |kind, body| {
        if kind == NEW_SET_ELEM {
            elements(body).for_each(&mut each);
        }
    });
    match listed {
        Err(Broken::Refused(libc::ENOENT)) => Ok(()),
        listed => listed.map(drop),
    }
}

fn elements(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lists = attributes(body.get(NFGEN_LEN..).unwrap_or_default()).filter(|(kind, _)| *kind == ELEMENTS);
    lists.flat_map(|(_, list)| attributes(list)).map(|(_, element)| element)
}

/// The key of an element whose type is an address.
fn key_of(element: &[u8]) -> Option<IpAddr> {
    let (_, key) = attributes(element).find(|(kind, _)| *kind == KEY)?;
    let (_, value) = attributes(key).find(|(kind, _)| *kind == VALUE)?;
    address_of(value)
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
        let bytes = transaction(&[removal(2, "kube-proxy", "affinity-x", &[], NLM_F_ACK, 7)], [7; 2]);
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
    #[rustfmt::skip]
    fn a_removal_lists_its_elements() {
        let bytes = removal(2, "t", "s", &[IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])], 0, 7);
        let element = |last| [&[16, 0, 1, 0x80][..], &[12, 0, 1, 0x80], &[8, 0, 1, 0], &[192, 0, 2, last]].concat();
        assert_eq!(bytes[20..], [
            &[6, 0, 1, 0][..], b"t\0\0\0",
            &[6, 0, 2, 0], b"s\0\0\0",
            &[36, 0, 3, 0x80], &element(1), &element(2),
        ].concat());
        let found: Vec<IpAddr> = elements(&bytes[16..]).filter_map(key_of).collect();
        assert_eq!(found, [IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])]);
    }

    #[test]
    #[rustfmt::skip]
    fn an_element_s_key_is_its_address() {
        // A list of two elements, as `nft --debug=netlink list set` shows it. The second has another attribute before its key.
        let key = [&[12, 0, 1, 0x80][..], &[8, 0, 1, 0], &[192, 0, 2, 1]].concat();
        let first = [&[16, 0, 1, 0x80][..], &key].concat();
        let second = [&[28, 0, 1, 0x80][..], &[12, 0, 5, 0], &[0; 8], &key].concat();
        let list = [&[(4 + first.len() + second.len()) as u8, 0, 3, 0x80][..], &first, &second].concat();
        let body = [&[2, 0, 0, 0][..], &[6, 0, 1, 0], b"t\0\0\0", &list].concat();
        let of = |body: &[u8]| elements(body).filter_map(key_of).collect::<Vec<_>>();
        assert_eq!(of(&body), [IpAddr::from([192, 0, 2, 1]); 2]);
        for len in 0..body.len() {
            of(&body[..len]);
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
