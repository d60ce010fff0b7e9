//! The program in the pods of the incident, and of their sandboxes. Built static, it is the one file of its image.
//!
//! - `nodefence-pod serve [--tcp PORT] [--udp PORT] [--health PORT]` answers requests. The variables `POD` and `NODE` are its names in the answers. It writes
//!   a line to standard output once its ports are open.
//! - `nodefence-pod pause` waits for SIGTERM and takes in the ended processes of its pod.

mod pause;
mod serve;
mod stream;

use anyhow::{Context as _, Result, bail};

use crate::serve::{Names, Ports};

const USAGE: &str = "usage: nodefence-pod serve [--tcp PORT] [--udp PORT] [--health PORT] | pause";

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("serve") => {
            let ports = ports(words)?;
            let of = |name: &str| std::env::var(name).with_context(|| format!("the variable {name}"));
            serve::run(ports, &Names { pod: of("POD")?, node: of("NODE")? })
        }
        Some("pause") => pause::run(),
        _ => bail!(USAGE),
    }
}

fn ports(mut words: impl Iterator<Item = String>) -> Result<Ports> {
    let mut ports = Ports { tcp: 8080, udp: 5300, health: 8081 };
    while let Some(option) = words.next() {
        let port = match option.as_str() {
            "--tcp" => &mut ports.tcp,
            "--udp" => &mut ports.udp,
            "--health" => &mut ports.health,
            _ => bail!("unknown argument `{option}`; {USAGE}"),
        };
        let value = words.next().with_context(|| format!("{option}: expected a port"))?;
        *port = value.parse().with_context(|| format!("{option} {value}: expected a port"))?;
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_anything_else_is_named() {
        let read = |line: &str| ports(line.split_whitespace().map(str::to_owned));
        let good = read("--udp 53 --tcp 80").expect("two ports");
        assert_eq!((good.tcp, good.udp, good.health), (80, 53, 8081));
        for (line, told) in [("--tcp", "--tcp: expected"), ("--tcp x", "--tcp x: "), ("--sctp 1", "`--sctp`")]
        {
            let error = read(line).map(drop).expect_err(line).to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
