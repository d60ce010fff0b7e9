//! One dataplane for each pin folder, whoever asks; and what it does when its folders go.
use std::{
    fs,
    time::{Duration, Instant},
};

use nodefence::dataplane::{self, Dataplane, Error, NodeWriter, TcChoice};

use super::support::{Pair, attached, node, one_flagged, options, pin_dir, up0, ways};

#[test]
fn a_second_dataplane_and_a_detach_are_refused_while_one_is_open() {
    Pair::new("owner").near.run(|| {
        let mut dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        dataplane.write(&one_flagged()).unwrap();
        assert_eq!(dataplane.attach(&up0())[0].error, None);
        let before = attached("up0");
        for refused in [
            Dataplane::open(&options(TcChoice::Auto)).err().unwrap(),
            dataplane::detach(&pin_dir()).unwrap_err(),
            dataplane::detach(&pin_dir().with_file_name("v2")).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Busy { .. }), "{refused}");
            let text = refused.to_string();
            assert!(text.contains(pin_dir().parent().unwrap().to_str().unwrap()), "{text}");
            assert!(text.contains(&format!("(process {})", std::process::id())), "{text}");
        }
        assert_eq!(attached("up0"), before, "nothing was removed");
        // Renewing the verdicts of an agent that ends needs no lock.
        let (mut writer, entries) = NodeWriter::pinned(&pin_dir()).unwrap();
        assert_eq!(entries.len(), 2);
        writer.write_node(1, &node("hung", 1, true)).unwrap();
        drop(dataplane);
        drop(Dataplane::open(&options(TcChoice::Auto)).unwrap());
        assert_eq!(dataplane::detach(&pin_dir()).unwrap().maps, 9);
        assert!(!pin_dir().parent().unwrap().exists());
    });
}

/// An agent that takes over has its predecessor's word that it ends, which takes a moment.
#[test]
fn the_next_dataplane_waits_for_the_one_before_it() {
    Pair::new("next").near.run(|| {
        let dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(dataplane);
        });
        Dataplane::open(&options(TcChoice::Auto)).unwrap();
        ends.join().unwrap();
    });
}

#[test]
fn folders_that_were_removed_below_us_are_made_again() {
    for (choice, _) in ways() {
        Pair::new("folders").near.run(move || {
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            assert_eq!(dataplane.attach(&up0())[0].error, None);
            for folder in ["links", "qdiscs"].map(|name| pin_dir().join(name)) {
                for entry in fs::read_dir(&folder).unwrap() {
                    let path = entry.unwrap().path();
                    fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
                }
                fs::remove_dir(folder).unwrap();
            }
            // A link whose pin was removed goes when the kernel's worker gets to it; before that no other of the same program fits in.
            let patience = Instant::now() + Duration::from_secs(20);
            while dataplane.interfaces()[0].error.is_some() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(dataplane.interfaces()[0].error, None);
            assert_eq!(attached("up0"), ["nf_egress_l2", "nf_ingress_l2"]);
            for folder in ["links", "qdiscs"] {
                assert!(pin_dir().join(folder).exists(), "{folder}");
            }
        });
    }
}
