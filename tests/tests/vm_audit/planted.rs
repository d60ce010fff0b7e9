//! Planted faults, one after the other and all at once.

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Place,
    audit::{Audit, BOTH, outcomes, repair, wait_faults},
    client::UdpConn,
    ipvs::saved,
    topology::Service,
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

/// A planted fault.
struct Planted {
    /// The command that plants the fault.
    plant: &'static str,
    kind: &'static str,
    subject: &'static str,
    /// Whether `repair` mends the fault.
    mended: bool,
    /// The lines for `ipvsadm -R` that mend the rest.
    by_hand: Option<&'static str>,
}

const ALL: [Planted; 6] = [
    Planted {
        plant: "ipvsadm -d -t 10.96.0.10:80 -r 10.244.3.2:8080",
        kind: "missing-destination",
        subject: "TCP 10.96.0.10:80 -> 10.244.3.2:8080",
        mended: true,
        by_hand: None,
    },
    Planted {
        plant: "ipvsadm -a -u 10.96.0.10:53 -r 10.244.9.9:5300 -m -w 1",
        kind: "stale-destination",
        subject: "UDP 10.96.0.10:53 -> 10.244.9.9:5300",
        mended: true,
        by_hand: None,
    },
    Planted {
        plant: "ipvsadm -e -t 192.0.2.1:30091 -r 10.2.0.12:9100 -m -w 0",
        kind: "stray-weight",
        subject: "TCP 192.0.2.1:30091 -> 10.2.0.12:9100",
        mended: true,
        // `repair` deletes the destination, and kube-proxy would add it again by this line.
        by_hand: Some("-a -t 192.0.2.1:30091 -r 10.2.0.12:9100 -m -w 1\n"),
    },
    Planted {
        plant: "ipvsadm -D -t 10.96.0.20:80",
        kind: "missing-service",
        subject: "TCP 10.96.0.20:80",
        mended: false,
        by_hand: Some(
            "-A -t 10.96.0.20:80 -s rr\n-a -t 10.96.0.20:80 -r 10.2.0.12:9100 -m -w 1\n-a -t 10.96.0.20:80 -r 10.2.0.13:9100 -m -w 1\n",
        ),
    },
    Planted {
        plant: "ipvsadm -A -t 10.97.0.1:80 -s rr",
        kind: "extra-service",
        subject: "TCP 10.97.0.1:80",
        mended: false,
        by_hand: Some("-D -t 10.97.0.1:80\n"),
    },
    Planted {
        plant: "conntrack -I -p udp -t 900 -s 10.244.1.2 -d 10.96.0.10 --sport 4444 --dport 53 -r 10.244.9.8 -q 10.2.0.11 \
                --reply-port-src 5300 --reply-port-dst 4444",
        kind: "stale-udp",
        subject: "flow UDP 10.96.0.10:53 -> 10.244.9.8:5300",
        mended: true,
        by_hand: None,
    },
];

impl Planted {
    fn fault(&self) -> String {
        format!("{} {}", self.kind, self.subject)
    }

    fn put_right(&self, agent: &Agent, ns: &Netns) -> Result<()> {
        let outcome = if self.mended { "fixed" } else { "skipped" };
        let expected = outcomes([(format!("{} {outcome}", self.kind).as_str(), 1)]);
        ensure!(repair(agent, &["--kind", self.kind])? == expected, "{}", self.kind);
        if let Some(by_hand) = self.by_hand {
            ns.feed("ipvsadm -R", by_hand)?;
        }
        Ok(())
    }
}

/// All kinds except for this one.
fn others(kind: &str) -> String {
    let all = [
        "stale-destination",
        "missing-destination",
        "missing-service",
        "extra-service",
        "stray-weight",
        "flagged-destination",
        "stale-udp",
        "flagged-flow",
        "flagged-affinity",
        "kube-proxy-stale",
    ];
    all.iter().filter(|other| **other != kind).copied().collect::<Vec<_>>().join(",")
}

/// Makes traffic of all sorts, which must not be a fault.
fn traffic(cluster: &Cluster) -> Result<(Vec<Conn>, Vec<UdpConn>)> {
    let mut conns = Vec::new();
    let mut datagrams = Vec::new();
    for family in BOTH {
        for place in [Place::Pod, Place::Outside] {
            let web = cluster.service(Service::Web, place, family);
            let dns = cluster.service(Service::Dns, place, family);
            for name in ["node-b", "node-c"] {
                // The first planted fault deletes this destination and its connections.
                if (family, place, name) != (Family::V4, Place::Pod, "node-c") {
                    conns.push(Conn::connect_to(cluster.at(place), web, name, LIMIT)?);
                }
                datagrams.push(UdpConn::connect_to(cluster.at(place), dns, name, LIMIT)?);
            }
        }
    }
    Ok((conns, datagrams))
}

#[test]
fn each_is_found_alone_and_mended_alone() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let agent = agent(&cluster, &[])?;
    let (mut conns, datagrams) = traffic(&cluster)?;
    nothing_for_a_while(&agent)?;
    let audit = Audit::of(&agent)?;
    for kind in ["missing-service", "stale-udp"] {
        ensure!(audit.not_looked_at(kind).is_none(), "{kind}: {:?}", audit.not_looked_at(kind));
    }
    let before = saved(ns)?;
    for planted in &ALL {
        ns.exec(planted.plant)?;
        let fault = planted.fault();
        wait_faults(&agent, &[&fault])?;
        // Neither a repair of the other kinds nor a dry run changes anything.
        let changed = saved(ns)?;
        ensure!(repair(&agent, &["--kind", &others(planted.kind)])? == outcomes([]), "{fault}");
        let dry = repair(&agent, &["--kind", planted.kind, "--dry-run"])?;
        let outcome = if planted.mended { "would_fix" } else { "skipped" };
        ensure!(dry == outcomes([(format!("{} {outcome}", planted.kind).as_str(), 1)]), "{fault}: {dry:?}");
        ensure!(saved(ns)? == changed, "{fault}: the tables changed by a repair of other kinds or a dry run");
        planted.put_right(&agent, ns)?;
        ensure!(saved(ns)? == before, "{fault}: {:#?}, before {before:#?}", saved(ns)?);
        wait_faults(&agent, &[]).context(fault)?;
    }
    nothing_for_a_while(&agent)?;
    for conn in &mut conns {
        conn.echo(b"untouched")?;
    }
    for conn in &datagrams {
        conn.who()?;
    }
    Ok(())
}

#[test]
fn all_at_once_are_told_apart() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let agent = agent(&cluster, &[])?;
    let before = saved(ns)?;
    for planted in &ALL {
        ns.exec(planted.plant)?;
    }
    let mut left: Vec<&Planted> = ALL.iter().collect();
    let mut faults: Vec<String> = ALL.iter().map(Planted::fault).collect();
    let expect = |faults: &[String]| {
        let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
        wait_faults(&agent, &faults).map(drop)
    };
    while let Some(planted) = left.pop() {
        expect(&faults)?;
        planted.put_right(&agent, ns)?;
        faults.retain(|fault| *fault != planted.fault());
    }
    ensure!(saved(ns)? == before);
    nothing_for_a_while(&agent)
}

/// The agent mends faults only of the kinds that `--repair` names. It never adds a missing service.
#[test]
fn the_agent_mends_what_it_is_told_to() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let agent = agent(&cluster, &["--repair", "missing-destination,stale-destination,missing-service"])?;
    for planted in &ALL {
        ns.exec(planted.plant)?;
    }
    let mended = ["missing-destination", "stale-destination"];
    let left: Vec<String> =
        ALL.iter().filter(|planted| !mended.contains(&planted.kind)).map(Planted::fault).collect();
    let left: Vec<&str> = left.iter().map(String::as_str).collect();
    wait_faults(&agent, &left)?;
    let table = ns.exec("ipvsadm -Sn")?;
    ensure!(
        table.contains("-a -t 10.96.0.10:80 -r 10.244.3.2:8080 -m -w 1") && !table.contains("10.244.9.9"),
        "{table}"
    );
    ensure!(!table.contains("-A -t 10.96.0.20:80"), "{table}");
    Ok(())
}
