//! Reads headers, slowly and simply.

/// An address: the 4 or 16 bytes of its IP version.
pub type Ip = Vec<u8>;

/// The hook at which a program sees a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// TC egress, with an Ethernet header.
    Ethernet,
    /// TC egress without an Ethernet header, with the ethertype in the skb.
    Bare(u16),
    /// XDP.
    Xdp,
}

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(*bytes.get(at)?) * 256 + usize::from(*bytes.get(at + 1)?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some((be16(bytes, at)? as u32) << 16 | be16(bytes, at + 2)? as u32)
}

/// The reason why there is no IP header.
pub(super) enum Lack {
    /// The packet is of another protocol.
    Foreign,
    /// The header is cut off or invalid.
    Broken,
}

/// Finds the offset of the IP header and the IP version (4 or 6).
pub(super) fn find_ip(hook: Hook, frame: &[u8]) -> Result<(usize, u8), Lack> {
    let (mut kind, mut at) = match hook {
        Hook::Bare(kind) => (usize::from(kind), 0),
        Hook::Ethernet | Hook::Xdp => (be16(frame, 12).ok_or(Lack::Broken)?, 14),
    };
    if hook == Hook::Ethernet || hook == Hook::Xdp {
        let mut tags = 0;
        while kind == 0x8100 || kind == 0x88a8 {
            tags += 1;
            if tags == 3 {
                return Err(Lack::Broken);
            }
            kind = be16(frame, at + 2).ok_or(Lack::Broken)?;
            at += 4;
        }
    }
    let (family, header) = match kind {
        0x0800 => (4, 20),
        0x86dd => (6, 40),
        _ => return Err(Lack::Foreign),
    };
    if frame.len() < at + header || frame[at] / 16 != family {
        return Err(Lack::Broken);
    }
    if family == 4 && frame[at] % 16 < 5 {
        return Err(Lack::Broken);
    }
    Ok((at, family))
}

/// The content of the headers.
pub(super) struct Seen {
    pub(super) src: Ip,
    pub(super) dst: Ip,
    pub(super) protocol: u8,
    pub(super) fragment: bool,
    /// The offset of the transport header. `None` in a fragment after the first.
    pub(super) transport: Option<usize>,
    /// The number of bytes from the transport header to the end of the IP packet.
    pub(super) body: usize,
    /// Whether there are IPv4 options or IPv6 extension headers.
    pub(super) extended: bool,
    /// Whether a routing header has segments left, so that the destination is not the last one.
    pub(super) waypoint: bool,
}

pub(super) fn read_v4(frame: &[u8], at: usize) -> Option<Seen> {
    let ip = &frame[at..];
    let header = usize::from(ip[0] % 16) * 4;
    let mut total = be16(ip, 2)?;
    if total == 0 && ip.len() > 65_535 {
        total = ip.len();
    }
    if total < header || total > ip.len() {
        return None;
    }
    let fragmentation = be16(ip, 6)?;
    let more = fragmentation & 0x2000 != 0;
    let offset = fragmentation & 0x1fff;
    Some(Seen {
        src: ip[12..16].to_vec(),
        dst: ip[16..20].to_vec(),
        protocol: ip[9],
        fragment: more || offset != 0,
        transport: (offset == 0).then_some(at + header),
        body: total - header,
        extended: header > 20,
        waypoint: false,
    })
}

pub(super) fn read_v6(frame: &[u8], at: usize) -> Option<Seen> {
    let ip = &frame[at..];
    let mut body = be16(ip, 4)?;
    if body == 0 && ip.len() > 65_535 {
        body = ip.len() - 40;
    }
    if 40 + body > ip.len() {
        return None;
    }
    let mut seen = Seen {
        src: ip[8..24].to_vec(),
        dst: ip[24..40].to_vec(),
        protocol: ip[6],
        fragment: false,
        transport: None,
        body,
        extended: false,
        waypoint: false,
    };
    if is_mapped(&seen.src) || is_mapped(&seen.dst) {
        return None;
    }
    let mut here = 40;
    let mut behind_first = false;
    let mut headers = 0;
    while !behind_first && [0, 43, 44, 60, 135, 139, 140].contains(&seen.protocol) {
        headers += 1;
        if headers > 6 || ip.len() < here + 8 {
            return None;
        }
        seen.extended = true;
        let mut len = (usize::from(ip[here + 1]) + 1) * 8;
        if seen.protocol == 43 && ip[here + 3] > 0 {
            seen.waypoint = true;
        }
        if seen.protocol == 44 {
            len = 8;
            let offset = be16(ip, here + 2)? >> 3;
            let more = ip[here + 3] & 1 == 1;
            seen.fragment |= offset > 0 || more;
            behind_first = offset > 0;
        }
        seen.protocol = ip[here];
        here += len;
        if here > 512 || here - 40 > body {
            return None;
        }
    }
    seen.body = body - (here - 40);
    seen.transport = (!behind_first).then_some(at + here);
    Some(seen)
}

pub(super) fn is_mapped(ip: &[u8]) -> bool {
    ip[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]
}

/// A TCP header.
pub(super) struct Tcp {
    pub(super) source: usize,
    pub(super) destination: usize,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) payload: usize,
}

/// A transport header.
#[derive(Default)]
pub(super) struct Transport {
    pub(super) source: Option<usize>,
    pub(super) destination: Option<usize>,
    pub(super) tcp: Option<Tcp>,
    /// The type of an ICMP message.
    pub(super) icmp: u8,
    /// The number of bytes after the transport header, or of the whole body if there is no header to read.
    pub(super) payload: usize,
}

/// Reads the transport header. `None` means that it is unreadable. A first fragment may end within the header.
pub(super) fn transport(frame: &[u8], seen: &Seen) -> Option<Transport> {
    let without = Transport { payload: seen.body, ..Transport::default() };
    match whole_transport(frame, seen) {
        Ok(found) => Some(found.unwrap_or(without)),
        Err(()) => seen.fragment.then_some(without),
    }
}

/// Reads a whole transport header. `Err` means that it is cut off or contradicts itself.
fn whole_transport(frame: &[u8], seen: &Seen) -> Result<Option<Transport>, ()> {
    let Some(at) = seen.transport else { return Ok(None) };
    let need = match seen.protocol {
        6 => 20,
        17 | 1 | 58 => 8,
        132 => 12,
        _ => return Ok(None),
    };
    if seen.body < need || frame.len() < at + need {
        return Err(());
    }
    if seen.protocol == 1 || seen.protocol == 58 {
        return Ok(Some(Transport { icmp: frame[at], payload: seen.body, ..Transport::default() }));
    }
    let mut out = Transport {
        source: Some(be16(frame, at).ok_or(())?),
        destination: Some(be16(frame, at + 2).ok_or(())?),
        payload: seen.body - need,
        ..Transport::default()
    };
    if seen.protocol == 6 {
        let header = usize::from(frame[at + 12] / 16) * 4;
        if header < 20 || header > seen.body {
            return Err(());
        }
        out.payload = seen.body - header;
        let number = |at| be32(frame, at).ok_or(());
        out.tcp = Some(Tcp {
            source: out.source.unwrap_or_default(),
            destination: out.destination.unwrap_or_default(),
            seq: number(at + 4)?,
            ack: number(at + 8)?,
            flags: frame[at + 13],
            payload: out.payload,
        });
    }
    Ok(Some(out))
}
