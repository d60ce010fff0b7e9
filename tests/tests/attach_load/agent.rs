//! Agents that follow one another, with maps of another size too, under a load that counts: not one datagram lost. Not on emulated
//! processors: an agent's start takes longer there than a verdict holds.
use std::time::{Duration, Instant};

use nodefence::dataplane::TcChoice;
use nodefence_common::{PIN_VERSION, VERDICT_LIFETIME_NS};
use nodefence_tests::{
    Agent,
    promises::RENEWED,
    watch::{wait_within, within},
};

use super::support::{PEERS, Pair, load, pin_dir, sh, ways};

/// How long a verdict holds at least after an agent's death: it was renewed a second ago.
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

/// Puts a map of larger values in the place of `backends`, as if another agent had left it: nothing in it can be taken over.
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

/// Nothing is adopted of what an agent of another version or layout has pinned: what is flagged passes until the new one has cut it anew, by its own flags file.
/// Nothing else is lost.
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
            // Cut again, and nothing else of the kind is left.
            let cut = || {
                let cut = self::load(&pair, &PEERS[1..2]);
                cut.pass(20).unwrap();
                cut.finish().unwrap().remove(0).none("to a flagged node").is_ok()
            };
            wait_within("it is cut again", RENEWED, began, cut).unwrap();
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
