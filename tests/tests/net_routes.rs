//! Next hops of packets. The answers of `RouteMap` are compared with the kernel's, and packets that leave by a policy rule are cut.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::{
    dataplane::{interfaces, route_table},
    routes::{Blocks, Policies, RouteMap},
};
use nodefence_tests::{
    Agent, Cluster, Family, Netns, Options, Place, checks::Case, emulated, watch::wait_within,
};
use serde_json::Value;

/// The limit within which the agent sees a change by an event. Without an event it looks every 5 s. After each look it pauses 20 times as long as the look
/// took, at most 5 s: on an emulated processor the pause is 5 s.
fn by_event() -> Duration {
    Duration::from_secs(if emulated() { 15 } else { 4 })
}

/// The limit within which the agent sees a change of IPsec policies. It reads them every 5 s, or less often: after 2,000 times the processor time of the last
/// reading, at most 60 s. The pause after a look comes on top.
fn by_reading() -> Duration {
    Duration::from_secs(if emulated() { 75 } else { 25 })
}

/// A second way from node A to node B's backends, in a table of its own that no rule uses yet.
fn with_second_way() -> Result<Cluster> {
    let cluster = Cluster::new(Options::default())?;
    let (a, b) = (&cluster.a.ns, &cluster.b.ns);
    a.veth("eth9", b, "eth9")?;
    for (ns, i) in [(a, 1), (b, 2)] {
        ns.ip(&format!("addr add 10.99.0.{i}/24 dev eth9\naddr add fd00:99::{i}/64 dev eth9 nodad"))?;
        for device in ["all", "eth0", "eth9"] {
            ns.sysctl(&format!("ipv4/conf/{device}/rp_filter"), "0")?;
        }
    }
    a.sysctl("ipv4/conf/pod0/rp_filter", "0")?;
    a.ip("route add 10.244.2.0/24 via 10.99.0.2 table 100
         route add 10.2.0.12/32 via 10.99.0.2 table 100
         route add fd00:244:2::/64 via fd00:99::2 table 100
         route add fd00:2::12/128 via fd00:99::2 table 100")?;
    Ok(cluster)
}

/// The number of packets that left by the second way.
fn sent(cluster: &Cluster) -> Result<u64> {
    cluster.a.ns.run(|| {
        let text = std::fs::read_to_string("/sys/class/net/eth9/statistics/tx_packets")?;
        Ok(text.trim().parse()?)
    })
}

fn is_attached(agent: &Agent, device: &str) -> bool {
    let attached = |row: &Value| row["name"] == device && !row["tc"].is_null();
    agent
        .json(&["status"])
        .is_ok_and(|status| status["interfaces"].as_array().is_some_and(|rows| rows.iter().any(attached)))
}

fn uncovered(agent: &Agent) -> Option<u64> {
    agent.json(&["status"]).ok()?["uncovered"].as_u64()
}

/// Waits until the number of backends that are not covered passes `is`.
fn becomes(agent: &Agent, limit: Duration, what: &str, is: fn(u64) -> bool) -> Result<()> {
    let seen = wait_within(what, limit, Instant::now(), || uncovered(agent).is_some_and(is));
    seen.map(drop).with_context(|| agent.log())
}

/// Checks that traffic that a rule leads to the second interface is cut there. Network plugins of clouds have such rules.
fn cut_behind(prepare: impl Fn(&Cluster) -> Result<()>) -> Result<()> {
    let cluster = with_second_way()?;
    prepare(&cluster)?;
    let mut agent = Agent::start(&cluster.a.ns, "node-a", &["auto"], &cluster.cluster_file())?;
    ensure!(is_attached(&agent, "eth9") && is_attached(&agent, "eth0"), "{}", agent.log());
    ensure!(uncovered(&agent) == Some(0), "{}", agent.log());
    for family in [Family::V4, Family::V6] {
        let before = sent(&cluster)?;
        Case { cluster: &cluster, place: Place::Pod, family }.cut_and_back(&mut agent, true)?;
        ensure!(sent(&cluster)? > before + 10, "no packets left by eth9, to which the rule leads");
    }
    Ok(())
}

#[test]
fn a_rule_for_a_source() -> Result<()> {
    cut_behind(|cluster| {
        cluster.a.ns.exec("ip rule add from 10.244.1.2 lookup 100")?;
        cluster.a.ns.exec("ip -6 rule add from fd00:244:1::2 lookup 100").map(drop)
    })
}

#[test]
fn a_rule_for_a_device() -> Result<()> {
    cut_behind(|cluster| {
        cluster.a.ns.exec("ip rule add iif pod0 lookup 100")?;
        cluster.a.ns.exec("ip -6 rule add iif pod0 lookup 100").map(drop)
    })
}

#[test]
fn a_rule_for_a_mark() -> Result<()> {
    cut_behind(|cluster| {
        cluster.a.ns.nft(
            "table inet marks {
                chain c {
                    type filter hook prerouting priority mangle; iifname \"pod0\" meta mark set 7
                }
            }",
        )?;
        cluster.a.ns.exec("ip rule add fwmark 7 lookup 100")?;
        cluster.a.ns.exec("ip -6 rule add fwmark 7 lookup 100").map(drop)
    })
}

#[test]
fn rules_and_routes_are_followed() -> Result<()> {
    let cluster = with_second_way()?;
    let agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &cluster.cluster_file())?;
    let becomes = |what: &str, is: fn(u64) -> bool| becomes(&agent, by_event(), what, is);
    ensure!(uncovered(&agent) == Some(0), "{}", agent.log());
    cluster.a.ns.ip("rule add from 10.244.1.2 lookup 100")?;
    becomes("the rule is seen", |count| count > 0)?;
    let backends = agent.expect(&["backends"])?;
    ensure!(backends.contains("may leave by eth9, which is not attached"), "{backends}");
    cluster.a.ns.ip("route del 10.244.2.0/24 table 100\nroute del 10.2.0.12/32 table 100")?;
    becomes("the routes are gone", |count| count == 0)?;
    cluster.a.ns.ip("route add 10.244.2.0/24 via 10.99.0.2 table 100")?;
    becomes("a route is back", |count| count > 0)?;
    // The kernel deletes the IPv4 routes of a device that goes down, and sends no event for each.
    cluster.a.ns.ip("link set eth9 down")?;
    becomes("the device is down", |count| count == 0)?;
    Ok(())
}

#[test]
fn ipsec_policies_are_followed() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let a = &cluster.a.ns;
    let (policy, by) =
        ("dir out dst 10.244.2.0/24", "tmpl src 10.2.0.11 dst 10.2.0.12 proto esp mode tunnel");
    // A policy for incoming packets and one for other destinations concern no backend.
    a.ip(&format!(
        "xfrm policy add dir in dst 10.244.2.0/24 {by}\nxfrm policy add dir out dst 10.9.0.0/16 {by}"
    ))?;
    let agent = Agent::start(a, "node-a", &["eth0"], &cluster.cluster_file())?;
    ensure!(uncovered(&agent) == Some(0), "{}", agent.log());
    a.ip(&format!("xfrm policy add {policy} {by}"))?;
    becomes(&agent, by_reading(), "the policy is seen", |count| count > 0)?;
    let status = agent.json(&["status"])?;
    let examples = status["uncovered_examples"].as_array().context("no examples")?;
    for row in examples {
        let (address, why) = (row["address"].as_str(), row["uncovered"].as_str());
        let both = address.zip(why).context("a backend without a reason")?;
        ensure!(both.0.starts_with("10.244.2."), "{row}");
        ensure!(both.1.starts_with("leaves by IPsec (policy to 10.244.2.0/24)"), "{row}");
    }
    ensure!(agent.expect(&["doctor"])?.contains("leaves by IPsec"), "{}", agent.log());
    a.ip(&format!("xfrm policy del {policy}"))?;
    becomes(&agent, by_reading(), "the policy is gone", |count| count == 0)
}

/// Pseudo-random numbers, the same in each run (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// An address in the range of the random routes.
    fn address(&mut self, family: Family) -> String {
        let [b, c, d] = [self.below(3), self.below(4) * 64, self.below(4) * 85];
        match family {
            Family::V4 => format!("10.{}.{c}.{d}", 128 + b),
            Family::V6 => format!("fd10:{b:x}:{c:x}::{d:x}"),
        }
    }

    fn range(&mut self, family: Family) -> String {
        let lens: &[&str] = match family {
            Family::V4 => &["8", "16", "17", "18", "24", "25", "32"],
            Family::V6 => &["16", "32", "34", "48", "64", "127", "128"],
        };
        let (address, len) = (self.address(family), self.of(lens));
        let masked = nodefence::routes::Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap();
        // `ip` refuses bits behind the prefix length.
        format!("{}/{len}", masked.address())
    }

    fn table(&mut self) -> &'static str {
        self.of(&["main", "main", "11", "12", "13"])
    }

    fn route(&mut self, family: Family) -> String {
        let (range, table) = (self.range(family), self.table());
        let range = if self.below(8) == 0 { "default".to_owned() } else { range };
        let metric = self.below(3) * 10 + 5;
        let device = self.below(4);
        let via = |device: u64| match family {
            Family::V4 => format!("via 10.{device}.0.2 dev d{device}"),
            Family::V6 => format!("via fd00:{device}::2 dev d{device}"),
        };
        let way = match self.below(8) {
            0 => return format!("route add {} {range} table {table} metric {metric}", self.of(&REFUSING)),
            1 => format!("nexthop {} nexthop {}", via(device), via((device + 1) % 4)),
            2 if family == Family::V4 => format!("nhid {}", 1 + self.below(3)),
            2 => format!("nhid {}", 11 + self.below(3)),
            3 => via(device),
            4 if family == Family::V4 => format!("via 10.99.0.{device} dev d{device} onlink"),
            _ => format!("dev d{device}"),
        };
        format!("route append {range} table {table} metric {metric} {way}")
    }

    /// A rule. Only with `some` it may be one that holds for some packets only.
    fn rule(&mut self, family: Family, some: bool) -> String {
        let mut rule = format!("rule add pref {}", 100 + self.below(40));
        if self.below(4) == 0 {
            rule = rule.replace("add", "add not");
        }
        let every =
            if self.below(2) == 0 { "from all".to_owned() } else { format!("to {}", self.range(family)) };
        let selector = match (some, self.below(7)) {
            (false, _) | (true, 0) => every,
            (_, 1) => format!("{every} fwmark {}", self.of(&["1", "2/3", "0/4"])),
            (_, 2) => format!("{every} iif {}", self.of(&["d0", "lo", "nowhere0"])),
            (_, 3) => format!("{every} oif nowhere0"),
            (_, 4) => format!("{every} uidrange 0-{}", self.of(&["0", "99"])),
            (_, 5) => format!("{every} ipproto udp dport 53"),
            (_, _) => match family {
                Family::V4 => format!("from 10.{}.0.1", self.below(4)),
                Family::V6 => format!("from fd00:{}::1", self.below(4)),
            },
        };
        let action = match self.below(8) {
            0 => format!("goto {}", 141 + self.below(3)),
            1 => "unreachable".to_owned(),
            2 => "nop".to_owned(),
            3 => format!("lookup {} suppress_prefixlength {}", self.table(), self.of(&["0", "16", "32"])),
            _ => format!("lookup {}", self.table()),
        };
        let _always = write!(rule, " {selector} {action}");
        rule
    }
}

const REFUSING: [&str; 4] = ["unreachable", "blackhole", "prohibit", "throw"];

/// The kernel's answer to each question: the device, or `None` if it refuses.
fn ask(ns: &Netns, questions: &[String]) -> Result<Vec<Option<String>>> {
    // After a refusal `ip` goes on with the next question; `Command failed -:N` names the line.
    let script = questions.join("\n");
    let said = ns.run(move || -> Result<String> {
        let mut child = Command::new("sh")
            .args(["-c", "ip -force -oneline -batch - 2>&1 || true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().context("no input")?;
        let writes = std::thread::spawn(move || input.write_all(script.as_bytes()));
        let output = child.wait_with_output()?;
        writes.join().unwrap()?;
        Ok(String::from_utf8(output.stdout)?)
    })?;
    let mut failed = BTreeSet::new();
    let mut answers = Vec::new();
    for line in said.lines() {
        if let Some(number) = line.strip_prefix("Command failed -:") {
            failed.insert(number.trim().parse::<usize>()? - 1);
        } else if line.contains(" dev ") {
            answers.push(line);
        }
    }
    ensure!(answers.len() + failed.len() == questions.len(), "{} questions: {said}", questions.len());
    let mut answers = answers.into_iter();
    (0..questions.len())
        .map(|number| {
            if failed.contains(&number) {
                return Ok(None);
            }
            let line = answers.next().context("an answer")?;
            let refused = REFUSING.iter().any(|kind| line.starts_with(kind));
            let device = line.split(" dev ").nth(1).and_then(|rest| rest.split(' ').next());
            Ok(device.filter(|_| !refused).map(str::to_owned))
        })
        .collect()
}

/// Makes random tables and rules. Gives the namespace, its route map and the names of its devices.
fn world(random: &mut Random, some: bool) -> Result<(Netns, RouteMap, BTreeMap<u32, String>)> {
    let ns = Netns::new("routes")?;
    let mut script = String::new();
    for n in 0..4 {
        let _always = writeln!(
            script,
            "link add d{n} type veth peer name e{n}\nlink set d{n} up\nlink set e{n} up
             addr add 10.{n}.0.1/24 dev d{n}\naddr add fd00:{n}::1/64 dev d{n} nodad"
        );
    }
    for (number, family) in [(1, ["10.0.0.2", "10.1.0.2"]), (11, ["fd00:0::2", "fd00:1::2"])] {
        let _always = writeln!(
            script,
            "nexthop add id {number} via {} dev d0\nnexthop add id {} via {} dev d1\nnexthop add id {} group {number}/{}",
            family[0],
            number + 1,
            family[1],
            number + 2,
            number + 1
        );
    }
    ns.ip(&script)?;
    let mut lines = [Vec::new(), Vec::new()];
    for (family, lines) in [Family::V4, Family::V6].into_iter().zip(&mut lines) {
        lines.extend((0..40).map(|_| random.route(family)));
        lines.extend((0..random.below(12)).map(|_| random.rule(family, some)));
        // The targets of a jump.
        lines
            .extend([141, 142].map(|priority| format!("rule add pref {priority} lookup {}", random.table())));
    }
    for (option, lines) in ["-4", "-6"].into_iter().zip(lines) {
        let path = std::env::temp_dir().join(format!("nodefence-routes-{}{option}", std::process::id()));
        std::fs::write(&path, lines.join("\n"))?;
        // Some lines contradict each other, and the kernel refuses them.
        let line = format!("ip {option} -force -batch {}", path.display());
        let _some_failed = ns.exec(&line).is_err();
        std::fs::remove_file(&path)?;
    }
    let (map, names) = ns.run(|| -> Result<_> {
        let mut blocks = Blocks::default();
        for (second, third) in (0..3).flat_map(|second| (0..4).map(move |part| (second, part * 64))) {
            blocks.add(IpAddr::from([10, 128 + second, third, 0]));
            blocks.add(format!("fd10:{second:x}:{third:x}::").parse()?);
        }
        let devices = interfaces::list()?;
        let names = devices.iter().map(|device| (device.ifindex, device.name.clone())).collect();
        Ok((route_table::read(&blocks, &devices, Policies::default())?, names))
    })?;
    Ok((ns, map, names))
}

/// The kernel's answer is among those of `RouteMap`. Without rules that hold for some packets only, `RouteMap` gives the kernel's answer alone.
#[test]
fn what_the_kernel_answers_is_among_what_the_matcher_says() -> Result<()> {
    let mut random = Random(0x6e6f_6465_6665_6e63);
    let (mut leave, mut refused, mut several, mut rules) = (0, 0, 0, 0);
    for round in 0..12 {
        let some = round % 2 == 1;
        let (ns, map, names) = world(&mut random, some)?;
        rules += ns.exec("ip rule")?.lines().count() + ns.exec("ip -6 rule")?.lines().count();
        let mut asked = Vec::new();
        for family in [Family::V4, Family::V6] {
            for _ in 0..150 {
                let address = random.address(family);
                let (first, second) = match family {
                    Family::V4 => ("10.0.0.1", "10.1.0.1"),
                    Family::V6 => ("fd00:0::1", "fd00:1::1"),
                };
                let how = match random.below(if some { 6 } else { 1 }) {
                    0 | 1 => String::new(),
                    2 => " mark 1".to_owned(),
                    3 => " mark 6".to_owned(),
                    4 => format!(" from {first}"),
                    _ => format!(" from {second} mark 2"),
                };
                asked.push((address.clone(), format!("route get {address}{how}")));
            }
        }
        let questions: Vec<String> = asked.iter().map(|(_, question)| question.clone()).collect();
        let answers = ask(&ns, &questions)?;
        for ((address, question), answer) in asked.iter().zip(answers) {
            let ways = map.ways(address.parse()?);
            let said: Vec<&str> =
                ways.devices.iter().filter_map(|at| Some(names.get(at)?.as_str())).collect();
            let state = || {
                format!(
                    "round {round}: {question}: the kernel says {answer:?}, the matcher {ways:?} ({said:?})\n{}\n{}",
                    ns.exec("ip rule").unwrap_or_default() + &ns.exec("ip -6 rule").unwrap_or_default(),
                    ns.exec("ip route show table all").unwrap_or_default()
                        + &ns.exec("ip -6 route show table all").unwrap_or_default()
                )
            };
            ensure!(ways.unknown.is_none() && !ways.local, "{}", state());
            match answer.as_deref() {
                Some(device) => {
                    ensure!(said.contains(&device), "{}", state());
                    ensure!(some || said.len() > 1 || said == [device], "{}", state());
                    leave += 1;
                }
                None => {
                    ensure!(some || said.is_empty(), "{}", state());
                    refused += 1;
                }
            }
            several += usize::from(said.len() > 1);
        }
    }
    // Each kind of answer occurred often enough.
    ensure!(
        leave > 500 && refused > 100 && several > 100 && rules > 200,
        "{leave} {refused} {several} {rules}"
    );
    println!("{leave} answers, {refused} refusals, {several} with several devices, {rules} rules");
    Ok(())
}
