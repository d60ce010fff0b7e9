//! Draining a node: by the agent, and in two ways by hand. One way feeds `ipvsadm -R` all deletions, waits once, and feeds it all additions.
//! The other way runs one `ipvsadm` for each deletion and addition.
//!
//! Each destination has a connection, so that all of them must be deleted, waited for and added again with weight 0. Each way ends with a
//! check of the table: the agent reads the table until the node is drained, the other ways run `ipvsadm -Ln`.
use std::{
    collections::HashMap,
    fmt::Write as _,
    io::Write as _,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nodefence::report::{Request, Status, UnflagReport};
use nodefence_tests::Agent;

use super::world::{PODS, Shape, World, is_on, node};
use crate::{figure::Figure, progress::Progress, stats::summary};

/// The node that is drained.
const FLAGGED: u16 = 0;
/// How long the agent may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often the agent's progress is read.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Sizes {
    pub(super) services: usize,
    /// Endpoints of each service on each of two nodes.
    pub(super) each: usize,
    pub(super) rounds: u32,
    /// Rounds of the loop of single commands.
    pub(super) naive_rounds: u32,
}

pub(super) fn run(world: &World, sizes: &Sizes, program: &Path) -> anyhow::Result<Figure> {
    let shape = Shape::two_nodes(sizes.services, sizes.each);
    let mut ours = Vec::new();
    let mut restores = Vec::new();
    let mut fed = Vec::new();
    let mut naive = Vec::new();
    let mut progress = Progress::start("drain", sizes.rounds);
    for round in 0..sizes.rounds {
        let (drained, restored) = by_agent(world, &shape, program).context("by the agent")?;
        ours.push(drained);
        restores.push(restored);
        fed.push(by_hand(world, &shape, Hand::Fed).context("by ipvsadm -R")?);
        if round < sizes.naive_rounds {
            naive.push(by_hand(world, &shape, Hand::Single).context("by single commands")?);
        }
        progress.step();
    }
    let of = |times: &[f64]| summary(times).context("no rounds");
    let ratios: Vec<f64> = ours.iter().zip(&fed).map(|(ours, fed)| ours / fed).collect();
    let ratio = of(&ratios)?;
    let name = format!(
        "IPVS, drain a node with {PODS} pods under {} services, {} pairs with connections",
        sizes.services,
        sizes.services * sizes.each
    );
    Ok(Figure::of(name, "s", &of(&ours)?)
        .peer_of("ipvsadm -R: deletes, one wait, adds", &of(&fed)?)
        .peer_of("single ipvsadm commands", &of(&naive)?)
        .ratio(ratio.median)
        .goal("not slower than ipvsadm -R (median of the rounds)", ratio.median <= 1.0)
        .note(format!(
            "ratio {:.3} to {:.3} in {} rounds; from the flag until the agent has read that all pairs have weight 0 and no connection; restored in {:.2} s; UDP (idle clients of TCP are challenged first, for 5 s at most)",
            ratio.min,
            ratio.max,
            ratios.len(),
            of(&restores)?.median
        )))
}

/// Makes the tables anew, and a connection to each destination.
fn begin(world: &World, shape: &Shape) -> anyhow::Result<()> {
    world.fill(shape)?;
    let each = shape.destinations() / shape.services.len();
    world.send(shape, each)?;
    let all = world.connections()?.len();
    ensure!(all == shape.destinations(), "{all} connections, and not {}", shape.destinations());
    Ok(())
}

/// Seconds until the node is drained, and until it is restored.
fn by_agent(world: &World, shape: &Shape, program: &Path) -> anyhow::Result<(f64, f64)> {
    begin(world, shape)?;
    let agent = world.agent(program, shape)?;
    let pairs = shape.pairs(FLAGGED).count();
    let begun = Instant::now();
    agent.flag_by_socket(&node(FLAGGED))?;
    until(&agent, begun, |status| {
        let row = status.ipvs.nodes.get(node(FLAGGED).as_str())?;
        Some(row.drained == pairs && row.waiting == 0)
    })?;
    let drained = begun.elapsed().as_secs_f64();
    verify(world, shape)?;
    let begun = Instant::now();
    agent.ask::<UnflagReport>(&Request::Unflag { node: node(FLAGGED) })?;
    // The wait leaves the guard nothing to restore once this agent is gone.
    until(&agent, begun, |status| Some(!status.ipvs.nodes.contains_key(node(FLAGGED).as_str())))?;
    let restored = begun.elapsed().as_secs_f64();
    agent.end()?;
    Ok((drained, restored))
}

fn until(agent: &Agent, begun: Instant, is: impl Fn(&Status) -> Option<bool>) -> anyhow::Result<()> {
    loop {
        let status: Status = agent.ask(&Request::Status)?;
        if is(&status) == Some(true) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("the agent is not done after {PATIENCE:?}: {:?}", status.ipvs);
        }
        std::thread::sleep(LOOK);
    }
}

#[derive(Clone, Copy)]
enum Hand {
    Fed,
    Single,
}

/// Seconds until the node is drained.
fn by_hand(world: &World, shape: &Shape, hand: Hand) -> anyhow::Result<f64> {
    begin(world, shape)?;
    let pairs: Vec<(SocketAddr, SocketAddr)> = shape.pairs(FLAGGED).collect();
    let begun = Instant::now();
    world
        .node
        .within(|| commands(hand, pairs.iter().map(|(service, to)| format!("-d -u {service} -r {to}"))))?;
    world.wait_without("connections of the node", is_on(FLAGGED))?;
    world.node.within(|| {
        commands(hand, pairs.iter().map(|(service, to)| format!("-a -u {service} -r {to} -m -w 0")))
    })?;
    verify(world, shape)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn commands(hand: Hand, lines: impl Iterator<Item = String>) -> anyhow::Result<()> {
    match hand {
        Hand::Single => {
            for line in lines {
                let status = Command::new("ipvsadm").args(line.split_whitespace()).status()?;
                ensure!(status.success(), "ipvsadm {line}: {status}");
            }
        }
        Hand::Fed => {
            let mut text = String::new();
            for line in lines {
                writeln!(text, "{line}")?;
            }
            let mut child = Command::new("ipvsadm").arg("-R").stdin(Stdio::piped()).spawn()?;
            child.stdin.take().context("stdin was piped")?.write_all(text.as_bytes())?;
            let status = child.wait()?;
            ensure!(status.success(), "ipvsadm -R: {status}");
        }
    }
    Ok(())
}

/// Checks that all destinations on the node are there, with weight 0 and without connections.
fn verify(world: &World, shape: &Shape) -> anyhow::Result<()> {
    let listed = world.node.exec("ipvsadm -Ln")?;
    let found = destinations(&listed)?;
    for pair in shape.pairs(FLAGGED) {
        let seen = found.get(&pair).with_context(|| format!("{pair:?} is missing"))?;
        ensure!(*seen == [0; 3], "{pair:?} has weight, active and inactive connections {seen:?}");
    }
    Ok(())
}

/// Weight, active and inactive connections of each pair that `ipvsadm -Ln` lists.
fn destinations(listed: &str) -> anyhow::Result<HashMap<(SocketAddr, SocketAddr), [u32; 3]>> {
    let mut service = None;
    let mut found = HashMap::new();
    for line in listed.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("TCP" | "UDP") => {
                service = Some(words.next().context("a service without an address")?.parse()?)
            }
            Some("->") => {
                let Some(service) = service else { continue };
                let to = words.next().context("a destination without an address")?.parse()?;
                let mut number = || words.next().context(line.to_owned())?.parse().context(line.to_owned());
                // The forwarding method stands before the three numbers.
                let _method: Result<u32, _> = number();
                found.insert((service, to), [number()?, number()?, number()?]);
            }
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_table_is_read() -> anyhow::Result<()> {
        let found = destinations(
            "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
             UDP  10.96.0.1:53 rr\n  -> 10.128.0.2:7000              Masq    0      0          3         \n  -> 10.128.1.2:7000              Masq    1      2          0         \n",
        )?;
        let at = |to: &str| -> anyhow::Result<_> { Ok(("10.96.0.1:53".parse()?, to.parse()?)) };
        assert_eq!(found[&at("10.128.0.2:7000")?], [0, 0, 3]);
        assert_eq!(found[&at("10.128.1.2:7000")?], [1, 2, 0]);
        Ok(())
    }
}
