//! A million random and mutated packets: the programs and the plain model agree on each.
//!
//! `NODEFENCE_FUZZ_PACKETS` and `NODEFENCE_FUZZ_SEED` choose another number and another seed.
use std::{collections::HashMap, env, mem::swap, net::IpAddr, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use nodefence_common::{Config, Reason};
use nodefence_tests::{
    model::{Backend, Fate, Hook, Ip, Judgement, Order, World, judge, stamped},
    packet::{Outcome, Programs, TC_DROP, TC_PASS, TC_REDIRECT, XDP, XDP_DROP, XDP_PASS, XDP_TX},
    packet_frame::{Frame, OWN_MAC, PEER_MAC, Transport},
    packet_world::{
        HOST, HOST_PORT, KEPT, KEPT_PORT, LAST, STALE, bytes, install, keep, odd_backends, v4, v6, world,
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom as _};

const THREADS: u64 = 2;

/// A node's backend in whose packets the kernel finds an ethertype where a frame starts with the IP header.
fn bare_backend(node: u32, sixth: bool) -> IpAddr {
    let text = if sixth { format!("fd00:0:86dd:{node}::7") } else { format!("8.0.{node}.7") };
    text.parse().expect("an address")
}

fn whole_world() -> World {
    let mut world = world();
    for node in 0..=LAST {
        for sixth in [false, true] {
            let generation = if node == STALE { 3 } else { 10 + node };
            let backend = Backend { node, generation, host_network: node == HOST };
            let ip = bare_backend(node, sixth);
            if node == HOST || node == KEPT {
                keep(&mut world, ip, node);
            }
            world.backends.insert(bytes(ip), backend);
        }
    }
    world
}

fn number(name: &str, default: u64) -> Result<u64> {
    match env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}: expected a number, found {text:?}")),
        Err(_) => Ok(default),
    }
}

#[test]
fn the_programs_do_what_the_model_does() -> Result<()> {
    let packets = number("NODEFENCE_FUZZ_PACKETS", 1_000_000)?;
    let seed = number("NODEFENCE_FUZZ_SEED", rand::rng().random())?;
    println!("{packets} packets, NODEFENCE_FUZZ_SEED={seed}");
    let threads: Vec<_> = (0..THREADS)
        .map(|i| thread::spawn(move || run(seed.wrapping_add(i), packets.div_ceil(THREADS), i % 2 == 1)))
        .collect();
    let mut fates = HashMap::<&str, u64>::new();
    for handle in threads {
        let counts = handle.join().map_err(|_| anyhow!("a thread panicked"))??;
        for (name, count) in counts {
            *fates.entry(name).or_default() += count;
        }
    }
    println!("{fates:?}");
    // The test would prove little if its packets did not reach every rule.
    ensure!(packets < 1_000 || fates.contains_key("stamped"), "no packet was noted at ingress");
    // The kernel's test run has no socket that is connected to anything.
    let out_of_reach = |r: &Reason| matches!(r, Reason::IcmpLimited | Reason::Failed | Reason::OwnSocket);
    for reason in Reason::ALL.iter().filter(|r| !out_of_reach(r)) {
        ensure!(
            packets < 100_000 || fates.contains_key(reason.name()),
            "no packet was counted as {}",
            reason.name()
        );
    }
    Ok(())
}

fn run(seed: u64, packets: u64, rescues: bool) -> Result<HashMap<&'static str, u64>> {
    let world = World { rescues, ..whole_world() };
    let mut programs = Programs::load()?;
    if rescues {
        programs.take_rescues_until(u64::MAX)?;
    }
    install(&mut programs, &world)?;
    programs.configure(Config { flags: 0, icmp_per_second: u32::MAX, samples_per_second: 0, zero: 0 })?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut counts = HashMap::new();
    for i in 0..packets {
        let (name, bytes) = draw(&mut random);
        let hook = match name {
            XDP => Hook::Xdp,
            "nf_egress_l2" | "nf_ingress_l2" => Hook::Ethernet,
            _ => Hook::Bare(u16::from_be_bytes([bytes[12], bytes[13]])),
        };
        let ingress = name.starts_with("nf_ingress");
        let expected = if ingress {
            // It only looks.
            Judgement { fate: Fate::Pass, counted: None }
        } else {
            judge(&world, hook, &bytes)
        };
        let outcome = programs.run(name, &bytes).with_context(|| format!("{name} on {bytes:02x?}"))?;
        let agreed = agrees(&world, name, &bytes, &expected, &outcome);
        ensure!(
            agreed,
            "packet {i} of seed {seed}, {name} on {bytes:02x?}\nexpected {expected:02x?}\nfound {outcome:02x?}"
        );
        let mut fate = expected.counted.unwrap_or("not counted");
        if ingress {
            let expected = stamped(&world, hook, &bytes);
            for node in 0..=LAST {
                let noted = programs.seen(node)? != 0;
                ensure!(
                    noted == (expected == Some(node)),
                    "packet {i} of seed {seed}, {name} on {bytes:02x?}\nexpected a stamp of {expected:?}, node {node}: {noted}"
                );
                if noted {
                    programs.set_seen(node, 0)?;
                    fate = "stamped";
                }
            }
        }
        *counts.entry(fate).or_default() += 1;
        if i % 512 == 0 {
            programs.events()?;
        }
        // The ring holds 498 of the longest records.
        if rescues && i % 256 == 0 {
            programs.rescues()?;
        }
    }
    for reason in Reason::ALL {
        let (counted, expected) =
            (programs.counter(*reason)?.packets, counts.get(reason.name()).copied().unwrap_or(0));
        ensure!(
            counted == expected,
            "{}: counted {counted}, expected {expected} (seed {seed})",
            reason.name()
        );
    }
    Ok(counts)
}

fn agrees(world: &World, name: &str, bytes: &[u8], expected: &Judgement, outcome: &Outcome) -> bool {
    let (pass, drop, answer) =
        if name == XDP { (XDP_PASS, XDP_DROP, XDP_TX) } else { (TC_PASS, TC_DROP, TC_REDIRECT) };
    // Independent of the model: nothing is ever cut but what bears the address of a flagged node's backend where a destination
    // stands, behind an Ethernet header with at most two tags or none at all.
    let flagged = |backend: &Backend| {
        world.nodes.get(&backend.node).is_some_and(|node| {
            matches!(node.order, Order::Refuse | Order::Drop)
                && !node.lapsed
                && node.generation == backend.generation
        })
    };
    let stands = |ip: &Ip, header: usize| {
        let at = header + if ip.len() == 4 { 16 } else { 24 };
        bytes.get(at..at + ip.len()) == Some(ip)
    };
    let addressed = || {
        world.backends.iter().any(|(ip, backend)| {
            flagged(backend) && [0, 14, 18, 22].into_iter().any(|header| stands(ip, header))
        })
    };
    if outcome.verdict != pass && !addressed() {
        return false;
    }
    match &expected.fate {
        Fate::Pass => outcome.verdict == pass && outcome.packet == bytes,
        Fate::Drop => outcome.verdict == drop && outcome.packet == bytes,
        Fate::Answer(packet) => outcome.verdict == answer && outcome.packet == *packet,
    }
}

/// A program and a packet for it.
fn draw(random: &mut StdRng) -> (&'static str, Vec<u8>) {
    let name = *["nf_egress_l2", "nf_egress_l2", "nf_egress_l3", XDP, XDP, "nf_ingress_l2", "nf_ingress_l3"]
        .choose(random)
        .expect("not empty");
    let mut bytes = if random.random_ratio(1, 50) {
        let mut noise = vec![0; random.random_range(15..200)];
        random.fill(&mut noise[..]);
        noise
    } else {
        mutated(random, name)
    };
    if name != XDP {
        // The kernel refuses to run a classifier on less (bpf_prog_test_run_skb, Linux 6.18).
        let least = match bytes[12..14] {
            [8, 0] => 34,
            [0x86, 0xdd] => 54,
            _ => 15,
        };
        if bytes.len() < least {
            bytes.resize(least, 0);
        }
    }
    (name, bytes)
}

/// A packet that the program may know, often with faults.
fn mutated(random: &mut StdRng, name: &str) -> Vec<u8> {
    let bare = name.ends_with("_l3");
    let mut frame = shape(random, bare);
    if name.starts_with("nf_ingress") {
        swap(&mut frame.src, &mut frame.dst);
        swap(&mut frame.sport, &mut frame.dport);
        if bare && random.random_ratio(9, 10) {
            frame.src = bare_backend(random.random_range(0..=LAST), frame.src.is_ipv6());
        }
    }
    let mut bytes = frame.bytes();
    if random.random_ratio(1, 3) {
        mutate(random, &mut bytes);
    }
    if bare && random.random_ratio(9, 10) {
        // What the kernel takes for the ethertype of this frame lies in the source address.
        let ethertype: [u8; 2] = if bytes[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        bytes[12..14].copy_from_slice(&ethertype);
    }
    bytes
}

fn mutate(random: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..5) {
        // Mostly the headers.
        let end = if random.random_bool(0.8) { bytes.len().min(80) } else { bytes.len() };
        let at = random.random_range(0..end);
        bytes[at] = match random.random_range(0..4) {
            0 => random.random(),
            1 => 0,
            2 => 0xff,
            _ => bytes[at] ^ 1 << random.random_range(0..8),
        };
    }
    match random.random_range(0..6) {
        0 => bytes.truncate(random.random_range(15..=bytes.len())),
        1 => bytes.resize(bytes.len() + random.random_range(1..60), 0),
        _ => {}
    }
}

fn shape(random: &mut StdRng, bare: bool) -> Frame {
    let sixth = random.random_bool(0.45);
    let src = source(random, sixth);
    let dst = destination(random, sixth);
    let transport = match random.random_range(0..12) {
        0..=5 => Transport::Tcp {
            seq: random.random(),
            ack: random.random(),
            flags: *[0x10, 0x18, 0x11, 0x02, 0x12, 0x00, 0x01, 0x04, 0x14, 0x03]
                .choose(random)
                .expect("not empty"),
        },
        6 | 7 => Transport::Udp,
        8 => Transport::Sctp,
        9 | 10 => {
            Transport::Icmp(if random.random() { random.random_range(130..140) } else { random.random() })
        }
        _ => Transport::Raw(random.random()),
    };
    let mut frame = Frame::new(src, dst, transport);
    frame.macs = (!bare).then(|| match random.random_range(0..20) {
        0 => ([0xff; 6], OWN_MAC),
        1 => ([1, 0, 0x5e, 0, 0, 9], OWN_MAC),
        2 => (random.random(), random.random()),
        _ => (PEER_MAC, OWN_MAC),
    });
    if random.random_ratio(1, 4) {
        frame.tags =
            (0..random.random_range(1..4)).map(|_| if random.random() { 0x8100 } else { 0x88a8 }).collect();
    }
    if random.random_bool(0.5) {
        frame.dport = *[HOST_PORT, KEPT_PORT].choose(random).expect("not empty");
    }
    frame.sport = random.random();
    frame.payload = vec![random.random(); random.random_range(0..120)];
    if random.random_ratio(1, 4) {
        frame.tcp_options = vec![1; 4 * random.random_range(1..=10)];
    }
    if sixth {
        if random.random_ratio(1, 3) {
            frame.extensions = (0..random.random_range(1..8)).map(|_| extension(random)).collect();
        }
    } else {
        if random.random_ratio(1, 5) {
            frame.options = vec![1; 4 * random.random_range(1..=10)];
        }
        if random.random_ratio(1, 8) {
            frame.fragment = Some((*[0, 1, 185, 0x1fff].choose(random).expect("not empty"), random.random()));
        }
    }
    frame
}

fn extension(random: &mut StdRng) -> (u8, Vec<u8>) {
    let kind = *[0, 43, 60, 44, 135, 51, 59].choose(random).expect("not empty");
    if kind == 44 {
        return Frame::fragment_header(*[0, 0, 1, 100].choose(random).expect("not empty"), random.random());
    }
    let units: u8 =
        if random.random_ratio(1, 20) { random.random_range(10..80) } else { random.random_range(0..3) };
    let mut bytes = vec![0; 8 * (usize::from(units) + 1)];
    bytes[1] = units;
    bytes[3] = u8::from(random.random_ratio(1, 4));
    (kind, bytes)
}

fn source(random: &mut StdRng, sixth: bool) -> IpAddr {
    let odd = random.random_ratio(1, 12);
    let texts: &[&str] = match (sixth, odd) {
        (false, false) => &["8.0.5.5", "10.1.0.9", "192.0.2.77", "223.255.255.254"],
        (false, true) => &["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.7", "240.0.0.1"],
        (true, false) => &["2001:db8:86dd::5", "fd00:1::9", "fe80::1", "::2", "::1:0:0:1"],
        (true, true) => &["::", "::1", "ff02::1", "ffff::1", "::ffff:10.244.1.7"],
    };
    texts.choose(random).expect("not empty").parse().expect("an address")
}

fn destination(random: &mut StdRng, sixth: bool) -> IpAddr {
    match random.random_range(0..20) {
        0 => {
            let odd: Vec<_> = odd_backends().into_iter().filter(|ip| ip.is_ipv6() == sixth).collect();
            *odd.choose(random).expect("not empty")
        }
        1 if sixth => "::ffff:10.244.1.7".parse().expect("an address"),
        1 => "10.244.1.8".parse().expect("an address"),
        2..=9 => {
            if sixth {
                v6(1)
            } else {
                v4(1)
            }
        }
        _ => {
            let node = random.random_range(0..=LAST);
            if sixth { v6(node) } else { v4(node) }
        }
    }
}
