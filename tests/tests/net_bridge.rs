//! Other senders on the wire by which this node's packets leave. Their packets to a flagged backend's address must not be cut.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Netns,
    client::wait_until,
    packet_frame::{Frame, Transport},
    packet_wire::{Offload, Wire},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(5);
/// How long a test waits for a frame that must not arrive.
const SILENCE: Duration = Duration::from_millis(500);

/// Node A has a bridge, whose ports are the uplink and a tenant's device. Node B has a pod's address.
struct Wired {
    a: Arc<Netns>,
    b: Netns,
    tenant: Netns,
}

const PODS: [&str; 2] = ["10.244.2.7", "fd00:2::7"];
const OWN: [&str; 2] = ["10.0.0.1", "fd00::1"];

const FILE: &str = "nodes:
- {name: node-a, addresses: [10.0.0.1, 'fd00::1']}
- {name: node-b, addresses: [10.0.0.2, 'fd00::2'], backends: [{address: 10.244.2.7}, {address: 'fd00:2::7'}]}
- {name: node-c, address: 10.0.0.4}
";

impl Wired {
    fn new() -> Result<Self> {
        let a = Netns::new("bridge-a")?;
        let b = Netns::new("bridge-b")?;
        let tenant = Netns::new("tenant")?;
        a.veth("eth0", &b, "eth0")?;
        a.veth("port0", &tenant, "eth0")?;
        a.ip("link add br0 type bridge
             link set br0 address 02:00:00:00:aa:01
             link set eth0 master br0
             link set port0 master br0
             link set br0 up
             addr add 10.0.0.1/24 dev br0
             addr add fd00::1/64 dev br0 nodad
             route add 10.244.2.0/24 via 10.0.0.2
             route add fd00:2::/64 via fd00::2")?;
        b.ip("addr add 10.0.0.2/24 dev eth0
             addr add fd00::2/64 dev eth0 nodad
             addr add 10.244.2.7/32 dev lo
             addr add fd00:2::7/128 dev lo nodad")?;
        tenant.ip("addr add 10.0.0.3/24 dev eth0
             addr add fd00::3/64 dev eth0 nodad
             route add 10.244.2.0/24 via 10.0.0.2
             route add fd00:2::/64 via fd00::2")?;
        let this = Self { a: Arc::new(a), b, tenant };
        this.switches_by_itself();
        Ok(this)
    }

    /// Switches off br_netfilter's calls into iptables, if that module is loaded. The test's frames have no valid checksums, so no rule of the node may see them.
    fn switches_by_itself(&self) {
        for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
            let _not_loaded = self.a.sysctl(key, "0");
        }
    }

    fn agent(&self, interfaces: &[&str]) -> Result<Agent> {
        Agent::start_with(&self.a, "node-a", interfaces, FILE, &["--proxy", "none"])
    }
}

/// Parses `02:00:00:00:aa:01`.
fn mac(text: &str) -> Result<[u8; 6]> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    bytes.try_into().ok().with_context(|| text.to_owned())
}

/// A frame of each kind that the programs answer, drop or hand to `rescue`, from an address to a pod of the flagged node.
fn frames(from: [&str; 2], to: [u8; 6], by: [u8; 6]) -> Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    for (from, pod) in from.into_iter().zip(PODS) {
        for transport in [
            Transport::Tcp { seq: 1, ack: 0, flags: 2 },
            Transport::Tcp { seq: 2, ack: 3, flags: 0x18 },
            Transport::Tcp { seq: 2, ack: 3, flags: 4 },
            Transport::Udp,
            Transport::Sctp,
        ] {
            let mut frame = Frame::new(from.parse::<IpAddr>()?, pod.parse()?, transport);
            frame.macs = Some((to, by));
            out.push(frame.bytes());
        }
    }
    Ok(out)
}

/// Sends each frame by one device. Gives for each whether it arrives unchanged at the other device.
fn arrive(
    from: (&Netns, &str),
    to: (&Netns, &str),
    frames: &[Vec<u8>],
    within: Duration,
) -> Result<Vec<bool>> {
    let sender = from.0.ifindex(from.1)?;
    let receiver = to.0.ifindex(to.1)?;
    let sender = from.0.run(move || Wire::open(sender))?;
    let receiver = to.0.run(move || Wire::open(receiver))?;
    let mut arrived = Vec::new();
    for frame in frames {
        sender.send(Offload::default(), frame)?;
        arrived.push(receiver.receive(within, |found| found == frame).is_ok());
    }
    Ok(arrived)
}

fn all(arrived: &[bool], is: bool) -> bool {
    !arrived.is_empty() && arrived.iter().all(|arrived| *arrived == is)
}

fn foreign(agent: &Agent) -> Result<u64> {
    let counters: Value = serde_json::from_str(&agent.expect(&["counters", "-o", "json"])?)?;
    let row =
        counters["items"].as_array().and_then(|rows| rows.iter().find(|row| row["reason"] == "foreign"));
    row.and_then(|row| row["packets"].as_u64()).with_context(|| counters.to_string())
}

/// The node's bridge switches a tenant's packets to the uplink by which the node's own packets leave.
#[test]
fn what_a_tenant_on_the_bridge_sends_is_untouched() -> Result<()> {
    let wired = Wired::new()?;
    let to_b = mac(&wired.b.mac("eth0")?)?;
    let tenants = mac(&wired.tenant.mac("eth0")?)?;
    let listeners = wired.b.run(|| {
        PODS.map(|pod| TcpListener::bind((pod.parse::<IpAddr>().expect("an address"), 8080)).expect("listen"))
    });
    let connect = |ns: &Netns, pod: &'static str| {
        ns.run(move || {
            let at = SocketAddr::new(pod.parse().expect("an address"), 8080);
            TcpStream::connect_timeout(&at, LIMIT)
        })
    };
    for pod in PODS {
        connect(&wired.a, pod).context("before the flag")?;
    }
    // `auto` comes first, since an agent leaves a device that was attached once only after a minute.
    for interfaces in [&["auto"][..], &["eth0"], &["eth0", "port0"]] {
        let agent = wired.agent(interfaces)?;
        let before = foreign(&agent)?;
        agent.flag("node-b")?;
        let theirs = frames(["10.0.0.3", "fd00::3"], to_b, tenants)?;
        // These frames have the node's own IP addresses. Only their source MAC address tells them from the node's packets.
        let same = frames(OWN, to_b, tenants)?;
        for frames in [theirs, same] {
            let arrived = arrive((&wired.tenant, "eth0"), (&wired.b, "eth0"), &frames, LIMIT)?;
            ensure!(
                all(&arrived, true),
                "{interfaces:?}: {arrived:?} of a tenant's frames arrived as they were"
            );
        }
        for pod in PODS {
            let own = connect(&wired.a, pod);
            ensure!(
                own.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused),
                "{interfaces:?}: the node's own connection: {own:?}"
            );
            connect(&wired.tenant, pod).with_context(|| format!("{interfaces:?}: a tenant's connection"))?;
        }
        // Programs that are attached to the bridge only do not see the frames that the bridge switches.
        ensure!(
            (foreign(&agent)? > before) == (interfaces != ["auto"]),
            "{interfaces:?}: {}",
            foreign(&agent)?
        );
        let told = agent.expect(&["status"])?;
        let what =
            if interfaces == ["auto"] { "a bridge: what pods" } else { "port of the bridge br0: what pods" };
        ensure!(told.contains(what), "{interfaces:?}: {told}");
        let status = agent.status()?;
        ensure!(status["interfaces"][0]["bridge"] == "br0", "{}", status["interfaces"]);
        agent.unflag("node-b")?;
    }
    drop(listeners);
    Ok(())
}

/// A device gets another MAC address while a node is flagged, and then another device comes.
#[test]
fn a_device_s_new_address_is_followed() -> Result<()> {
    let wired = Wired::new()?;
    let to_b = mac(&wired.b.mac("eth0")?)?;
    let agent = wired.agent(&["eth0", "port0"])?;
    agent.flag("node-b")?;
    let arrived = |own: &str| {
        let frames = frames(OWN, to_b, mac(own)?)?;
        arrive((&wired.a, "br0"), (&wired.b, "eth0"), &frames, SILENCE)
    };
    let old = "02:00:00:00:aa:01";
    let new = "02:00:00:00:aa:02";
    ensure!(all(&arrived(old)?, false), "frames with the device's MAC address passed");
    ensure!(all(&arrived(new)?, true), "frames with a MAC address that no device has yet were cut");
    wired.a.ip(&format!("link set br0 address {new}"))?;
    let is = |own: &str, arrives: bool| arrived(own).is_ok_and(|arrived| all(&arrived, arrives));
    wait_until("the new address is known", LIMIT, || is(new, false))?;
    wait_until("the old address is no longer one of this node's", LIMIT, || is(old, true))?;
    // The routes leave by another device from now on. They may come back, so frames by the bridge are still cut.
    wired.a.ip("link add up1 type veth peer name up2
        link set up1 address 02:00:00:00:aa:03
        link set up1 up
             link set up2 up
        route replace 10.244.2.0/24 dev up1
        route replace fd00:2::/64 dev up1
        addr del 10.0.0.1/24 dev br0
        addr del fd00::1/64 dev br0
        addr add 10.0.0.1/24 dev up1
        addr add fd00::1/64 dev up1 nodad")?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(all(&arrived(new)?, false), "frames by the bridge passed right after the route left it");
    Ok(())
}

/// Runs in guests, since not every kernel has VLAN devices.
mod vlan {
    use super::*;

    /// Node A's route to node B leaves by VLAN 5 of its uplink. A tenant is bridged into VLAN 200 of that uplink.
    fn wired() -> Result<Wired> {
        let a = Netns::new("vlan-a")?;
        let b = Netns::new("vlan-b")?;
        let tenant = Netns::new("tenant")?;
        a.veth("eth0", &b, "eth0")?;
        a.veth("port0", &tenant, "eth0")?;
        for ns in [&a, &b] {
            ns.ip("link add link eth0 name eth0.5 type vlan id 5
                 link set eth0.5 up
                 link add link eth0 name eth0.200 type vlan id 200
                 link set eth0.200 up")?;
        }
        a.ip("link add br200 type bridge
             link set eth0.200 master br200
             link set port0 master br200
             link set br200 up
             addr add 10.0.0.1/24 dev eth0.5
             addr add fd00::1/64 dev eth0.5 nodad
             route add 10.244.2.0/24 via 10.0.0.2
             route add fd00:2::/64 via fd00::2")?;
        b.ip("addr add 10.0.0.2/24 dev eth0.5
             addr add fd00::2/64 dev eth0.5 nodad
             addr add 10.244.2.7/32 dev lo
             addr add fd00:2::7/128 dev lo nodad")?;
        let wired = Wired { a: Arc::new(a), b, tenant };
        wired.switches_by_itself();
        Ok(wired)
    }

    #[test]
    fn a_tenant_of_another_vlan_is_untouched() -> Result<()> {
        let wired = wired()?;
        let to_b = mac(&wired.b.mac("eth0")?)?;
        let tenants = mac(&wired.tenant.mac("eth0")?)?;
        let own = mac(&wired.a.mac("eth0")?)?;
        let agent = wired.agent(&["eth0"])?;
        agent.flag("node-b")?;
        let ours = frames(OWN, to_b, own)?;
        let arrived = arrive((&wired.a, "eth0.5"), (&wired.b, "eth0.5"), &ours, SILENCE)?;
        ensure!(all(&arrived, false), "in the VLAN of the routes: {arrived:?}");
        let before = foreign(&agent)?;
        let arrived =
            arrive((&wired.tenant, "eth0"), (&wired.b, "eth0.200"), &frames(OWN, to_b, tenants)?, LIMIT)?;
        ensure!(all(&arrived, true), "of a tenant in another VLAN: {arrived:?}");
        // These frames have the node's own MAC address, as frames of its own device in VLAN 200 have.
        let arrived = arrive((&wired.a, "eth0.200"), (&wired.b, "eth0.200"), &ours, LIMIT)?;
        ensure!(all(&arrived, true), "in a VLAN by which no route to a backend leaves: {arrived:?}");
        let counted = foreign(&agent)? - before;
        ensure!(counted == 20, "{counted} of 20 frames were counted as foreign");
        // A route leaves by VLAN 200 from now on.
        wired.a.ip("addr add 10.0.1.1/24 dev br200
             neigh add 10.0.1.2 lladdr 02:00:00:00:00:09 dev br200
             route replace 10.244.2.0/24 via 10.0.1.2 dev br200")?;
        let cut = || {
            let frames = &ours[..ours.len() / 2];
            let arrived = arrive((&wired.a, "eth0.200"), (&wired.b, "eth0.200"), frames, SILENCE);
            arrived.is_ok_and(|arrived| all(&arrived, false))
        };
        wait_until("the VLAN of the new route is known", 2 * LIMIT, cut).map(drop)
    }
}
