//! Backends on this machine.
use aya_ebpf::{bindings::__sk_buff, helpers::bpf_skb_load_bytes};

use nodefence_common::packet::at;

use crate::judge::Hit;

/// 1 where a socket of this machine sent the packet and is connected to its very destination, so that nothing translated the packet: a probe of the
/// kubelet, for example. A packet that a Service's rules translated goes elsewhere than its socket says. A packet that came in belongs to no socket here
/// (`ip_rcv_core` drops the reference).
///
/// Called before the headers are read: after that the verifier would follow this function once for each shape that the headers can have.
///
/// `skb->sk` and the peer's address in it: Linux 5.1.
#[inline(never)]
pub fn sent_as_it_is(skb: *mut __sk_buff, hit: &Hit) -> u64 {
    let mut sent = [0u32; 4];
    // SAFETY: the context of a running program; the verifier lets these fields of a socket be read once it is known to be there; as many bytes
    // are written as lie at the pointer.
    unsafe {
        let sk = (*skb).__bindgen_anon_2.sk;
        if (*skb).ingress_ifindex != 0 || sk.is_null() {
            return 0;
        }
        let words = sent.as_mut_ptr();
        if hit.v6 != 0 {
            if bpf_skb_load_bytes(skb.cast(), hit.l3 + at::V6_DST as u32, words.cast(), 16) != 0 {
                return 0;
            }
            let [a, b, c, d] = (*sk).dst_ip6;
            u64::from((a ^ sent[0]) | (b ^ sent[1]) | (c ^ sent[2]) | (d ^ sent[3]) == 0)
        } else {
            if bpf_skb_load_bytes(skb.cast(), hit.l3 + at::V4_DST as u32, words.cast(), 4) != 0 {
                return 0;
            }
            u64::from((*sk).dst_ip4 == sent[0])
        }
    }
}
