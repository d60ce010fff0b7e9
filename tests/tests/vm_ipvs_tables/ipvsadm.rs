//! An IPVS table in the words of `ipvsadm`, and a snapshot in the same words.

use anyhow::{Result, ensure};
use nodefence::ipvs::{Destination, Family, Forward, Netmask, Protocol, ServiceKey, Tunnel, flags};
use nodefence_tests::{Netns, ipvs::Snapshot};

// Flags IP_VS_SVC_F_*, whose meaning only the scheduler knows.
const ONE_PACKET: u32 = 1 << 2;
const SCHEDULER_2: u32 = 1 << 4;

/// Each kind of thing that `ipvsadm` can make: protocols, families, marks, schedulers with their flags, persistence, methods, tunnels.
pub(super) const EVERYTHING: &str = "\
-A -t 10.96.0.1:80 -s rr
-a -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 1
-a -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 0
-a -t 10.96.0.1:80 -r 10.244.1.3:8080 -m -w 65535 -x 100 -y 50
-a -t 10.96.0.1:80 -r 10.244.1.4:80 -g -w 2
-a -t 10.96.0.1:80 -r 10.244.1.5:80 -i -w 3 --tun-type ipip
-a -t 10.96.0.1:80 -r 10.244.1.6:80 -i -w 4 --tun-type gue --tun-port 6080 --tun-nocsum
-a -t 10.96.0.1:80 -r 10.244.1.7:80 -i -w 5 --tun-type gue --tun-port 6081 --tun-remcsum -x 7
-a -t 10.96.0.1:80 -r 10.244.1.8:80 -i -w 6 --tun-type gre --tun-csum
-a -t 10.96.0.1:80 -r [2001:db8:1::9]:80 -i -w 7 --tun-type ipip
-A -t 10.96.0.2:443 -s wrr -p 10800
-a -t 10.96.0.2:443 -r 10.244.1.1:8443 -m -w 1
-A -t 10.96.0.3:443 -s lc -p 600 -M 255.255.255.0
-A -t 10.96.0.4:1 -s wlc
-A -t 10.96.0.5:1 -s sed
-A -t 10.96.0.6:1 -s nq
-A -t 10.96.0.7:1 -s sh -b sh-fallback,sh-port
-A -t 10.96.0.8:1 -s mh -b mh-fallback,mh-port
-A -u 10.96.0.10:53 -s rr
-a -u 10.96.0.10:53 -r 10.244.1.1:53 -m -w 1
-A -u 10.96.0.11:53 -s rr -o
-A -u 10.96.0.12:5060 -s rr -p 60 --pe sip
-A --sctp-service 10.96.0.1:80 -s rr
-a --sctp-service 10.96.0.1:80 -r 10.244.1.1:3868 -m -w 1
-A -t [2001:db8::1]:80 -s mh
-a -t [2001:db8::1]:80 -r [2001:db8:1::1]:8080 -m -w 1
-a -t [2001:db8::1]:80 -r 10.244.1.9:80 -i -w 1 --tun-type ipip
-A -u [2001:db8::1]:53 -s sh -p 300 -M 64
-A --sctp-service [2001:db8::1]:80 -s rr
-A -f 4096 -s rr -p 360
-a -f 4096 -r 10.244.1.1:0 -g -w 1
-A -f 4096 -6 -s wrr
-a -f 4096 -6 -r [2001:db8:1::1]:0 -g -w 1
";

pub(super) fn sorted(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.into_iter().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

/// Service, destination, upper and lower threshold of each destination, as `ipvsadm` lists them.
pub(super) fn thresholds(ns: &Netns) -> Result<Vec<String>> {
    let mut service = String::new();
    let mut out = Vec::new();
    for line in ns.exec("ipvsadm -Ln --thresholds")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["->", address, upper, lower, ..] if !address.starts_with("Remote") => {
                out.push(format!("{service} {address} {upper} {lower}"));
            }
            ["FWM", mark, "IPv6", ..] => service = format!("{mark} IPv6"),
            ["FWM" | "TCP" | "UDP" | "SCTP", at, ..] => service = at.to_owned(),
            _ => {}
        }
    }
    Ok(sorted(out))
}

pub(super) fn name(key: &ServiceKey) -> String {
    match key {
        ServiceKey::Address { address, protocol } => {
            let option = match *protocol {
                Protocol::TCP => "-t",
                Protocol::UDP => "-u",
                _ => "--sctp-service",
            };
            format!("{option} {address}")
        }
        ServiceKey::Mark { family: Family::V4, mark } => format!("-f {mark}"),
        ServiceKey::Mark { family: Family::V6, mark } => format!("-f {mark} -6"),
    }
}

/// A snapshot in the words of `ipvsadm -Sn`.
pub(super) fn rendered(snapshot: &Snapshot) -> Vec<String> {
    let services = snapshot.services.values().map(|server| {
        let service = &server.service;
        let mut line = format!("-A {} -s {}", name(&service.key), service.scheduler);
        if service.flags.bits & flags::PERSISTENT != 0 {
            line += &format!(" -p {}", service.timeout);
            match service.netmask {
                Netmask::V4(mask) if mask.is_broadcast() => {}
                Netmask::V6(128) => {}
                Netmask::V4(mask) => line += &format!(" -M {mask}"),
                Netmask::V6(bits) => line += &format!(" -M {bits}"),
            }
        }
        if let Some(engine) = service.persistence_engine {
            line += &format!(" --pe {engine}");
        }
        if service.flags.bits & ONE_PACKET != 0 {
            line += " -o";
        }
        let of_scheduler: Vec<String> = [(flags::SCHEDULER_1, "fallback"), (SCHEDULER_2, "port")]
            .into_iter()
            .filter(|(bit, _)| service.flags.bits & bit != 0)
            .map(|(_, name)| format!("{}-{name}", service.scheduler))
            .collect();
        if !of_scheduler.is_empty() {
            line += &format!(" -b {}", of_scheduler.join(","));
        }
        line
    });
    let destinations = snapshot.pairs().map(|(service, destination)| {
        let tunnel = match (destination.forward, destination.tunnel) {
            (Forward::Tunnel, Tunnel { kind: 0, .. }) => " --tun-type ipip".to_owned(),
            (Forward::Tunnel, Tunnel { kind: 1, port, flags }) => {
                format!(" --tun-type gue --tun-port {port} {}", checksum(flags))
            }
            (Forward::Tunnel, Tunnel { flags, .. }) => format!(" --tun-type gre {}", checksum(flags)),
            _ => String::new(),
        };
        let method = match destination.forward {
            Forward::Masquerade | Forward::Local => "-m",
            Forward::Tunnel => "-i",
            _ => "-g",
        };
        format!(
            "-a {} -r {} {method} -w {}{tunnel}",
            name(&service.key),
            destination.address,
            destination.weight
        )
    });
    sorted(services.chain(destinations))
}

pub(super) fn checksum(flags: u16) -> &'static str {
    match flags {
        0 => "--tun-nocsum",
        1 => "--tun-csum",
        _ => "--tun-remcsum",
    }
}

pub(super) fn rendered_thresholds(snapshot: &Snapshot) -> Vec<String> {
    sorted(snapshot.pairs().map(|(service, destination)| {
        let service = match service.key {
            ServiceKey::Address { address, .. } => address.to_string(),
            ServiceKey::Mark { family: Family::V4, mark } => mark.to_string(),
            ServiceKey::Mark { family: Family::V6, mark } => format!("{mark} IPv6"),
        };
        let Destination { address, upper_threshold, lower_threshold, .. } = destination;
        format!("{service} {address} {upper_threshold} {lower_threshold}")
    }))
}

pub(super) fn same(ours: &[String], theirs: &[String]) -> Result<()> {
    let missing: Vec<_> = theirs.iter().filter(|line| !ours.contains(line)).collect();
    let invented: Vec<_> = ours.iter().filter(|line| !theirs.contains(line)).collect();
    ensure!(ours == theirs, "not in ours: {missing:#?}\nonly in ours: {invented:#?}");
    Ok(())
}
