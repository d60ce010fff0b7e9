//! Finds out whether IPVS translates a RST that the egress program made in place. The probe makes one virtual server, one flagged real
//! server and one connection from its own namespace. If IPVS translates the answer, the connection is refused at once. Otherwise the
//! connection gets no answer.
use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use nix::{
    mount::{MsFlags, mount},
    time::{ClockId, clock_gettime},
};
use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, Verdict};

use nodefence_core::plan::Tables;

use crate::{
    dataplane::{
        Dataplane, NodeWriter, Options,
        netlink::{Netlink, Request},
    },
    ipvs::{BadName, Change, ChangeOutcome, Destination, Ipvs, Protocol, Service, ServiceKey},
    netlink::{nest, put, put_text},
};

/// How long to wait for an answer. An answer that is not translated never reaches the connection.
const SILENCE: Duration = Duration::from_millis(400);

const DEVICE: &str = "nfprobe0";
const PEER: &str = "nfprobe1";
/// Addresses for benchmarks (RFC 2544), which no host's own network has.
const LOCAL: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const REAL: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const VIRTUAL: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const VIRTUAL_PORT: u16 = 80;
const REAL_PORT: u16 = 8080;

/// Index and generation of the node of the real server.
const NODE: u32 = 0;
const GENERATION: u32 = 1;

pub(super) use crate::ipvs::is_loaded;

pub(super) fn probe() -> Result<bool, String> {
    let private_bpf = private_mounts()?;
    devices()?;
    // With vs.conntrack at 0 IPVS does not mark its packets. kube-proxy sets it to 1 too.
    std::fs::write("/proc/sys/net/ipv4/vs/conntrack", "1")
        .map_err(|error| format!("set vs.conntrack: {error}"))?;
    virtual_server()?;

    let options = Options { pin_dir: private_bpf, max_backends: 16, ..Options::default() };
    let mut dataplane = Dataplane::open(&options).map_err(|error| error.to_string())?;
    // The order of these writes does not matter: nothing is attached yet.
    let mut writer = NodeWriter::new(&dataplane.devices).map_err(|error| error.to_string())?;
    writer.write_node(NODE, &flagged()?).map_err(|error| error.to_string())?;
    dataplane.write(&tables()).map_err(|error| error.to_string())?;
    let status = dataplane.devices.attach(&[DEVICE.to_owned()]).map_err(|error| error.to_string())?;
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

/// Mounts a BPF filesystem that only this thread sees and that ends with it.
fn private_mounts() -> Result<std::path::PathBuf, String> {
    let none: Option<&str> = None;
    let failed = |errno: nix::Error| format!("make private mounts: {errno}");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(failed)?;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).map_err(failed)?;
    Ok(Path::new("/sys/fs/bpf").join(nodefence_common::PIN_ROOT).join(nodefence_common::PIN_VERSION))
}

/// Sets up the loopback device with the virtual address, and a veth pair with an entry for a neighbour that does not exist.
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
    let pair = Request::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link(0, false))
        .text(IFLA_IFNAME, DEVICE)
        .nest(IFLA_LINKINFO, |info| {
            put_text(info, IFLA_INFO_KIND, "veth");
            nest(info, IFLA_INFO_DATA, |data| {
                // The header and the attributes of the peer.
                let mut peer = link(0, false).to_vec();
                put_text(&mut peer, IFLA_IFNAME, PEER);
                put(data, VETH_INFO_PEER, &peer);
            });
        });
    ask(&pair, "make a veth pair")?;
    ask(&Request::new(RTM_NEWLINK, 0, &link(1, true)), "set the loopback device up")?;
    let index = nix::net::if_::if_nametoindex(DEVICE).map_err(|errno| format!("{DEVICE}: {errno}"))?;
    // The pair is brought up only after it was made: before its peer exists, veth_open() fails with ENOTCONN (drivers/net/veth.c, Linux
    // 6.1).
    ask(&Request::new(RTM_NEWLINK, 0, &link(index, true)), "set the veth device up")?;
    let peer = nix::net::if_::if_nametoindex(PEER).map_err(|errno| format!("{PEER}: {errno}"))?;
    ask(&Request::new(RTM_NEWLINK, 0, &link(peer, true)), "set the veth device up")?;

    for (index, address, bits) in [(1, VIRTUAL, 32_u8), (index, LOCAL, 24)] {
        // struct ifaddrmsg: family, prefix length, flags, scope, index; IFA_ADDRESS and IFA_LOCAL.
        let mut header = vec![libc::AF_INET as u8, bits, 0, 0];
        header.extend_from_slice(&index.to_ne_bytes());
        let request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header);
        ask(&request.attr(1, &address.octets()).attr(2, &address.octets()), "add an address")?;
    }
    let mut header = vec![libc::AF_INET as u8, 0, 0, 0];
    header.extend_from_slice(&index.to_ne_bytes());
    header.extend_from_slice(&NUD_PERMANENT.to_ne_bytes());
    header.extend_from_slice(&[0, 0]);
    let neighbour = Request::new(RTM_NEWNEIGH, NLM_F_CREATE, &header).attr(1, &REAL.octets());
    ask(&neighbour.attr(2, &[2, 0, 0, 0, 0, 1]), "add a neighbour")
}

fn tables() -> Tables {
    let backend = BackendEntry { node: NODE, generation: GENERATION, flags: 0 };
    Tables { backends: HashMap::from([(Addr::v4(REAL.octets()), backend)]), ports: HashMap::new() }
}

fn flagged() -> Result<NodeEntry, String> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|errno| errno.to_string())?;
    let until = u64::try_from(now.tv_sec() + 60).unwrap_or(0) * 1_000_000_000;
    Ok(NodeEntry {
        verdict: Verdict::Flagged as u32,
        action: Action::Refuse as u32,
        until,
        generation: GENERATION,
        name: [0; 28],
    })
}

/// Makes a virtual server and a real server behind it by NAT, as kube-proxy makes them.
fn virtual_server() -> Result<(), String> {
    let key =
        ServiceKey::Address { protocol: Protocol::TCP, address: SocketAddr::from((VIRTUAL, VIRTUAL_PORT)) };
    let scheduler = "rr".parse().map_err(|error: BadName| error.to_string())?;
    let real = Destination::new(SocketAddr::from((REAL, REAL_PORT)), 1);
    let changes = [Change::NewService(Service::new(key, scheduler)), Change::NewDestination(key, real)];
    let applied = Ipvs::open().map_err(|error| error.to_string())?.apply(&changes);
    if let Some(failure) = applied.failure {
        return Err(format!("make a virtual server: {failure}"));
    }
    match applied.outcomes.iter().find(|outcome| **outcome != ChangeOutcome::Done) {
        Some(outcome) => Err(format!("make a virtual server: {outcome:?}")),
        None => Ok(()),
    }
}
