//! What the programs read and write besides the packet: budgets, the ring buffer, deadlines. And how bpftool prints the maps.
use std::{
    collections::BTreeMap,
    net::IpAddr,
    process::Command,
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::time::{ClockId, clock_gettime};
use nodefence_common::{
    ANSWERS_PER_SECOND, Action, Addr, BackendEntry, Budget, Config, Device, EventKind, HEAD_LEN, NodeEntry,
    Reason, Verdict, config_flags,
};
use nodefence_tests::{
    packet::{
        Programs, TC_DROP, TC_PASS, TC_REDIRECT, XDP, XDP_DROP, XDP_PASS, XDP_TX, cpus, own_network, stay_on,
        stay_on_one_cpu,
    },
    packet_frame::{Frame, PEER_MAC, Transport},
    packet_world::{DROP, IFINDEX, REFUSE, install, name, v4, v6, world},
};

const SECOND: u64 = 1_000_000_000;

const DEFAULT: Config = Config { flags: 0, icmp_per_second: 1_000, samples_per_second: 0, zero: 0 };

fn loaded() -> Result<Programs> {
    own_network(false)?;
    let mut programs = Programs::load()?;
    install(&mut programs, &world())?;
    Ok(programs)
}

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

fn segment(node: u32) -> Vec<u8> {
    let client = "10.1.0.9".parse().expect("an address");
    Frame::new(client, v4(node), Transport::Tcp { seq: 1, ack: 2, flags: 16 }).bytes()
}

fn datagram(node: u32) -> Vec<u8> {
    Frame::new("10.1.0.9".parse().expect("an address"), v4(node), Transport::Udp).bytes()
}

/// The number of seconds that the time since `began` touches. Each has a budget.
fn seconds_since(began: u64) -> Result<u64> {
    Ok(now()? / SECOND - began / SECOND + 1)
}

#[test]
fn icmp_answers_have_one_budget_on_all_processors() -> Result<()> {
    let mut programs = loaded()?;
    programs.configure(Config { icmp_per_second: 7, ..DEFAULT })?;
    let cpus = cpus()?;
    let began = now()?;
    let mut answered = 0;
    for cpu in cpus.iter().cycle().take(50) {
        stay_on(*cpu)?;
        let outcome = programs.run("nf_egress_l2", &datagram(REFUSE))?;
        ensure!([TC_REDIRECT, TC_DROP].contains(&outcome.verdict), "verdict {}", outcome.verdict);
        answered += u64::from(outcome.verdict == TC_REDIRECT);
    }
    // A second may end meanwhile, and each has a budget of its own.
    let seconds = seconds_since(began)?;
    // TCP is answered also beyond the budget.
    ensure!(
        programs.run("nf_egress_l2", &segment(REFUSE))?.verdict == TC_REDIRECT,
        "the segment was not answered"
    );
    let budget = 7..=7 * seconds;
    ensure!(
        budget.contains(&answered) && answered < 50,
        "{answered} of 50 datagrams on {} processors, the budget is {budget:?}",
        cpus.len()
    );
    ensure!(programs.counter(Reason::IcmpLimited)?.packets == 50 - answered, "the rest was not counted");
    sleep(Duration::from_millis(1_050));
    let later = programs.run("nf_egress_l2", &datagram(REFUSE))?;
    ensure!(later.verdict == TC_REDIRECT, "no answer in the next second");
    Ok(())
}

/// The programs take no lock. So each processor may give one answer too many, and one more when a second ends.
#[test]
fn processors_that_ask_at_once_hold_one_budget() -> Result<()> {
    const BUDGET: u64 = 20;
    const EACH: u64 = 2_000;
    let mut programs = loaded()?;
    programs.configure(Config { icmp_per_second: BUDGET as u32, ..DEFAULT })?;
    let (cpus, began) = (cpus()?, now()?);
    let answers = |cpu: usize| -> Result<u64> {
        stay_on(cpu)?;
        let mut answers = 0;
        for _ in 0..EACH {
            answers += u64::from(programs.run("nf_egress_l2", &datagram(REFUSE))?.verdict == TC_REDIRECT);
        }
        Ok(answers)
    };
    let answers = &answers;
    let answered = thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || answers(*cpu))).collect();
        let each =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        each.sum::<Result<u64>>()
    })?;
    let (seconds, cpus) = (seconds_since(began)?, cpus.len() as u64);
    let most = seconds * (BUDGET + 2 * cpus);
    println!("{answered} answers of {cpus} processors in {seconds} seconds");
    ensure!((BUDGET..=most).contains(&answered), "{answered} answers, at most {most}");
    let limited = programs.counter(Reason::IcmpLimited)?.packets;
    ensure!(limited == cpus * EACH - answered, "{limited} counted");
    Ok(())
}

/// A sender gets six answers in a row and then one a second, as by the kernel's own ICMP limit. This machine's own addresses have no sender's limit, since many
/// clients may be behind them.
#[test]
fn each_sender_has_six_icmp_answers_and_then_one_a_second() -> Result<()> {
    own_network(true)?;
    let mut programs = Programs::load()?;
    install(&mut programs, &world())?;
    for line in [
        "link set lo up",
        "addr add 10.1.0.77/32 dev lo",
        "addr add 2001:db8::77/128 dev lo",
        "route add 10.1.0.0/24 dev lo",
        "-6 route add 2001:db8::/64 dev lo",
    ] {
        let done = Command::new("ip").args(line.split(' ')).status().context("ip")?;
        ensure!(done.success(), "ip {line}");
    }
    let answers = |sender: &str, of: u32| -> Result<u64> {
        let sender: IpAddr = sender.parse()?;
        let backend = if sender.is_ipv6() { v6(REFUSE) } else { v4(REFUSE) };
        let datagram = Frame::new(sender, backend, Transport::Udp).bytes();
        let mut answers = 0;
        for _ in 0..of {
            answers += u64::from(programs.run("nf_egress_l2", &datagram)?.verdict == TC_REDIRECT);
        }
        Ok(answers)
    };
    let mut limited = 0;
    for [one, other, own] in
        [["10.1.0.9", "10.1.0.10", "10.1.0.77"], ["2001:db8::9", "2001:db8::10", "2001:db8::77"]]
    {
        let began = now()?;
        let first = answers(one, 20)?;
        let most = 6 + (now()? - began) / SECOND;
        ensure!((6..=most).contains(&first), "{one}: {first} of 20 at once");
        let others = answers(other, 6)?;
        ensure!(others == 6, "{other}: {others} of 6, after another sender has spent its budget");
        let own_ones = answers(own, 20)?;
        ensure!(own_ones == 20, "{own}, which is this machine's: {own_ones} of 20");
        sleep(Duration::from_millis(2_100));
        let later = answers(one, 20)?;
        let most = 6 + (now()? - began) / SECOND - first;
        ensure!((2..=most).contains(&later), "{one}: {later} of 20 two seconds later, at most {most}");
        limited += 40 - first - later;
        let counted = programs.counter(Reason::IcmpSenderLimited)?.packets;
        ensure!(counted == limited, "{counted} counted, {limited} not answered");
    }
    // A refusal to one sender costs nothing of the machine's budget.
    ensure!(programs.counter(Reason::IcmpLimited)?.packets == 0, "the machine's budget was spent");
    Ok(())
}

/// Segments that are handed over have a budget. Datagrams take from the budget of ICMP answers.
#[test]
fn answers_that_user_space_makes_have_a_budget() -> Result<()> {
    let mut programs = loaded()?;
    programs.configure(Config { flags: config_flags::INJECT, ..DEFAULT })?;
    let budget = u64::from(ANSWERS_PER_SECOND);
    // The budget's second is ahead, so it is not over during the test.
    let ahead = now()? / SECOND + 3_600;
    programs.set_budget("answer_budget", Budget { second: ahead, spent: budget - 3 })?;
    let cpus = cpus()?;
    let run = |programs: &Programs, packet: &[u8]| -> Result<[u64; 2]> {
        let verdict = programs.run("nf_egress_l2", packet)?.verdict;
        ensure!(verdict == TC_DROP, "verdict {verdict}");
        let counted = [Reason::Handed, Reason::AnswerLimited].map(|reason| programs.counter(reason));
        let [handed, limited] = counted;
        Ok([handed?.packets, limited?.packets])
    };
    for (at, cpu) in (1..=10_u64).zip(cpus.iter().cycle()) {
        stay_on(*cpu)?;
        let found = run(&programs, &segment(REFUSE))?;
        ensure!(found == [at.min(3), at.saturating_sub(3)], "packet {at} on {cpu}: {found:?}");
    }
    ensure!(run(&programs, &datagram(REFUSE))? == [4, 7], "a datagram was not handed over");
    ensure!(programs.events()?.len() == 4, "the number of events is not that of packets handed over");
    programs.set_budget("answer_budget", Budget { second: now()? / SECOND - 1, spent: budget })?;
    ensure!(run(&programs, &segment(REFUSE))? == [5, 7], "no packet was handed over in the next second");
    ensure!(programs.budget("answer_budget")?.spent == 1, "{:?}", programs.budget("answer_budget")?);
    Ok(())
}

#[test]
fn sampled_cuts_have_a_budget_and_carry_the_packet() -> Result<()> {
    stay_on_one_cpu()?;
    for program in ["nf_egress_l2", XDP] {
        let mut programs = loaded()?;
        programs.configure(Config { samples_per_second: 3, ..DEFAULT })?;
        let frame = segment(REFUSE);
        let began = now()?;
        for _ in 0..50 {
            let verdict = programs.run(program, &frame)?.verdict;
            ensure!(verdict == if program == XDP { XDP_TX } else { TC_REDIRECT }, "verdict {verdict}");
        }
        let ended = now()?;
        let events = programs.events()?;
        // A second may end meanwhile, and each has a budget of its own.
        let mut samples = BTreeMap::<u64, u32>::new();
        for event in &events {
            *samples.entry(event.time_ns / 1_000_000_000).or_default() += 1;
        }
        ensure!(events.len() >= 3 && samples.values().all(|samples| *samples <= 3), "{program}: {samples:?}");
        for event in events {
            ensure!(event.kind == EventKind::Cut as u32 && event.reason == Reason::Reset as u32, "{event:?}");
            ensure!(event.node == REFUSE && event.ifindex == IFINDEX && event.l3_offset == 14, "{event:?}");
            ensure!(event.packet_len as usize == frame.len(), "{event:?}");
            // XDP copies only whole words of 4 bytes.
            let len = if program == XDP { frame.len() / 4 * 4 } else { frame.len() };
            ensure!(event.packet() == &frame[..len], "the sample is not the packet: {event:?}");
            // The kernel's programs read the clock by another function, so the two differ a little.
            let between = began - 1_000_000..ended + 1_000_000;
            ensure!(between.contains(&event.time_ns), "{event:?} is not within {between:?}");
        }
    }
    Ok(())
}

/// Below VLAN devices a frame may have lost its tag before XDP, and an answer without the tag would go into another network. Generic XDP, which runs on skbs,
/// cannot know whether a checksum is left to the device.
#[test]
fn xdp_leaves_the_answer_to_egress_where_it_might_arrive_spoilt() -> Result<()> {
    let mut programs = loaded()?;
    let mut tagged =
        Frame::new("10.1.0.9".parse()?, v4(REFUSE), Transport::Tcp { seq: 1, ack: 2, flags: 16 });
    tagged.tags = vec![0x8100];
    let (tagged, untagged) = (tagged.bytes(), segment(REFUSE));
    for (vlans, generic, answered) in [(0, 0, [true, true]), (1, 0, [false, true]), (0, 1, [false, false])] {
        programs.device(IFINDEX, Device { mac: PEER_MAC, vlans, generic })?;
        let before = programs.counter(Reason::Reset)?.packets;
        // The answer to a frame with a tag has the same tag.
        for (frame, answered) in [&untagged, &tagged].into_iter().zip(answered) {
            let outcome = programs.run(XDP, frame)?;
            let verdict = if answered { XDP_TX } else { XDP_PASS };
            ensure!(outcome.verdict == verdict, "{vlans}, {generic}: verdict {}", outcome.verdict);
            ensure!(answered || outcome.packet == *frame, "the packet was changed: {outcome:?}");
        }
        ensure!(
            programs.run(XDP, &segment(DROP))?.verdict == XDP_DROP,
            "XDP must drop also where it does not answer"
        );
        let counted = programs.counter(Reason::Reset)?.packets - before;
        let expected = answered.into_iter().filter(|answered| *answered).count();
        ensure!(counted == expected as u64, "{vlans}, {generic}: {counted} resets");
    }
    Ok(())
}

#[test]
fn segments_are_handed_over_where_the_agent_asks_for_it() -> Result<()> {
    let mut programs = loaded()?;
    programs.configure(Config { flags: config_flags::INJECT, ..DEFAULT })?;
    let mut frame = Frame::new(
        "2001:db8::9".parse().expect("an address"),
        v6(REFUSE),
        Transport::Tcp { seq: 1, ack: 2, flags: 16 },
    );
    frame.tags = vec![0x8100];
    frame.payload = vec![0x5a; 700];
    let bytes = frame.bytes();
    let outcome = programs.run("nf_egress_l2", &bytes)?;
    ensure!(outcome.verdict == TC_DROP && outcome.packet == bytes, "{outcome:?}");
    ensure!(programs.counter(Reason::Handed)?.packets == 1, "not counted");
    let events = programs.events()?;
    let [event] = events.as_slice() else { anyhow::bail!("{} events", events.len()) };
    ensure!(event.kind == EventKind::Answer as u32 && event.reason == Reason::Handed as u32, "{event:?}");
    ensure!(event.packet() == &bytes[..HEAD_LEN] && event.packet_len as usize == bytes.len(), "{event:?}");
    ensure!(
        event.l3_offset == 18 && event.node == REFUSE && event.vlan_tci == 0 && event.vlan_proto == 0,
        "{event:?}"
    );
    // IPVS would not translate an ICMP message that is made in place either.
    let datagram = datagram(REFUSE);
    let outcome = programs.run("nf_egress_l2", &datagram)?;
    ensure!(outcome.verdict == TC_DROP && outcome.packet == datagram, "{outcome:?}");
    ensure!(programs.counter(Reason::Handed)?.packets == 2, "the datagram was not handed over");
    Ok(())
}

#[test]
fn a_full_ring_buffer_drops_and_counts() -> Result<()> {
    let mut programs = loaded()?;
    programs.configure(Config { flags: config_flags::INJECT, ..DEFAULT })?;
    let frame = segment(REFUSE);
    for _ in 0..5_000 {
        let outcome = programs.run("nf_egress_l2", &frame)?;
        ensure!(outcome.verdict == TC_DROP && outcome.packet == frame, "{outcome:?}");
    }
    let (handed, failed) =
        (programs.counter(Reason::Handed)?.packets, programs.counter(Reason::Failed)?.packets);
    ensure!(
        handed + failed == 5_000 && failed > 0 && handed > 4_000,
        "{handed} handed over, {failed} failed"
    );
    let events = programs.events()?.len() as u64;
    ensure!(events == handed, "{events} events for {handed} packets");
    // There is room again once the ring buffer was read.
    programs.run("nf_egress_l2", &frame)?;
    ensure!(programs.events()?.len() == 1, "no room after the ring buffer was read");
    Ok(())
}

fn entry(until: u64, generation: u32) -> NodeEntry {
    NodeEntry {
        verdict: Verdict::Flagged as u32,
        action: Action::Refuse as u32,
        until,
        generation,
        name: name("node-b"),
    }
}

#[test]
fn a_verdict_lapses_by_itself() -> Result<()> {
    let mut programs = loaded()?;
    let (node, backend) = (40, "10.244.40.9");
    let ip: std::net::IpAddr = backend.parse()?;
    programs.backend(Addr::from(ip), BackendEntry { node, generation: 4, flags: 0 })?;
    let frame = Frame::new("10.1.0.9".parse()?, ip, Transport::Tcp { seq: 1, ack: 2, flags: 16 }).bytes();
    ensure!(
        programs.run("nf_egress_l2", &frame)?.verdict == TC_PASS,
        "the packet was cut before there was a verdict"
    );
    programs.node(node, entry(now()? + 30_000_000_000, 4))?;
    ensure!(programs.run("nf_egress_l2", &frame)?.verdict == TC_REDIRECT, "the packet was not cut");
    programs.node(node, entry(now()? + 100_000_000, 4))?;
    sleep(Duration::from_millis(150));
    let outcome = programs.run("nf_egress_l2", &frame)?;
    ensure!(outcome.verdict == TC_PASS && outcome.packet == frame, "{outcome:?}");
    ensure!(programs.counter(Reason::Lapsed)?.packets == 1, "not counted as lapsed");
    // The index has a new owner, which is flagged. Packets to the old owner's backend pass.
    programs.node(node, entry(now()? + 30_000_000_000, 5))?;
    ensure!(programs.run("nf_egress_l2", &frame)?.verdict == TC_PASS, "the wrong node was cut");
    ensure!(programs.counter(Reason::Stale)?.packets == 1, "not counted as stale");
    // The verdict is taken back, and packets pass.
    programs.node(node, NodeEntry { verdict: Verdict::Healthy as u32, ..entry(0, 4) })?;
    ensure!(
        programs.run("nf_egress_l2", &frame)?.verdict == TC_PASS,
        "the packet was cut after the verdict was taken back"
    );
    Ok(())
}

#[test]
fn numbers_of_another_version_pass() -> Result<()> {
    let mut programs = loaded()?;
    programs.node(REFUSE, NodeEntry { action: 77, ..entry(u64::MAX, 10 + REFUSE) })?;
    ensure!(programs.run("nf_egress_l2", &segment(REFUSE))?.verdict == TC_PASS, "an unknown action cut");
    Ok(())
}

fn dump(programs: &Programs, map: &str) -> Result<String> {
    let out = Command::new("bpftool").args(["map", "dump", "pinned"]).arg(programs.pins().join(map)).output();
    let out = out.context("bpftool is needed")?;
    ensure!(out.status.success(), "bpftool: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8(out.stdout)?)
}

#[test]
fn bpftool_prints_fields_and_verdicts_by_name() -> Result<()> {
    let programs = loaded()?;
    let nodes = dump(&programs, "nodes")?;
    let words = [
        "\"verdict\": \"Flagged\"",
        "\"verdict\": \"Healthy\"",
        "\"action\": \"Refuse\"",
        "\"action\": \"Drop\"",
        "\"action\": \"Observe\"",
        "\"action\": \"Ignore\"",
        "\"until\":",
        "\"generation\": 17",
        "\"name\":",
    ];
    for word in words {
        ensure!(nodes.contains(word), "nodes: no {word} in {}", &nodes[..nodes.len().min(600)]);
    }
    let backends = dump(&programs, "backends")?;
    for word in ["\"bytes\":", "\"node\": 7", "\"generation\": 17", "\"flags\": 1"] {
        ensure!(backends.contains(word), "backends: no {word} in {}", &backends[..backends.len().min(600)]);
    }
    let ports = dump(&programs, "ports")?;
    for word in ["\"addr\":", "\"port\": 9100", "\"protocol\": 132"] {
        ensure!(ports.contains(word), "ports: no {word} in {}", &ports[..ports.len().min(600)]);
    }
    let lease = dump(&programs, "lease")?;
    ensure!(lease.contains("\"value\": 0"), "lease: {lease}");
    let counters = dump(&programs, "counters")?;
    for word in ["\"packets\":", "\"bytes\":"] {
        ensure!(counters.contains(word), "counters: no {word} in {}", &counters[..counters.len().min(600)]);
    }
    Ok(())
}
