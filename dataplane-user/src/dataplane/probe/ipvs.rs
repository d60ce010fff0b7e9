//! Does IPVS translate a RST that the egress program made in place? One virtual server, one real server that is flagged, one connection
//! from the namespace itself: refused at once where the answer comes back translated, silence where it does not.
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_GENERIC};
use nix::{
    mount::{MsFlags, mount},
    time::{ClockId, clock_gettime},
};
use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, Verdict};

use crate::{
    conntrack::wire::{message, nest, put},
    dataplane::{
        Dataplane, Options,
        netlink::{CREATE, EXCL, Netlink, Request},
    },
    plan::Tables,
};

/// Exists where IPVS is loaded. Asking the kernel for it by name would load it.
const LOADED: &str = "/proc/thread-self/net/ip_vs";
/// An untranslated answer is no answer: how long to wait for one.
const SILENCE: Duration = Duration::from_millis(400);

const DEVICE: &str = "nfprobe0";
const PEER: &str = "nfprobe1";
/// Benchmarking addresses (RFC 2544): on no host's own network.
const LOCAL: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const REAL: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const VIRTUAL: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const VIRTUAL_PORT: u16 = 80;
const REAL_PORT: u16 = 8080;

pub(super) fn is_loaded() -> bool {
    Path::new(LOADED).exists()
}

pub(super) fn probe() -> Result<bool, String> {
    let private_bpf = private_mounts()?;
    devices()?;
    // Without conntrack IPVS does not mark its packets; kube-proxy sets this as well.
    std::fs::write("/proc/sys/net/ipv4/vs/conntrack", "1")
        .map_err(|error| format!("set vs.conntrack: {error}"))?;
    virtual_server()?;

    let options = Options { pin_dir: private_bpf, max_backends: 16, ..Options::default() };
    let mut dataplane = Dataplane::open(&options).map_err(|error| error.to_string())?;
    dataplane.write(&flagged()?).map_err(|error| error.to_string())?;
    let status = dataplane.attach(&[DEVICE.to_owned()]);
    if let Some(error) = status.into_iter().find_map(|status| status.error) {
        return Err(error);
    }
    match TcpStream::connect_timeout(&SocketAddr::from((VIRTUAL, VIRTUAL_PORT)), SILENCE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
        Err(error) => Err(format!("connect to the virtual server: {error}")),
        Ok(_) => Err("a virtual server without a server behind it took a connection".to_owned()),
    }
}

/// A BPF filesystem that only this thread sees and that ends with it.
fn private_mounts() -> Result<std::path::PathBuf, String> {
    let none: Option<&str> = None;
    let failed = |errno: nix::Error| format!("make private mounts: {errno}");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(failed)?;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).map_err(failed)?;
    Ok(Path::new("/sys/fs/bpf").join(nodefence_common::PIN_ROOT).join(nodefence_common::PIN_VERSION))
}

/// Loopback with the virtual address, a veth pair with a neighbour behind it that does not exist.
fn devices() -> Result<(), String> {
    const RTM_NEWLINK: u16 = 16;
    const RTM_NEWADDR: u16 = 20;
    const RTM_NEWNEIGH: u16 = 28;
    const NUD_PERMANENT: u16 = 0x80;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_INFO_DATA: u16 = 2;
    const VETH_INFO_PEER: u16 = 1;

    let mut netlink = Netlink::open().map_err(|error| error.to_string())?;
    let mut ask = |request: &Request, what: &str| {
        netlink.ask(request).map(drop).map_err(|refused| refused.into_error(what).to_string())
    };
    let link = |index: u32, up: bool| {
        let up = if up { libc::IFF_UP as u32 } else { 0 };
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[8..12].copy_from_slice(&up.to_ne_bytes());
        header[12..16].copy_from_slice(&up.to_ne_bytes());
        header
    };
    let pair = Request::new(RTM_NEWLINK, CREATE | EXCL, &link(0, false)).text(IFLA_IFNAME, DEVICE).nest(
        IFLA_LINKINFO,
        |info| {
            info.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                // The peer's own header and attributes.
                let mut peer = link(0, false).to_vec();
                let name = [PEER.as_bytes(), &[0]].concat();
                put(&mut peer, IFLA_IFNAME, &name);
                data.attr(VETH_INFO_PEER, &peer)
            })
        },
    );
    ask(&pair, "make a veth pair")?;
    ask(&Request::new(RTM_NEWLINK, 0, &link(1, true)), "set the loopback device up")?;
    let index = nix::net::if_::if_nametoindex(DEVICE).map_err(|errno| format!("{DEVICE}: {errno}"))?;
    // Not up from the start: without its peer veth_open() fails with ENOTCONN (drivers/net/veth.c, Linux 6.1).
    ask(&Request::new(RTM_NEWLINK, 0, &link(index, true)), "set the veth device up")?;
    let peer = nix::net::if_::if_nametoindex(PEER).map_err(|errno| format!("{PEER}: {errno}"))?;
    ask(&Request::new(RTM_NEWLINK, 0, &link(peer, true)), "set the veth device up")?;

    for (index, address, bits) in [(1, VIRTUAL, 32_u8), (index, LOCAL, 24)] {
        // struct ifaddrmsg: family, prefix length, flags, scope, index; IFA_ADDRESS and IFA_LOCAL.
        let mut header = vec![libc::AF_INET as u8, bits, 0, 0];
        header.extend_from_slice(&index.to_ne_bytes());
        let request = Request::new(RTM_NEWADDR, CREATE | EXCL, &header);
        ask(&request.attr(1, &address.octets()).attr(2, &address.octets()), "add an address")?;
    }
    let mut header = vec![libc::AF_INET as u8, 0, 0, 0];
    header.extend_from_slice(&index.to_ne_bytes());
    header.extend_from_slice(&NUD_PERMANENT.to_ne_bytes());
    header.extend_from_slice(&[0, 0]);
    let neighbour = Request::new(RTM_NEWNEIGH, CREATE, &header).attr(1, &REAL.octets());
    ask(&neighbour.attr(2, &[2, 0, 0, 0, 0, 1]), "add a neighbour")
}

fn flagged() -> Result<Tables, String> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|errno| errno.to_string())?;
    let until = u64::try_from(now.tv_sec() + 60).unwrap_or(0) * 1_000_000_000;
    let entry = NodeEntry {
        verdict: Verdict::Flagged as u32,
        action: Action::Refuse as u32,
        until,
        generation: 1,
        name: [0; 28],
    };
    let backend = BackendEntry { node: 0, generation: 1, flags: 0 };
    Ok(Tables {
        backends: HashMap::from([(Addr::v4(REAL.octets()), backend)]),
        ports: HashMap::new(),
        nodes: BTreeMap::from([(0, entry)]),
    })
}

/// The two messages that IPVS needs (include/uapi/linux/ip_vs.h): a virtual server, and a real server behind it by NAT.
fn virtual_server() -> Result<(), String> {
    const NEW_SERVICE: u8 = 1;
    const NEW_DEST: u8 = 5;
    const SERVICE: u16 = 1;
    const DEST: u16 = 2;

    let family = family_id("IPVS")?;
    let address = |ip: Ipv4Addr| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&ip.octets());
        bytes
    };
    let key = |out: &mut Vec<u8>| {
        put(out, 1, &(libc::AF_INET as u16).to_ne_bytes());
        put(out, 2, &(libc::IPPROTO_TCP as u16).to_ne_bytes());
        put(out, 3, &address(VIRTUAL));
        put(out, 4, &VIRTUAL_PORT.to_be_bytes());
    };
    generic(family, NEW_SERVICE, |out| {
        nest(out, SERVICE, |out| {
            key(out);
            put(out, 6, b"rr\0");
            put(out, 7, &[0; 8]);
            put(out, 8, &0_u32.to_ne_bytes());
            put(out, 9, &u32::MAX.to_ne_bytes());
        });
    })
    .map_err(|error| format!("make a virtual server: {error}"))?;
    generic(family, NEW_DEST, |out| {
        nest(out, SERVICE, key);
        nest(out, DEST, |out| {
            put(out, 1, &address(REAL));
            put(out, 2, &REAL_PORT.to_be_bytes());
            // Masquerading, weight 1, no thresholds.
            for (kind, value) in [(3, 0_u32), (4, 1), (5, 0), (6, 0)] {
                put(out, kind, &value.to_ne_bytes());
            }
        });
    })
    .map_err(|error| format!("make a real server: {error}"))?;
    Ok(())
}

/// Number of a generic netlink family (`CTRL_CMD_GETFAMILY`, genetlink.h).
fn family_id(name: &str) -> Result<u16, String> {
    const CONTROL: u16 = 0x10;
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    let text = [name.as_bytes(), &[0]].concat();
    let answer = generic(CONTROL, GET_FAMILY, |out| put(out, FAMILY_NAME, &text))
        .map_err(|error| format!("find the {name} netlink family: {error}"))?;
    crate::dataplane::netlink::attrs(answer.get(4..).unwrap_or_default())
        .find(|(kind, _)| *kind == FAMILY_ID)
        .and_then(|(_, value)| value.try_into().ok().map(u16::from_ne_bytes))
        .ok_or_else(|| format!("the kernel did not tell the number of the {name} netlink family"))
}

/// Sends one generic netlink command; the body of the first answer that is no acknowledgement.
fn generic(family: u16, command: u8, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<Vec<u8>> {
    const NLMSG_ERROR: u16 = 2;
    const VERSION: u8 = 1;
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    // struct genlmsghdr has the size of struct nfgenmsg: command, version, two reserved bytes.
    let mut request = message(family, NLM_F_REQUEST | NLM_F_ACK, command, 0, 1, body);
    request[17] = VERSION;
    socket.send(&request, 0)?;
    let mut answer = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let message = NetlinkBuffer::new_checked(&bytes[..]).map_err(io::Error::other)?;
        if message.message_type() != NLMSG_ERROR {
            answer = message.payload().to_vec();
            continue;
        }
        let code = message.payload().first_chunk().map_or(0, |&code| i32::from_ne_bytes(code));
        return if code == 0 { Ok(answer) } else { Err(io::Error::from_raw_os_error(-code)) };
    }
}
