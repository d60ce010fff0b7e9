//! The clients of the incident, which run as a process of their own, and the report of two runs.
//!
//! `nodefence-incident client ADDRESS TCP-PORT UDP-PORT LOG full|light` writes a line to standard output once its connections exist, and the log at
//! SIGTERM.
//!
//! `nodefence-incident report FOLDER [--publish PAGE PICTURE LINK]` reports the two runs in a folder anew, and writes their table between the marks of a page.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_tests::incident::{
    client::{self, Load, Target},
    judge::Verdict,
    report,
};

const USAGE: &str = "usage: nodefence-incident client ADDRESS TCP-PORT UDP-PORT LOG full|light | report FOLDER [--publish PAGE PICTURE LINK]";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["client", address, tcp, udp, log, load] => {
            let port = |text: &str| text.parse().with_context(|| format!("`{text}`: expected a port"));
            let address = address.parse();
            let address = address.with_context(|| format!("`{}`: expected an IPv4 address", words[1]))?;
            let target = Target { address, tcp: port(tcp)?, udp: port(udp)?, log: PathBuf::from(log) };
            let load = Load::named(load).with_context(|| format!("`{load}`: expected full or light"))?;
            client::run(&target, load)
        }
        ["report", folder] => {
            let report = report::again(Path::new(folder))?;
            print!("{}", report.text);
            ensure!(report.verdict == Verdict::Held, "a promise was not held");
            Ok(())
        }
        ["report", folder, "--publish", page, picture, link] => {
            report::publish(Path::new(folder), Path::new(page), Path::new(picture), link)
        }
        _ => bail!(USAGE),
    }
}
