//! Agents that follow one another under load, also with maps of another size. Datagrams are counted, and not one may be lost. These tests do not run on emulated
//! processors, where an agent's start takes longer than a verdict holds.
use std::time::{Duration, Instant};

use nodefence::dataplane::TcChoice;
use nodefence_common::{PIN_VERSION, VERDICT_LIFETIME_NS};
use nodefence_tests::{
    Agent,
    promises::RENEWED,
    watch::{wait_within, within},
};

use super::support::{PEERS, Pair, load, pin_dir, sh, ways};

/// The shortest time for which a verdict holds after the agent's death, since the last renewal may be a second old.
const HELD: Duration = Duration::from_nanos(VERDICT_LIFETIME_NS - 1_000_000_000);

fn cluster_file() -> String {
    format!(
        "nodes:
- {{name: node-a, address: 10.77.0.1}}
- {{name: good, address: 10.78.0.2, backends: [{{address: {}}}]}}
- {{name: hung, address: 10.78.0.3, backends: [{{address: {}}}]}}
",
        PEERS[0], PEERS[1]
    )
}

/// Replaces the pinned `backends` by a map of larger values, as if another agent had left it. The next agent can adopt nothing from it.
fn change_layout() {
    let pin = pin_dir().join("backends");
    std::fs::remove_file(&pin).unwrap();
    sh(&format!(
        "bpftool map create {} type hash key 16 value 16 entries 5000 name backends flags 1",
        pin.display()
    ));
}

#[test]
fn no_datagram_is_lost_between_two_agents() {
    for (choice, _) in ways() {
        let pair = Pair::new("agents");
        let tc = if choice == TcChoice::Clsact { "clsact" } else { "auto" };
        let mut agent =
            Agent::start_with(&pair.near, "node-a", &["up0"], &cluster_file(), &["--tc", tc]).unwrap();
        agent.flag("hung").unwrap();
        let load = load(&pair, &PEERS[..3]);
        load.pass(200).unwrap();
        for (what, arguments) in [
            ("terminated", &[][..]),
            ("killed", &[]),
            ("taken over", &["--take-over"]),
            ("larger maps", &["--take-over", "--max-backends", "5000"]),
        ] {
            let from = load.sent();
            let began = Instant::now();
            match what {
                "terminated" => agent.terminate().unwrap(),
                "killed" => agent.kill(),
                _ => {}
            }
            agent.restart(arguments).unwrap();
            load.pass(50).unwrap();
            println!("{tc}, {what}: {} datagrams", load.sent() - from);
            within(&format!("{tc}, {what}"), HELD, began).unwrap();
        }
        let mut arrived = load.finish().unwrap();
        arrived.remove(2).all("to what is no backend").unwrap();
        arrived.remove(1).none("to a flagged node").unwrap();
        arrived.remove(0).all("to a healthy node").unwrap();
    }
}

/// An agent adopts nothing that an agent of another version or layout has pinned. Packets to a flagged node pass until the new agent has cut the node anew by its
/// `flags.json`. No packet to another destination is lost.
#[test]
fn pins_of_another_layout_or_version_are_detached() {
    for (choice, _) in ways() {
        let pair = Pair::new("layouts");
        let tc = if choice == TcChoice::Clsact { "clsact" } else { "auto" };
        let mut agent =
            Agent::start_with(&pair.near, "node-a", &["up0"], &cluster_file(), &["--tc", tc]).unwrap();
        agent.flag("hung").unwrap();
        let load = load(&pair, &[PEERS[0], PEERS[2]]);
        load.pass(50).unwrap();
        let v11 = pin_dir().with_file_name(format!("{PIN_VERSION}1"));
        let other_version = ["--take-over", "--pin-dir", v11.to_str().unwrap()];
        for (what, arguments, pins) in [
            ("another layout", &["--take-over"][..], pin_dir()),
            ("another version", &other_version, v11.clone()),
            ("and back", &["--take-over"], pin_dir()),
        ] {
            if what == "another layout" {
                pair.near.run(change_layout);
            }
            agent.restart(arguments).unwrap();
            let began = Instant::now();
            let cut = || {
                let cut = self::load(&pair, &PEERS[1..2]);
                cut.pass(20).unwrap();
                cut.finish().unwrap().remove(0).none("to a flagged node").is_ok()
            };
            wait_within("the flagged node is cut again", RENEWED, began, cut).unwrap();
            // No other pin folder is left.
            let left: Vec<_> = pair.near.run(move || {
                let folders = std::fs::read_dir(pins.parent().unwrap()).unwrap();
                folders.map(|folder| folder.unwrap().path()).filter(|folder| *folder != pins).collect()
            });
            assert!(left.is_empty(), "{what}: {left:?}");
            let said = agent.log().contains("none of its verdicts were adopted");
            assert!(said, "{what}: {}", agent.log());
            println!("{tc}, {what}: cut again after {:?}", began.elapsed());
        }
        let mut arrived = load.finish().unwrap();
        arrived.remove(1).all("to what is no backend").unwrap();
        arrived.remove(0).all("to a healthy node").unwrap();
    }
}
