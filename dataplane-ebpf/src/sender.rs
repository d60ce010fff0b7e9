//! Who sent a packet: the packet of another tenant, or of a pod that is bridged onto the node's own network, may have a backend's address as its
//! destination too.
use aya_ebpf::bindings::__sk_buff;
use nodefence_common::{
    MacKey, RouteVlan,
    packet::{ETH_LEN, Reader as _, Window as _},
};

use crate::{
    judge::Hit,
    maps::{MACS, ROUTE_VLANS},
    packet::{Direct, Skb},
};

/// Where the source address lies in an Ethernet header; the type, or a tag, is right behind it.
const SOURCE: u32 = 6;
/// The bits of a tag that number the VLAN.
const VLAN_ID: u32 = 0x0fff;

/// 1 where this node did not send a packet of an Ethernet device on its way to a backend: no device of this network namespace has its source MAC
/// address, or no route to a backend leaves this device by its VLAN. A tag that lies beside the frame is the outer one.
///
/// The four words from the source address on hold that address and up to two tags. A frame with an IP header is long enough for them.
#[inline(never)]
pub fn is_foreign(skb: *mut __sk_buff, hit: &Hit) -> u64 {
    let mut words = [0u32; 4];
    match Direct::skb(skb).window::<16>(SOURCE) {
        Some(head) => words = [head.raw32::<0>(), head.raw32::<4>(), head.raw32::<8>(), head.raw32::<12>()],
        // Not in the linear part.
        None if !Skb(skb).load(SOURCE, &mut words) => return 1,
        None => {}
    }
    // SAFETY: any bytes are a key; words are aligned for it.
    let bytes = unsafe { &*words.as_ptr().cast::<[u8; 16]>() };
    let tag = |at: usize| (u32::from(bytes[at]) << 8 | u32::from(bytes[at + 1])) & VLAN_ID;
    let tags = hit.l3.wrapping_sub(ETH_LEN as u32) / 4;
    let (mut outer, mut inner) = (0, 0);
    if tags >= 1 {
        outer = tag(8);
    }
    if tags >= 2 {
        inner = tag(12);
    }
    // SAFETY: the context of a running program (`vlan_present`, `vlan_tci`: Linux 4.1).
    let ifindex = unsafe {
        if (*skb).vlan_present != 0 {
            if tags >= 2 {
                // A third tag.
                return 1;
            }
            inner = outer;
            outer = (*skb).vlan_tci & VLAN_ID;
        }
        (*skb).ifindex
    };
    let vlan = RouteVlan { ifindex, outer: outer as u16, inner: inner as u16 };
    let Some(usual) = ROUTE_VLANS.get_ptr(&vlan) else { return 1 };
    let mac = MacKey::new([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]);
    // SAFETY: a value of the map, eight bytes as the key on the stack, and aligned for a word as all values are. The value may be another element's by
    // now (`judge::confirmed`), but that one is of an own device too.
    let (usual, ours) =
        unsafe { (usual.cast::<u64>().read_volatile(), (&raw const mac).cast::<u64>().read_unaligned()) };
    if usual == ours {
        return 0;
    }
    u64::from(MACS.get_ptr(&mac).is_none())
}
