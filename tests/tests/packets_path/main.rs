//! The passing path: the instructions that run for a packet whose node has no verdict. They are read from the object as the loader gives them to the kernel.
//!
//! The test follows every path from a program's entry, through the functions that it calls, until the program returns or until a node's entry was found not to
//! be healthy. Each path has at most one hash lookup, at most one array lookup and that only after a hit, no write except to the stack, and no helper that
//! could write or copy the packet. Each path returns "pass". If no IP header can be read, no backend is looked up, and the packet may be counted.
use std::collections::{BTreeSet, HashSet};

use anyhow::{Context as _, Result, ensure};
use aya_obj::Object;
use nodefence_tests::packet::{CLASSIFIERS, TC_PASS, XDP, XDP_PASS};

use state::Passed;
use walk::{Hooked, Map, Program, walk};

mod state;
mod walk;

/// The program with all functions that it calls. References to maps are indexes of [`Program::maps`].
fn program(name: &str) -> Result<Program> {
    let mut object = Object::parse(nodefence::DATAPLANE_OBJECT)?;
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps: Vec<_> = object.maps.clone().into_iter().collect();
    object.relocate_maps((0..).zip(&maps).map(|(index, (name, map))| (name.as_str(), index, map)), &text)?;
    object.relocate_calls(&text)?;
    let entry = object.programs.get(name).with_context(|| format!("no program {name}"))?.function_key();
    let code = object.functions.get(&entry).context("a program without instructions")?.instructions.clone();
    let maps = maps.into_iter().map(|(name, map)| Map { name, kind: map.map_type() }).collect();
    let hooked = if name == XDP { Hooked::Xdp } else { Hooked::Tc };
    Ok(Program { code, maps, hooked })
}

#[test]
fn the_passing_path_looks_up_once_and_writes_nothing() -> Result<()> {
    for (name, pass) in [("nf_egress_l2", TC_PASS), ("nf_egress_l3", TC_PASS), (XDP, XDP_PASS)] {
        let program = program(name)?;
        let found = walk(&program, pass).with_context(|| name.to_owned())?;
        println!("{name}: {} instructions, {} states, {:#?}", program.code.len(), found.states, found.passed);
        ensure!(found.verdicts > 0, "{name}: no path comes to a verdict");
        // The walk must have found these paths, or else it would prove little.
        let expected = [
            ("no IP packet", Passed::default()),
            ("no backend", Passed { hash_lookups: 1, ..Passed::default() }),
            ("a healthy node", Passed { hash_lookups: 1, hit: true, array_lookups: 1, ..Passed::default() }),
        ];
        for (what, passed) in expected {
            ensure!(found.passed.contains(&passed), "{name}: no path lets {what} pass by {passed:?}");
        }
    }
    Ok(())
}

/// The walk finds calls of forbidden helpers: this program reads the time, and has the kernel copy each packet.
#[test]
fn a_helper_that_is_called_is_found() -> Result<()> {
    let found = walk(&program("nf_inject")?, TC_PASS);
    let error = format!("{:#}", found.err().context("nothing found")?);
    ensure!(error.contains("is called before a verdict"), "{error}");
    Ok(())
}

/// One write through a packet pointer makes the verifier add code that unclones each packet (`bpf_unclone_prologue`, net/core/filter.c).
#[test]
fn no_tc_program_writes_through_a_packet_pointer() -> Result<()> {
    for name in CLASSIFIERS {
        let writes = walk::packet_writes(&program(name)?).with_context(|| name.to_owned())?;
        ensure!(writes == BTreeSet::new(), "{name}: instructions {writes:?} write to the packet");
    }
    // The XDP program writes to the packet, since it answers in place. So the walk must find its writes.
    ensure!(!walk::packet_writes(&program(XDP)?)?.is_empty(), "no write of {XDP} was found");
    Ok(())
}
