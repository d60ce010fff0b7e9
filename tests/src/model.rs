//! A model of what the programs must do with a packet. It is written from the specification alone and uses no code, no type and no constant of the kernel
//! programs. It is slow and simple on purpose.
use std::collections::{HashMap, HashSet};

mod headers;

pub use headers::{Hook, Ip};
use headers::{Lack, Seen, Tcp, find_ip, is_mapped, read_v4, read_v6, transport};

/// What the operator wants done with packets to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Nothing: the node is healthy.
    Nothing,
    /// Refuse packets by RST and ICMP.
    Refuse,
    /// Drop packets without an answer.
    Drop,
    /// Count packets, and let them pass.
    Observe,
    /// Nothing: it is the own node.
    Ignore,
}

/// A node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The operator's order.
    pub order: Order,
    /// Whether the verdict has lapsed.
    pub lapsed: bool,
    /// The generation of the node's index.
    pub generation: u32,
}

/// A backend.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// The index of the node.
    pub node: u32,
    /// The generation of the node's index when the backend was written.
    pub generation: u32,
    /// Whether only some ports of the address are backends.
    pub host_network: bool,
}

/// Everything that the programs know.
#[derive(Clone, Default, Debug)]
pub struct World {
    /// Backends by address.
    pub backends: HashMap<Ip, Backend>,
    /// Host-network endpoints, by address, port and protocol.
    pub ports: HashSet<(Ip, u16, u8)>,
    /// Exempt ports, by address, port and protocol. If only some ports of the address are backends, only the exempt ports pass. Otherwise the whole address
    /// passes, except for [`World::cut`].
    pub exempt: HashSet<(Ip, u16, u8)>,
    /// Ports of exempt addresses that are cut, by address, port and protocol.
    pub cut: HashSet<(Ip, u16, u8)>,
    /// Nodes by index.
    pub nodes: HashMap<u32, Node>,
    /// The MAC address of the device on which XDP runs.
    pub mac: [u8; 6],
    /// The MAC addresses of this node's devices.
    pub own_macs: HashSet<[u8; 6]>,
    /// The ids of the outer and the inner VLAN tag of packets that leave by a route to a backend. 0 means no tag.
    pub route_vlans: HashSet<(u16, u16)>,
    /// Whether user space accepts packets to rescue.
    pub rescues: bool,
    /// Whether user space makes every answer, because this kernel leaves a redirected answer untranslated.
    pub injects: bool,
    /// Whether there are VLAN devices on the device on which XDP runs.
    pub vlans: bool,
    /// Whether XDP runs on skbs there (generic XDP).
    pub generic: bool,
    /// The budgets for a second.
    pub budgets: Budgets,
}

/// The budgets for a second, or what is left of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Budgets {
    /// ICMP answers, for the machine.
    pub icmp: u32,
    /// TCP answers that user space makes, for the machine.
    pub answers: u32,
    /// Samples of cut packets, for each processor.
    pub samples: u32,
}

/// The fate of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The packet passes unchanged.
    Pass,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and this packet goes back.
    Answer(Vec<u8>),
}

/// The judgement of a packet: its fate, its counter, and the records for user space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// The packet's fate.
    pub fate: Fate,
    /// The name of the counter that counts the packet.
    pub counted: Option<&'static str>,
    /// The name of the counter in the sample of the packet. `None` without a sample.
    pub sample: Option<&'static str>,
    /// Whether the answer takes one from the budget of ICMP answers.
    pub icmp: bool,
    /// The node of the destination and the offset of the IP header, if the destination is a backend.
    pub to: Option<(u32, usize)>,
}

impl Judgement {
    /// The judgement when this is `left` of the second's budgets, from which the packet's parts are taken.
    pub fn within(mut self, left: &mut Budgets) -> Self {
        if self.icmp {
            if left.icmp == 0 {
                return Self { to: self.to, ..dropped("icmp_limited") };
            }
            left.icmp -= 1;
        }
        if self.counted == Some("handed") && !self.icmp {
            if left.answers == 0 {
                self.counted = Some("answer_limited");
            } else {
                left.answers -= 1;
            }
        }
        if self.sample.is_some() {
            if left.samples == 0 {
                self.sample = None;
            } else {
                left.samples -= 1;
            }
        }
        self
    }
}

fn judged(fate: Fate, counted: Option<&'static str>) -> Judgement {
    Judgement { fate, counted, sample: None, icmp: false, to: None }
}

fn pass() -> Judgement {
    judged(Fate::Pass, None)
}

fn passed(counted: &'static str) -> Judgement {
    judged(Fate::Pass, Some(counted))
}

fn dropped(counted: &'static str) -> Judgement {
    judged(Fate::Drop, Some(counted))
}

/// The packet is cut without an answer.
fn cut(counted: &'static str) -> Judgement {
    Judgement { sample: Some(counted), ..dropped(counted) }
}

/// The packet is cut with an answer. The programs make the answer (`Some`), or user space does (`None`).
fn answered(counted: &'static str, packet: Option<Vec<u8>>) -> Judgement {
    let judgement = match packet {
        Some(packet) => judged(Fate::Answer(packet), Some(counted)),
        None => dropped("handed"),
    };
    Judgement { sample: Some(counted), icmp: counted == "unreachable", ..judgement }
}

/// Whether an answer may be sent to or from an address.
fn answerable(ip: &[u8]) -> bool {
    if ip.len() == 4 {
        !(ip[0] == 0 || ip[0] == 127 || ip[0] >= 224)
    } else {
        let zeros = ip[..15].iter().all(|byte| *byte == 0);
        ip[0] != 255 && !(zeros && ip[15] <= 1)
    }
}

/// The required judgement of a frame, without regard to budgets.
pub fn judge(world: &World, hook: Hook, frame: &[u8]) -> Judgement {
    if hook == Hook::Xdp && frame[..6] != world.mac {
        return pass();
    }
    let (at, family) = match find_ip(hook, frame) {
        Ok(found) => found,
        Err(Lack::Foreign) => return pass(),
        Err(Lack::Broken) => return passed("unparsed"),
    };
    let destination = if family == 4 { &frame[at + 16..at + 20] } else { &frame[at + 24..at + 40] };
    // An IPv6 packet to a mapped address meets the IPv4 backend, since the programs store IPv4 addresses in mapped form.
    let key = if family == 6 && is_mapped(destination) { &destination[12..] } else { destination };
    let Some(backend) = world.backends.get(key) else { return pass() };
    match judge_backend(world, hook, frame, at, family, backend) {
        // A frame that passes XDP comes to TC egress and is counted there.
        Judgement { fate: Fate::Pass, .. } if hook == Hook::Xdp => pass(),
        judgement => Judgement { to: Some((backend.node, at)), ..judgement },
    }
}

fn judge_backend(
    world: &World,
    hook: Hook,
    frame: &[u8],
    at: usize,
    family: u8,
    backend: &Backend,
) -> Judgement {
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
    if hook == Hook::Ethernet && is_foreign(world, frame, at) {
        return passed("foreign");
    }
    let Some(seen) = (if family == 4 { read_v4(frame, at) } else { read_v6(frame, at) }) else {
        return passed("unparsed");
    };
    let Some(found) = transport(frame, &seen) else { return passed("unparsed") };
    if backend.host_network {
        if seen.fragment {
            return passed("fragment_passed");
        }
        let Some(port) = found.destination else { return pass() };
        if !world.ports.contains(&(seen.dst.clone(), port as u16, seen.protocol)) {
            return pass();
        }
    }
    if world.exempt.iter().any(|(address, _, _)| *address == seen.dst) {
        // A fragment passes, since it may belong to an exempt flow.
        if seen.fragment {
            return passed("fragment_passed");
        }
        let port = found.destination.map(|port| (seen.dst.clone(), port as u16, seen.protocol));
        let passes = |port| match backend.host_network {
            true => world.exempt.contains(&port),
            false => !world.cut.contains(&port),
        };
        if port.is_none_or(passes) {
            return passed("exempt");
        }
    }
    if !backend.host_network
        && family == 6
        && seen.protocol == 58
        && seen.transport.is_some()
        && (133..=137).contains(&found.icmp)
    {
        return passed("neighbour_discovery");
    }
    if node.order == Order::Observe {
        return Judgement { sample: Some("observed"), ..passed("observed") };
    }
    if seen.fragment {
        return cut("fragment_dropped");
    }
    let group = hook == Hook::Ethernet && frame[0] & 1 == 1 || hook == Hook::Xdp && frame[0] & 1 == 1;
    if node.order == Order::Drop || group || seen.waypoint || !answerable(&seen.src) || !answerable(&seen.dst)
    {
        return cut("dropped");
    }
    // Rescued are packets that open a connection, and datagrams, if they have no extension headers. XDP rescues none, since it sees packets before their
    // translation.
    let opens = found.tcp.as_ref().is_some_and(|tcp| tcp.flags & 0x17 == 2);
    if world.rescues
        && hook != Hook::Xdp
        && !seen.extended
        && (opens || seen.protocol == 17)
        && frame.len() - at <= 2_048
    {
        return dropped("rescue");
    }
    match (&found.tcp, seen.protocol) {
        (Some(tcp), _) if tcp.flags & 4 != 0 => cut("dropped"),
        // TC egress makes the answer, since one that is sent from XDP might arrive damaged.
        (Some(_), _) if hook == Hook::Xdp && (world.generic || world.vlans && at == 14) => pass(),
        (Some(tcp), _) => {
            let by_user_space = world.injects && hook != Hook::Xdp;
            let counted = if tcp.flags & 0x10 != 0 { "reset" } else { "refused" };
            // XDP fills the answer up, since the device sends its frame as it is. The shortest Ethernet frame has 60 bytes and a check sequence.
            let shortest = if hook == Hook::Xdp { 60 } else { 0 };
            let answer = || {
                let mut answer = answer_tcp(frame, at, &seen, tcp);
                answer.resize(answer.len().max(shortest), 0);
                answer
            };
            answered(counted, (!by_user_space).then(answer))
        }
        (None, 17) if hook == Hook::Xdp => cut("dropped"),
        (None, 17) => {
            let by_user_space = world.injects || seen.extended;
            answered("unreachable", (!by_user_space).then(|| unreachable(frame, at, &seen)))
        }
        _ => cut("dropped"),
    }
}

/// Whether a frame was not sent by this node, or is in a VLAN by which no route to a backend leaves.
fn is_foreign(world: &World, frame: &[u8], at: usize) -> bool {
    let tag = |number: usize| match at >= 14 + 4 * number {
        true => u16::from(frame[10 + 4 * number] & 15) << 8 | u16::from(frame[11 + 4 * number]),
        false => 0,
    };
    !world.own_macs.iter().any(|mac| *mac == frame[6..12]) || !world.route_vlans.contains(&(tag(1), tag(2)))
}

fn answer_tcp(frame: &[u8], at: usize, seen: &Seen, tcp: &Tcp) -> Vec<u8> {
    let fin = tcp.flags & 1;
    let syn = tcp.flags >> 1 & 1;
    let ack = tcp.flags >> 4 & 1;
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
    packet_back(frame, at, seen, 6, 0, &segment)
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
