//! Builds frames of every shape that the programs must handle, and of some that they must not.
use std::net::IpAddr;

/// The outer and inner VLAN ids of packets that leave by routes to backends. 0 means no tag.
pub const ROUTE_VLANS: [(u16, u16); 3] = [(0, 0), (VLAN, 0), (VLAN, VLAN + 1)];

/// The part after the IP header.
#[derive(Clone, Debug)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// Sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Flags byte.
        flags: u8,
    },
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP or ICMPv6 of this type.
    Icmp(u8),
    /// Only payload, of this IP protocol.
    Raw(u8),
}

/// A frame to build.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The Ethernet destination and source. `None` on a device without a link-layer header.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// The ethertypes of the VLAN tags.
    pub tags: Vec<u16>,
    /// The VLAN id of the first tag. Each next tag has the next id.
    pub vlan: u16,
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6 extension headers, each with its type and its bytes. The first byte is replaced by the type of the next header.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// IPv4: the fragment offset in units of eight bytes, and the flag of more fragments.
    pub fragment: Option<(u16, bool)>,
    /// The transport part.
    pub transport: Transport,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// TCP options, a multiple of four bytes.
    pub tcp_options: Vec<u8>,
    /// The bytes after the transport header.
    pub payload: Vec<u8>,
}

/// The MAC address of the sending device.
pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
/// The MAC address of the neighbour.
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];

/// The VLAN id of the first tag.
pub const VLAN: u16 = 100;

impl Frame {
    /// An Ethernet frame from [`OWN_MAC`] to [`PEER_MAC`], without tags, options and extension headers.
    pub fn new(src: IpAddr, dst: IpAddr, transport: Transport) -> Self {
        Self {
            macs: Some((PEER_MAC, OWN_MAC)),
            tags: Vec::new(),
            vlan: VLAN,
            src,
            dst,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            transport,
            sport: 40_001,
            dport: 8_080,
            tcp_options: Vec::new(),
            payload: b"nodefence".to_vec(),
        }
    }

    /// The IPv6 fragment header, as an extension header.
    pub fn fragment_header(offset: u16, more: bool) -> (u8, Vec<u8>) {
        let field = (offset << 3 | u16::from(more)).to_be_bytes();
        (44, vec![0, 0, field[0], field[1], 0, 0, 0, 7])
    }

    /// The offset of the IP header.
    pub fn l3(&self) -> usize {
        self.macs.map_or(0, |_| 14 + 4 * self.tags.len())
    }

    /// The IP protocol, and the bytes after the IP header and its extension headers.
    fn segment(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let ports = [self.sport.to_be_bytes(), self.dport.to_be_bytes()].concat();
        let protocol = match &self.transport {
            Transport::Tcp { seq, ack, flags } => {
                out.extend(ports);
                out.extend(seq.to_be_bytes());
                out.extend(ack.to_be_bytes());
                out.extend([((20 + self.tcp_options.len()) as u8 / 4) << 4, *flags, 1, 0, 0xab, 0xcd, 0, 0]);
                out.extend(&self.tcp_options);
                6
            }
            Transport::Udp => {
                out.extend(ports);
                out.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                out.extend([0x12, 0x34]);
                17
            }
            Transport::Sctp => {
                out.extend(ports);
                out.extend([0, 0, 0, 1, 0, 0, 0, 0]);
                132
            }
            Transport::Icmp(kind) => {
                out.extend([*kind, 0, 0, 0, 0, 1, 0, 1]);
                if self.src.is_ipv4() { 1 } else { 58 }
            }
            Transport::Raw(protocol) => *protocol,
        };
        out.extend(&self.payload);
        (protocol, out)
    }

    /// The bytes of the frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let ethertype: u16 = if self.src.is_ipv4() { 0x0800 } else { 0x86dd };
        if let Some((dst, src)) = self.macs {
            out.extend(dst);
            out.extend(src);
            for (i, tag) in self.tags.iter().enumerate() {
                out.extend(tag.to_be_bytes());
                // The tag has a priority too, which is no part of the VLAN id.
                out.extend((0x6000 | (self.vlan + i as u16)).to_be_bytes());
            }
            out.extend(ethertype.to_be_bytes());
        }
        let (protocol, segment) = self.segment();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = 20 + self.options.len();
                let (offset, more) = self.fragment.unwrap_or((0, false));
                let field = offset | if more { 0x2000 } else { 0 };
                out.push(0x40 | (header / 4) as u8);
                out.push(0);
                out.extend(((header + segment.len()) as u16).to_be_bytes());
                out.extend([0x1c, 0x46]);
                out.extend(field.to_be_bytes());
                out.extend([63, protocol, 0xbe, 0xef]);
                out.extend(src.octets());
                out.extend(dst.octets());
                out.extend(&self.options);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let extensions: usize = self.extensions.iter().map(|(_, bytes)| bytes.len()).sum();
                out.extend([0x60, 1, 2, 3]);
                out.extend(((extensions + segment.len()) as u16).to_be_bytes());
                out.push(self.extensions.first().map_or(protocol, |(kind, _)| *kind));
                out.push(63);
                out.extend(src.octets());
                out.extend(dst.octets());
                for (i, (_, bytes)) in self.extensions.iter().enumerate() {
                    out.push(self.extensions.get(i + 1).map_or(protocol, |(kind, _)| *kind));
                    out.extend(&bytes[1..]);
                }
            }
            _ => unreachable!("addresses of two families in one packet"),
        }
        out.extend(segment);
        out
    }
}
