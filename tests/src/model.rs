//! A plain model of what the programs must do with a packet, written from the specification alone: no code, no type and no
//! constant of the kernel programs. Slow and simple on purpose.
use std::collections::{HashMap, HashSet};

/// An address as its family's bytes.
pub type Ip = Vec<u8>;

/// What the operator ordered for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Nothing: healthy.
    Nothing,
    /// Refuse with RST and ICMP.
    Refuse,
    /// Drop.
    Drop,
    /// Count only.
    Observe,
    /// The own node.
    Ignore,
}

/// A node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// What is ordered.
    pub order: Order,
    /// The time until which it holds has passed.
    pub lapsed: bool,
    /// Its generation.
    pub generation: u32,
}

/// A backend.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Its node.
    pub node: u32,
    /// The node's generation when it was written.
    pub generation: u32,
    /// Only some ports of the address are backends.
    pub host_network: bool,
}

/// All that the programs know.
#[derive(Clone, Default, Debug)]
pub struct World {
    /// Backends by address.
    pub backends: HashMap<Ip, Backend>,
    /// Host-network endpoints: address, port, protocol.
    pub ports: HashSet<(Ip, u16, u8)>,
    /// Nodes by index.
    pub nodes: HashMap<u32, Node>,
    /// MAC address of the device that XDP runs on.
    pub mac: [u8; 6],
}

/// Where a packet is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// TC egress, with an Ethernet header.
    Ethernet,
    /// TC egress without; the ethertype that the device noted.
    Bare(u16),
    /// XDP.
    Xdp,
}

/// What becomes of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Goes on unchanged.
    Pass,
    /// Is gone.
    Drop,
    /// Is gone, and this goes back.
    Answer(Vec<u8>),
}

/// What becomes of a packet and the counter that says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// The packet's fate.
    pub fate: Fate,
    /// Name of the counter.
    pub counted: Option<&'static str>,
}

fn pass() -> Judgement {
    Judgement { fate: Fate::Pass, counted: None }
}

fn passed(counted: &'static str) -> Judgement {
    Judgement { fate: Fate::Pass, counted: Some(counted) }
}

fn dropped(counted: &'static str) -> Judgement {
    Judgement { fate: Fate::Drop, counted: Some(counted) }
}

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(*bytes.get(at)?) * 256 + usize::from(*bytes.get(at + 1)?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some((be16(bytes, at)? as u32) << 16 | be16(bytes, at + 2)? as u32)
}

/// Start of the IP header and its family (4 or 6), or what becomes of the packet without one.
fn find_ip(hook: Hook, frame: &[u8]) -> Result<(usize, u8), Judgement> {
    let short = passed("unparsed");
    let (mut kind, mut at) = match hook {
        Hook::Bare(kind) => (usize::from(kind), 0),
        Hook::Ethernet | Hook::Xdp => (be16(frame, 12).ok_or(short.clone())?, 14),
    };
    if hook == Hook::Ethernet || hook == Hook::Xdp {
        let mut tags = 0;
        while kind == 0x8100 || kind == 0x88a8 {
            tags += 1;
            if tags == 3 {
                return Err(short);
            }
            kind = be16(frame, at + 2).ok_or(short.clone())?;
            at += 4;
        }
    }
    let (family, header) = match kind {
        0x0800 => (4, 20),
        0x86dd => (6, 40),
        _ => return Err(pass()),
    };
    if frame.len() < at + header || frame[at] / 16 != family {
        return Err(short);
    }
    if family == 4 && frame[at] % 16 < 5 {
        return Err(short);
    }
    Ok((at, family))
}

/// What the headers say.
struct Seen {
    src: Ip,
    dst: Ip,
    protocol: u8,
    fragment: bool,
    /// Set unless the packet is a fragment behind the first.
    transport: Option<usize>,
    /// Bytes from the transport header's place to the end of the IP packet.
    body: usize,
    extended: bool,
    waypoint: bool,
}

fn read_v4(frame: &[u8], at: usize) -> Option<Seen> {
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
    let (more, offset) = (fragmentation & 0x2000 != 0, fragmentation & 0x1fff);
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

fn read_v6(frame: &[u8], at: usize) -> Option<Seen> {
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

fn is_mapped(ip: &[u8]) -> bool {
    ip[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]
}

fn answerable(ip: &[u8]) -> bool {
    if ip.len() == 4 {
        !(ip[0] == 0 || ip[0] == 127 || ip[0] >= 224)
    } else {
        let zeros = ip[..15].iter().all(|b| *b == 0);
        ip[0] != 255 && !(zeros && ip[15] <= 1)
    }
}

/// A TCP header.
struct Tcp {
    source: usize,
    destination: usize,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: usize,
}

/// Ports of a transport header; `Err` where it is cut off or contradicts itself.
fn transport(frame: &[u8], seen: &Seen) -> Result<(Option<Tcp>, Option<usize>, u8), ()> {
    let Some(at) = seen.transport else { return Ok((None, None, 0)) };
    let need = match seen.protocol {
        6 => 20,
        17 | 1 | 58 => 8,
        132 => 12,
        _ => return Ok((None, None, 0)),
    };
    if seen.body < need || frame.len() < at + need {
        return Err(());
    }
    let port = |at| be16(frame, at).ok_or(());
    match seen.protocol {
        6 => {
            let header = usize::from(frame[at + 12] / 16) * 4;
            if header < 20 || header > seen.body {
                return Err(());
            }
            let number = |at| be32(frame, at).ok_or(());
            let tcp = Tcp {
                source: port(at)?,
                destination: port(at + 2)?,
                seq: number(at + 4)?,
                ack: number(at + 8)?,
                flags: frame[at + 13],
                payload: seen.body - header,
            };
            let destination = tcp.destination;
            Ok((Some(tcp), Some(destination), 0))
        }
        1 | 58 => Ok((None, None, frame[at])),
        _ => Ok((None, Some(port(at + 2)?), 0)),
    }
}

/// What the programs must do with a frame.
pub fn judge(world: &World, hook: Hook, frame: &[u8]) -> Judgement {
    if hook == Hook::Xdp && frame[..6] != world.mac {
        return pass();
    }
    let (at, family) = match find_ip(hook, frame) {
        Ok(found) => found,
        Err(judgement) => return judgement,
    };
    let destination = if family == 4 { &frame[at + 16..at + 20] } else { &frame[at + 24..at + 40] };
    // The programs keep IPv4 addresses in mapped form.
    let key = if family == 6 && is_mapped(destination) { &destination[12..] } else { destination };
    let Some(backend) = world.backends.get(key) else { return pass() };
    let Some(node) = world.nodes.get(&backend.node) else { return pass() };
    if node.order == Order::Nothing || node.order == Order::Ignore {
        return pass();
    }
    if node.generation != backend.generation {
        return passed("stale");
    }
    if node.lapsed {
        return passed("lapsed");
    }
    let Some(seen) = (if family == 4 { read_v4(frame, at) } else { read_v6(frame, at) }) else {
        return passed("unparsed");
    };
    let (tcp, port, icmp) = match transport(frame, &seen) {
        Ok(read) => read,
        // A first fragment may end within its transport header.
        Err(()) if seen.fragment => (None, None, 0),
        Err(()) => return passed("unparsed"),
    };
    if backend.host_network {
        if seen.fragment {
            return passed("fragment_passed");
        }
        let Some(port) = port else { return pass() };
        if !world.ports.contains(&(seen.dst.clone(), port as u16, seen.protocol)) {
            return pass();
        }
    } else if family == 6 && seen.protocol == 58 && seen.transport.is_some() && (133..=137).contains(&icmp) {
        return passed("neighbour_discovery");
    }
    if node.order == Order::Observe {
        return passed("observed");
    }
    if seen.fragment {
        return dropped("fragment_dropped");
    }
    let group = hook == Hook::Ethernet && frame[0] & 1 == 1 || hook == Hook::Xdp && frame[0] & 1 == 1;
    if node.order == Order::Drop || group || seen.waypoint || !answerable(&seen.src) || !answerable(&seen.dst)
    {
        return dropped("dropped");
    }
    match (&tcp, seen.protocol) {
        (Some(tcp), _) => judge_tcp(frame, at, &seen, tcp),
        (None, 17) if hook == Hook::Xdp => dropped("dropped"),
        (None, 17) if seen.extended => dropped("handed"),
        (None, 17) => {
            Judgement { fate: Fate::Answer(unreachable(frame, at, &seen)), counted: Some("unreachable") }
        }
        _ => dropped("dropped"),
    }
}

fn judge_tcp(frame: &[u8], at: usize, seen: &Seen, tcp: &Tcp) -> Judgement {
    let (fin, syn, rst, ack) = (tcp.flags & 1, tcp.flags >> 1 & 1, tcp.flags >> 2 & 1, tcp.flags >> 4 & 1);
    if rst == 1 {
        return dropped("dropped");
    }
    let mut segment = Vec::new();
    segment.extend((tcp.destination as u16).to_be_bytes());
    segment.extend((tcp.source as u16).to_be_bytes());
    if ack == 1 {
        segment.extend(tcp.ack.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend([0x50, 4]);
    } else {
        let next = tcp.seq.wrapping_add(tcp.payload as u32).wrapping_add(u32::from(fin + syn));
        segment.extend([0; 4]);
        segment.extend(next.to_be_bytes());
        segment.extend([0x50, 0x14]);
    }
    segment.extend([0; 6]);
    let check = checksum(&[pseudo(seen, 6, 20), segment.clone()].concat());
    segment[16..18].copy_from_slice(&check);
    let counted = Some(if ack == 1 { "reset" } else { "refused" });
    Judgement { fate: Fate::Answer(packet_back(frame, at, seen, 6, 0, &segment)), counted }
}

fn unreachable(frame: &[u8], at: usize, seen: &Seen) -> Vec<u8> {
    let v4 = seen.src.len() == 4;
    let quoted = &frame[at..at + if v4 { 28 } else { 48 }];
    let mut message = vec![if v4 { 3 } else { 1 }, if v4 { 3 } else { 4 }, 0, 0, 0, 0, 0, 0];
    message.extend(quoted);
    let head = if v4 { Vec::new() } else { pseudo(seen, 58, message.len()) };
    let check = checksum(&[head, message.clone()].concat());
    message[2..4].copy_from_slice(&check);
    packet_back(frame, at, seen, if v4 { 1 } else { 58 }, 0xc0, &message)
}

fn pseudo(seen: &Seen, protocol: u8, len: usize) -> Vec<u8> {
    let mut out = [seen.dst.clone(), seen.src.clone()].concat();
    out.extend([0, protocol]);
    out.extend((len as u16).to_be_bytes());
    out
}

fn packet_back(frame: &[u8], at: usize, seen: &Seen, protocol: u8, tos: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if at >= 14 {
        out.extend(&frame[6..12]);
        out.extend(&frame[..6]);
        out.extend(&frame[12..at]);
    }
    if seen.src.len() == 4 {
        let mut ip = vec![0x45, tos];
        ip.extend(((20 + body.len()) as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        ip.extend(&seen.dst);
        ip.extend(&seen.src);
        let check = checksum(&ip);
        ip[10..12].copy_from_slice(&check);
        out.extend(ip);
    } else {
        out.extend([0x60, 0, 0, 0]);
        out.extend((body.len() as u16).to_be_bytes());
        out.extend([protocol, 64]);
        out.extend(&seen.dst);
        out.extend(&seen.src);
    }
    out.extend(body);
    out
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8;
        sum += u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    (!(sum as u16)).to_be_bytes()
}
