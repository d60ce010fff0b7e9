//! The second step of reading a packet that may be cut: ports, flags and numbers.
use super::{
    bytes::{Reader, Window as _},
    parse::{Packet, Skip, marks},
    protocol,
};

/// Reads the transport header, where this packet has it. A first fragment may end within it, and is a fragment all the same.
///
/// # Errors
/// As [`super::network()`].
#[inline(always)]
pub fn transport<R: Reader>(packet: &R, out: &mut Packet) -> Result<(), Skip> {
    if !out.is(marks::TRANSPORT) {
        return Ok(());
    }
    match transport_header(packet, out) {
        Err(_) if out.is(marks::FRAGMENT) => {
            out.kind = 0;
            Ok(())
        }
        done => done,
    }
}

#[inline(always)]
fn transport_header<R: Reader>(packet: &R, out: &mut Packet) -> Result<(), Skip> {
    match out.protocol {
        protocol::TCP => {
            if out.payload < 20 {
                return Err(Skip::Malformed);
            }
            let tcp = packet.window::<20>(out.l4).ok_or(Skip::Short)?;
            let header = u32::from(tcp.u8::<12>() >> 4) * 4;
            if header < 20 || header > out.payload {
                return Err(Skip::Malformed);
            }
            out.src_port = tcp.be16::<0>();
            out.dst_port = tcp.be16::<2>();
            out.seq = tcp.be32::<4>();
            out.ack = tcp.be32::<8>();
            out.kind = tcp.u8::<13>();
            out.payload -= header;
        }
        protocol::UDP => {
            if out.payload < 8 {
                return Err(Skip::Malformed);
            }
            let udp = packet.window::<8>(out.l4).ok_or(Skip::Short)?;
            out.src_port = udp.be16::<0>();
            out.dst_port = udp.be16::<2>();
            out.payload -= 8;
        }
        protocol::SCTP => {
            if out.payload < 12 {
                return Err(Skip::Malformed);
            }
            let sctp = packet.window::<12>(out.l4).ok_or(Skip::Short)?;
            out.src_port = sctp.be16::<0>();
            out.dst_port = sctp.be16::<2>();
            out.payload -= 12;
        }
        protocol::ICMP | protocol::ICMPV6 => {
            if out.payload < 8 {
                return Err(Skip::Malformed);
            }
            out.kind = packet.window::<8>(out.l4).ok_or(Skip::Short)?.u8::<0>();
        }
        _ => {}
    }
    Ok(())
}
