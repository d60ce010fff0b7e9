//! Runs one configuration, and checks each packet's fate, its counter, and the records for user space.
use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use nodefence_common::{Budget, Config, Counter, Event, EventKind, HEAD_LEN, Limits, Reason, config_flags};
use nodefence_tests::{
    model::{Backend, Budgets, Fate, Hook, Ip, Judgement, Order, World, judge},
    packet::{
        Outcome, Programs, TC_DROP, TC_PASS, TC_REDIRECT, XDP, XDP_DROP, XDP_PASS, XDP_TX, own_network,
        stay_on_one_cpu,
    },
    packet_world::{IFINDEX, install},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::draw::draw;

/// The number of packets of each kind.
pub(crate) type Counts = HashMap<&'static str, u64>;

/// A configuration: the programs that run, and their settings.
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    /// This setup's share of the packets, in parts of [`WHOLE`].
    pub(crate) share: u64,
    pub(crate) programs: &'static [&'static str],
    pub(crate) adapt: fn(&mut World),
    /// Kinds of packets that must occur, since this setup would prove little without them.
    pub(crate) reaches: &'static [&'static str],
}

pub(crate) const WHOLE: u64 = 20;

/// The rings are read after this many packets. The ring of packets to rescue has room for 498 of the longest records.
const READ_EVERY: u64 = 256;

/// The records that the programs must have handed to user space since the last reading.
#[derive(Default)]
struct Told {
    events: Vec<Note>,
    rescues: Vec<(u32, usize, Vec<u8>)>,
}

#[derive(PartialEq, Eq, Debug)]
struct Note {
    kind: EventKind,
    reason: &'static str,
    node: u32,
    l3: usize,
    len: usize,
    head: Vec<u8>,
}

pub(crate) fn run(
    programs: &mut Programs,
    setup: &Setup,
    world: &World,
    seed: u64,
    packets: u64,
) -> Result<Counts> {
    let cpu = stay_on_one_cpu()?;
    // The namespace does not forward, so senders have no budgets of their own. `packets_maps` tests these.
    own_network(false)?;
    install(programs, world)?;
    programs.take_rescues_until(if world.rescues { u64::MAX } else { 0 })?;
    programs.configure(Config {
        flags: if world.injects { config_flags::INJECT } else { 0 },
        icmp_per_second: world.budgets.icmp,
        samples_per_second: world.budgets.samples,
        zero: 0,
    })?;
    let before = counters(programs)?;
    let mut random = StdRng::seed_from_u64(
        setup.name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into())),
    );
    let mut counts = Counts::new();
    let mut told = Told::default();
    for i in 0..packets {
        let (name, bytes) = draw(&mut random, setup.programs);
        let hook = hook(name, &bytes);
        let expected = judge(world, hook, &bytes);
        let (expected, outcome) = if world.budgets.icmp == u32::MAX {
            let outcome = programs.run(name, &bytes).with_context(|| format!("{name} on {bytes:02x?}"))?;
            (expected.within(&mut world.budgets.clone()), outcome)
        } else {
            limited(programs, world, cpu, &mut random, name, &bytes, &expected)?
        };
        ensure!(
            agrees(world, name, &bytes, &expected, &outcome),
            "packet {i}, {name} on {bytes:02x?}\nexpected {expected:02x?}\nfound {outcome:02x?}"
        );
        told.expect(name, &bytes, &expected);
        *counts.entry(expected.counted.unwrap_or("not counted")).or_default() += 1;
        for (also, applies) in [
            ("left to egress", left_to_egress(world, hook, &bytes, &expected)),
            ("answered by XDP", outcome.verdict == XDP_TX && name == XDP),
            ("sampled", expected.sample.is_some()),
            ("not sampled", expected.sample.is_none() && expected.fate != Fate::Pass),
        ] {
            if applies {
                *counts.entry(also).or_default() += 1;
            }
        }
        if i % READ_EVERY == 0 {
            // This budget must never be spent in setups without small budgets.
            programs.set_budget("answer_budget", Budget { second: second()?, spent: 0 })?;
        }
        if i % READ_EVERY == 0 || i + 1 == packets {
            told.compare(programs).with_context(|| format!("up to packet {i}"))?;
        }
    }
    for ((reason, after), before) in Reason::ALL.iter().zip(counters(programs)?).zip(before) {
        let counted = after.packets - before.packets;
        let expected = counts.get(reason.name()).copied().unwrap_or(0);
        ensure!(counted == expected, "{}: counted {counted}, expected {expected}", reason.name());
    }
    Ok(counts)
}

fn hook(name: &str, bytes: &[u8]) -> Hook {
    match name {
        XDP => Hook::Xdp,
        "nf_egress_l2" => Hook::Ethernet,
        _ => Hook::Bare(u16::from_be_bytes([bytes[12], bytes[13]])),
    }
}

fn counters(programs: &Programs) -> Result<Vec<Counter>> {
    Reason::ALL.iter().map(|reason| programs.counter(*reason)).collect()
}

/// Whether XDP leaves a packet to egress that it would answer if the device had no VLAN devices and XDP were native.
fn left_to_egress(world: &World, hook: Hook, bytes: &[u8], expected: &Judgement) -> bool {
    if hook != Hook::Xdp || !(world.vlans || world.generic) || expected.fate != Fate::Pass {
        return false;
    }
    let unspoilt = World { vlans: false, generic: false, ..world.clone() };
    matches!(judge(&unspoilt, hook, bytes).fate, Fate::Answer(_))
}

fn second() -> Result<u64> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_sec() as u64)
}

/// The parts of the budgets that are left in a second.
fn left(budgets: Budgets, (icmp, answers, samples): (Budget, Budget, Limits), second: u64) -> Budgets {
    let rest = |budget: u32, of: u64, spent: u32| {
        if of == second { budget.saturating_sub(spent) } else { budget }
    };
    Budgets {
        icmp: rest(budgets.icmp, icmp.second, icmp.spent as u32),
        answers: rest(budgets.answers, answers.second, answers.spent as u32),
        samples: rest(budgets.samples, samples.second, samples.samples),
    }
}

fn spent_by(programs: &Programs, cpu: usize) -> Result<(Budget, Budget, Limits)> {
    Ok((programs.budget("icmp_budget")?, programs.budget("answer_budget")?, programs.limits(cpu)?))
}

/// Runs a packet while budgets are small, and compares with the model what the packet took from them.
fn limited(
    programs: &mut Programs,
    world: &World,
    cpu: usize,
    random: &mut StdRng,
    name: &str,
    bytes: &[u8],
    judgement: &Judgement,
) -> Result<(Judgement, Outcome)> {
    if random.random_ratio(1, 4) {
        // Sets the budgets to any state: unused, almost spent, spent, or from another second.
        let now = second()?;
        programs.set_limits(Limits {
            second: now - random.random_range(0..2),
            samples: random.random_range(0..=world.budgets.samples),
            zero: 0,
        })?;
        for (name, budget) in [("icmp_budget", world.budgets.icmp), ("answer_budget", world.budgets.answers)]
        {
            programs.set_budget(
                name,
                Budget {
                    second: now - random.random_range(0..2),
                    spent: random.random_range(budget.saturating_sub(5)..=budget).into(),
                },
            )?;
        }
    }
    let spent = spent_by(programs, cpu)?;
    let began = second()?;
    let outcome = programs.run(name, bytes).with_context(|| format!("{name} on {bytes:02x?}"))?;
    let ended = second()?;
    let spent_after = spent_by(programs, cpu)?;
    // A second may end while the program runs, so the program may have seen either of the two.
    let mut seen = Vec::new();
    for second in began..=ended {
        let mut rest = left(world.budgets, spent, second);
        let expected = judgement.clone().within(&mut rest);
        let found = left(world.budgets, spent_after, second);
        if rest == found && agrees(world, name, bytes, &expected, &outcome) {
            return Ok((expected, outcome));
        }
        seen.push((expected, rest, found));
    }
    anyhow::bail!(
        "{name} on {bytes:02x?}, {spent:?} before\nexpected, left, found left: {seen:02x?}\nfound {outcome:02x?}"
    )
}

impl Told {
    fn expect(&mut self, name: &str, bytes: &[u8], expected: &Judgement) {
        let Some((node, l3)) = expected.to else { return };
        if expected.counted == Some("rescue") {
            self.rescues.push((node, l3, bytes.to_vec()));
        }
        let kinds = [
            (EventKind::Cut, expected.sample),
            (EventKind::Answer, expected.counted.filter(|counted| *counted == "handed")),
        ];
        for (kind, reason) in kinds {
            let Some(reason) = reason else { continue };
            let head = bytes.len().min(HEAD_LEN);
            // XDP copies only whole words of 4 bytes.
            let head = if name == XDP { head / 4 * 4 } else { head };
            let head = bytes[..head].to_vec();
            self.events.push(Note { kind, reason, node, l3, len: bytes.len(), head });
        }
    }

    /// Compares the records in the ring buffers with the expected ones.
    fn compare(&mut self, programs: &mut Programs) -> Result<()> {
        let events = programs.events()?.iter().map(note).collect::<Result<Vec<_>>>()?;
        for (i, (found, expected)) in events.iter().zip(&self.events).enumerate() {
            ensure!(found == expected, "event {i}: expected {expected:02x?}\nfound {found:02x?}");
        }
        ensure!(events.len() == self.events.len(), "{} events, expected {}", events.len(), self.events.len());
        let rescues: Vec<_> = programs
            .rescues()?
            .into_iter()
            .map(|(head, frame)| (head.node, usize::from(head.l3_offset), frame))
            .collect();
        ensure!(
            rescues == self.rescues,
            "packets to rescue: expected {:02x?}\nfound {rescues:02x?}",
            self.rescues
        );
        *self = Self::default();
        Ok(())
    }
}

fn note(event: &Event) -> Result<Note> {
    ensure!(event.ifindex == IFINDEX && event.vlan_tci == 0 && event.vlan_proto == 0, "{event:?}");
    let reason = Reason::ALL.iter().find(|reason| **reason as u32 == event.reason);
    Ok(Note {
        kind: EventKind::from_raw(event.kind).context("an unknown kind of event")?,
        reason: reason.context("an unknown reason")?.name(),
        node: event.node,
        l3: event.l3_offset.into(),
        len: event.packet_len as usize,
        head: event.packet().to_vec(),
    })
}

fn agrees(world: &World, name: &str, bytes: &[u8], expected: &Judgement, outcome: &Outcome) -> bool {
    let (pass, drop, answer) =
        if name == XDP { (XDP_PASS, XDP_DROP, XDP_TX) } else { (TC_PASS, TC_DROP, TC_REDIRECT) };
    // This check is independent of the model. A packet may only be cut if it has the address of a flagged node's backend at the place of a destination address:
    // behind an Ethernet header with at most two tags, or without an Ethernet header.
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
    // No program may answer where its answer would not arrive as it should.
    let tagged = bytes[12..14] == [0x81, 0] || bytes[12..14] == [0x88, 0xa8];
    let spoilt = if name == XDP { world.generic || world.vlans && !tagged } else { world.injects };
    if outcome.verdict == answer && spoilt {
        return false;
    }
    match &expected.fate {
        Fate::Pass => outcome.verdict == pass && outcome.packet == bytes,
        Fate::Drop => outcome.verdict == drop && outcome.packet == bytes,
        Fate::Answer(packet) => outcome.verdict == answer && outcome.packet == *packet,
    }
}
