//! Where the headers of a packet lie and what they say.
//!
//! There are two steps, so that a packet that passes pays for the first only: [`locate`] finds the IP header and the address that is
//! looked up; [`network`] and [`super::transport`] read the rest of a packet that may be cut.
use super::{
    ETH_IPV4, ETH_IPV6, ETH_LEN, at,
    bytes::{Reader, Window},
};
use crate::Addr;

/// Where a frame goes on behind its Ethernet header.
const ETH_END: u32 = ETH_LEN as u32;
/// How far (bytes behind the start of the IP header) a transport header may start; a packet where it starts later passes.
const MAX_TRANSPORT: u32 = 512;

/// Extension headers of one packet that are followed at most.
const MAX_EXTENSIONS: usize = 6;

/// Next-header number of the routing header.
const ROUTING: u8 = 43;
/// Next-header number of the fragment header.
const FRAGMENT: u8 = 44;

/// Whether a next-header number is that of an extension header that is followed: hop-by-hop, routing, fragment and destination
/// options (RFC 8200 section 4), mobility, HIP, shim6.
#[inline(always)]
const fn is_extension(next: u8) -> bool {
    matches!(next, 0 | ROUTING | FRAGMENT | 60 | 135 | 139 | 140)
}

/// What the frame starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An Ethernet header.
    Ethernet,
    /// The IP header itself; the number is the packet's ethertype, which the device keeps beside it.
    None(u16),
}

/// Why there is no address to look up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skip {
    /// Not an IP packet.
    NotIp,
    /// An IP packet, but its headers make no sense or are too deep.
    Malformed,
    /// Bytes are missing. A reader that sees the linear part only may lack bytes that the packet has.
    Short,
}

/// The IP header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ip {
    /// Offset of the header in the frame.
    pub offset: u32,
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// The destination.
    pub addr: Addr,
}

#[inline(always)]
const fn is_tag(ethertype: u16) -> bool {
    // 802.1Q and 802.1ad.
    ethertype == 0x8100 || ethertype == 0x88a8
}

#[inline(always)]
fn v4<W: Window, const AT: usize>(ip: &W) -> Addr {
    let raw = ip.raw32::<AT>();
    Addr::from_words([0, 0, 0xffff_u32.to_be(), raw])
}

/// Finds the IP header behind the link-layer header and at most two VLAN tags, and reads the destination.
///
/// # Errors
/// [`Skip`] where the packet has none.
#[inline(always)]
pub fn locate<R: Reader>(packet: &R, link: Link) -> Result<Ip, Skip> {
    let (ethertype, offset) = match link {
        Link::None(ethertype) => (ethertype, 0),
        Link::Ethernet => {
            let ethertype = packet.window::<14>(0).ok_or(Skip::Short)?.be16::<12>();
            if is_tag(ethertype) { behind_tags(packet)? } else { (ethertype, ETH_END) }
        }
    };
    match ethertype {
        ETH_IPV4 => {
            let ip = packet.window::<20>(offset).ok_or(Skip::Short)?;
            let first = ip.u8::<0>();
            if first >> 4 != 4 || first & 15 < 5 {
                return Err(Skip::Malformed);
            }
            Ok(Ip { offset, v6: false, addr: v4::<_, { at::V4_DST }>(&ip) })
        }
        ETH_IPV6 => {
            let ip = packet.window::<40>(offset).ok_or(Skip::Short)?;
            if ip.u8::<0>() >> 4 != 6 {
                return Err(Skip::Malformed);
            }
            let words = [ip.raw32::<24>(), ip.raw32::<28>(), ip.raw32::<32>(), ip.raw32::<36>()];
            Ok(Ip { offset, v6: true, addr: Addr::from_words(words) })
        }
        _ => Err(Skip::NotIp),
    }
}

#[inline(always)]
fn behind_tags<R: Reader>(packet: &R) -> Result<(u16, u32), Skip> {
    let ethertype = packet.window::<4>(ETH_END).ok_or(Skip::Short)?.be16::<2>();
    if !is_tag(ethertype) {
        return Ok((ethertype, ETH_END + 4));
    }
    let ethertype = packet.window::<4>(ETH_END + 4).ok_or(Skip::Short)?.be16::<2>();
    if is_tag(ethertype) { Err(Skip::Malformed) } else { Ok((ethertype, ETH_END + 8)) }
}

/// Bits of [`Packet::marks`].
pub mod marks {
    /// A fragment (an IPv6 fragment header with offset 0 and no more to come makes none, RFC 6946).
    pub const FRAGMENT: u8 = 1;
    /// IPv4 options or IPv6 extension headers lie before the transport header.
    pub const EXTENDED: u8 = 2;
    /// The frame was sent to a group address of its link layer.
    pub const LINK_GROUP: u8 = 4;
    /// IPv6 whose routing header names a later destination: the addressed host is not the endpoint.
    pub const WAYPOINT: u8 = 8;
    /// The transport header starts within this packet.
    pub const TRANSPORT: u8 = 16;
}

/// The headers of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Sender.
    pub src: Addr,
    /// Receiver.
    pub dst: Addr,
    /// Offset of the IP header in the frame.
    pub l3: u32,
    /// Offset of the transport header in the frame.
    pub l4: u32,
    /// Bytes behind the transport header (TCP and UDP), else bytes from its start on.
    pub payload: u32,
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
    /// Source port (TCP, UDP, SCTP).
    pub src_port: u16,
    /// Destination port (TCP, UDP, SCTP).
    pub dst_port: u16,
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// IP protocol of the transport header.
    pub protocol: u8,
    /// TCP flags, or the type of an ICMP or ICMPv6 message.
    pub kind: u8,
    /// [`marks`].
    pub marks: u8,
}

impl Packet {
    /// All zero: what [`network`] starts with.
    #[inline(always)]
    pub const fn empty() -> Self {
        Self {
            src: Addr::v6([0; 16]),
            dst: Addr::v6([0; 16]),
            l3: 0,
            l4: 0,
            payload: 0,
            seq: 0,
            ack: 0,
            src_port: 0,
            dst_port: 0,
            v6: false,
            protocol: 0,
            kind: 0,
            marks: 0,
        }
    }

    /// Whether a mark is set.
    #[inline(always)]
    pub const fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }
}

/// Reads the IP header that [`locate`] found and the extension headers behind it. What `out` holds after an error has no
/// meaning. [`super::transport`] is the second step: two, because a kernel program has little stack for each.
///
/// # Errors
/// [`Skip::Short`] and [`Skip::Malformed`] where they are cut off, contradict their lengths, or lie too deep.
#[inline(always)]
pub fn network<R: Reader>(packet: &R, link: Link, l3: u32, v6: bool, out: &mut Packet) -> Result<(), Skip> {
    out.l3 = l3;
    out.v6 = v6;
    if link == Link::Ethernet && packet.window::<1>(0).ok_or(Skip::Short)?.u8::<0>() & 1 != 0 {
        out.marks |= marks::LINK_GROUP;
    }
    if v6 { headers_v6(packet, out) } else { headers_v4(packet, out) }
}

/// Bytes of the IP packet behind the header, from its length field. A field of zero is right only where the packet is too
/// big for it (BIG TCP, Linux 5.19 for IPv6 and 6.3 for IPv4).
#[inline(always)]
fn body(frame: u32, l3: u32, header: u32, total: u32) -> Result<u32, Skip> {
    let have = frame.wrapping_sub(l3);
    let total = if total == 0 && have > 0xffff { have } else { total };
    if total < header || total > have { Err(Skip::Malformed) } else { Ok(total - header) }
}

#[inline(always)]
fn headers_v4<R: Reader>(packet: &R, out: &mut Packet) -> Result<(), Skip> {
    let ip = packet.window::<20>(out.l3).ok_or(Skip::Short)?;
    let header = u32::from(ip.u8::<0>() & 15) * 4;
    if header < 20 {
        return Err(Skip::Malformed);
    }
    out.src = v4::<_, { at::V4_SRC }>(&ip);
    out.dst = v4::<_, { at::V4_DST }>(&ip);
    out.protocol = ip.u8::<9>();
    out.payload = body(packet.len(), out.l3, header, u32::from(ip.be16::<2>()))?;
    out.l4 = out.l3 + header;
    if header > 20 {
        out.marks |= marks::EXTENDED;
    }
    // More-fragments bit and offset.
    let fragment = ip.be16::<6>() & 0x3fff;
    if fragment != 0 {
        out.marks |= marks::FRAGMENT;
    }
    if fragment & 0x1fff == 0 {
        out.marks |= marks::TRANSPORT;
    }
    Ok(())
}

/// 1 where any bit is set, else 0, without a branch.
#[inline(always)]
const fn any(byte: u8) -> u32 {
    (byte as u32 + 0xff) >> 8
}

#[inline(always)]
const fn mapped(addr: &Addr) -> bool {
    let words = addr.words();
    words[0] | words[1] == 0 && words[2] == 0xffff_u32.to_be()
}

#[inline(always)]
fn address<R: Reader>(packet: &R, at: u32) -> Result<Addr, Skip> {
    let raw = packet.window::<16>(at).ok_or(Skip::Short)?;
    Ok(Addr::from_words([raw.raw32::<0>(), raw.raw32::<4>(), raw.raw32::<8>(), raw.raw32::<12>()]))
}

#[inline(always)]
fn headers_v6<R: Reader>(packet: &R, out: &mut Packet) -> Result<(), Skip> {
    let ip = packet.window::<8>(out.l3).ok_or(Skip::Short)?;
    out.src = address(packet, out.l3 + at::V6_SRC as u32)?;
    out.dst = address(packet, out.l3 + at::V6_DST as u32)?;
    // Mapped addresses are the map keys of IPv4 addresses. They have no place on the wire (RFC 4038 section 4.2), and are no backend's.
    if mapped(&out.src) || mapped(&out.dst) {
        return Err(Skip::Malformed);
    }
    let length = u32::from(ip.be16::<4>());
    let total = if length == 0 { 0 } else { length + 40 };
    // An empty body is legal, and told from BIG TCP by the frame's length.
    let have = packet.len().wrapping_sub(out.l3);
    let body = if total == 0 && have <= 0xffff { 0 } else { body(packet.len(), out.l3, 40, total)? };
    let mut next = ip.u8::<6>();
    let mut at: u32 = 40;
    out.marks |= marks::TRANSPORT;
    let mut i = 0;
    while i < MAX_EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let ext = packet.window::<8>(out.l3 + at).ok_or(Skip::Short)?;
        out.marks |= marks::EXTENDED;
        // Without branches: each would double the ways through the loop that the verifier follows. The length field of a
        // fragment header is reserved.
        let other = any(next ^ FRAGMENT);
        let len = ((u32::from(ext.u8::<1>()) & 0_u32.wrapping_sub(other)) + 1) * 8;
        // Offset and more-fragments bit; both zero make an atomic fragment, which is none (RFC 6946).
        let [high, low] = (ext.be16::<2>() & 0xfff9 & (other as u16).wrapping_sub(1)).to_be_bytes();
        let behind_first = any(high | low & 0xf8) as u8;
        let segments_left = ext.u8::<3>() & (any(next ^ ROUTING) as u8).wrapping_sub(1);
        out.marks |= any(high | low) as u8 * marks::FRAGMENT;
        out.marks |= any(segments_left) as u8 * marks::WAYPOINT;
        out.marks &= !(behind_first * marks::TRANSPORT);
        next = ext.u8::<0>();
        at += len;
        if at > MAX_TRANSPORT || at - 40 > body {
            return Err(Skip::Malformed);
        }
        if !out.is(marks::TRANSPORT) {
            break;
        }
        i += 1;
    }
    if out.is(marks::TRANSPORT) && is_extension(next) {
        return Err(Skip::Malformed);
    }
    out.protocol = next;
    out.l4 = out.l3 + at;
    out.payload = body - (at - 40);
    Ok(())
}
