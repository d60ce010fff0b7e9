//! Each line of `doctor`.

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_tests::{Agent, Netns, ipvs::cluster, kernel::UNCOUNTED};
use serde_json::Value;

use super::common::{Kernel, number};

/// The level, the name and the finding of a line.
pub(super) type Line = [String; 3];

fn line(level: &str, name: impl Into<String>, found: impl Into<String>) -> Line {
    [level.to_owned(), name.into(), found.into()]
}

fn ok(name: &str, found: impl Into<String>) -> Line {
    line("ok", name, found)
}

/// The lines of `doctor`, each with its remedy.
fn told(agent: &Agent, args: &[&str]) -> Result<Vec<(Line, Option<String>)>> {
    let output = agent.cli(&[&["doctor"], args, &["-o", "json"]].concat())?;
    let checks: Value = serde_json::from_slice(&output.stdout)?;
    let mut lines = Vec::new();
    for check in checks["items"].as_array().context("a list")? {
        let text = |name: &str| check[name].as_str().map(str::to_owned);
        let of = |name| text(name).with_context(|| check.to_string());
        let remedy = text("remedy");
        ensure!(remedy.is_none() == (check["level"] == "ok"), "{check}");
        lines.push(([of("level")?, of("name")?, of("found")?], remedy));
    }
    let failed = lines.iter().any(|(line, _)| line[0] == "fail");
    ensure!(output.status.code() == Some(if failed { 5 } else { 0 }), "{:?}", output.status);
    // The table for people has the same lines.
    let output = agent.cli(&[&["doctor"], args].concat())?;
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let table: Vec<String> = String::from_utf8(output.stdout)?.lines().map(words).collect();
    let mut expected = Vec::new();
    for (line, remedy) in &lines {
        expected.push(words(&line.join(" ")));
        expected.extend(remedy.as_ref().map(|remedy| words(&format!("-> {remedy}"))));
    }
    ensure!(table == expected, "{table:#?}\n{expected:#?}");
    Ok(lines)
}

pub(super) fn lines(agent: &Agent) -> Result<Vec<Line>> {
    Ok(told(agent, &[])?.into_iter().map(|(line, _)| line).collect())
}

/// The devices of a namespace except for the loopback device, in the order of their indexes.
fn devices(ns: &Netns) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for line in ns.exec("ip -oneline link show")?.lines() {
        let name = line.split(": ").nth(1).context("no name")?;
        names.push(name.split('@').next().unwrap_or(name).to_owned());
    }
    names.retain(|name| name != "lo");
    Ok(names)
}

/// The line on this process's soft limit, which the agent inherits.
fn locked_memory(kernel: &Kernel) -> Result<Line> {
    const NAME: &str = "locked memory";
    if kernel.version >= UNCOUNTED {
        return Ok(ok(NAME, "not counted for BPF since 5.11"));
    }
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let soft =
        limits.lines().find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    let soft = soft.context("no limit")?;
    if soft == "unlimited" {
        return Ok(ok(NAME, soft));
    }
    let bytes: u64 = soft.parse()?;
    if bytes >= 128 << 20 {
        return Ok(ok(NAME, format!("{} MiB", bytes >> 20)));
    }
    Ok(line("warn", NAME, format!("{} KiB; before 5.11 BPF maps count against it", bytes >> 10)))
}

fn lockdown(ns: &Netns) -> Line {
    let text = ns.run(|| {
        std::fs::read_to_string("/sys/kernel/security/lsm")?;
        std::fs::read_to_string("/sys/kernel/security/lockdown").or_else(|_| Ok("[none]".to_owned()))
    });
    match text {
        Ok(text) if text.contains("[none]") => ok("lockdown", "none"),
        Ok(text) if text.contains("[integrity]") => ok("lockdown", "integrity (BPF works)"),
        Ok(text) => line("warn", "lockdown", format!("a test for this is missing: {text}")),
        Err::<_, std::io::Error>(_) => {
            line("warn", "lockdown", "unknown: /sys/kernel/security/lockdown cannot be read")
        }
    }
}

/// The line on a sysctl that should not be 0.
fn switch(ns: &Netns, name: &str, key: &str, zero: &str) -> Result<Line> {
    Ok(match number(ns, key)? {
        0 => line("warn", name, format!("0: {zero}")),
        value => ok(name, value.to_string()),
    })
}

fn of_device(ns: &Netns, device: &str) -> Result<[Line; 2]> {
    let of = |scope: &str| number(ns, &format!("ipv4/conf/{scope}/rp_filter"));
    let name = format!("rp_filter {device}");
    let rp_filter = match of(device)?.max(of("all")?) {
        1 => line(
            "warn",
            name,
            "1 (strict): an answer is accepted only if the route back to the backend leads through this device",
        ),
        value => line("ok", name, value.to_string()),
    };
    let features = ns.exec(&format!("ethtool -k {device}"))?;
    let offload = features.lines().find_map(|line| line.strip_prefix("hw-tc-offload: "));
    let name = format!("hardware offload {device}");
    let offload = match offload.context("no such feature")?.split(' ').next() {
        Some("on") => {
            line("warn", name, "hw-tc-offload is on: flows that the hardware forwards do not pass the cut")
        }
        _ => line("ok", name, "off"),
    };
    Ok([rp_filter, offload])
}

/// The line on the flowtables that `nft` lists.
fn flowtables(ns: &Netns) -> Result<Line> {
    let listed = ns.exec("nft list flowtables")?;
    Ok(match listed.lines().filter(|line| line.trim().starts_with("flowtable ")).count() {
        0 => ok("nft flowtables", "none"),
        count => ok("nft flowtables", format!("{count}, in software: the cut sees them")),
    })
}

/// The expected lines. `attached` says whether eth0 is attached.
fn expected(ns: &Netns, attached: bool, proxy: Line, agent: Line) -> Result<Vec<Line>> {
    let kernel = Kernel::here()?;
    let btf = ns.run(|| std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
    ensure!(btf, "a test for this is missing: a kernel without BTF");
    let mut lines = vec![
        ok("kernel", &kernel.release),
        ok("kernel BTF", "/sys/kernel/btf/vmlinux"),
        ok("BPF filesystem", "mounted at /sys/fs/bpf"),
        locked_memory(&kernel)?,
        ok("capabilities", "all that is needed"),
        lockdown(ns),
        ok("conntrack", "there"),
        ok("conntrack table", format!("0 % of {} entries", number(ns, "netfilter/nf_conntrack_max")?)),
        ok("conntrack drops", "none"),
        switch(
            ns,
            "nf_conntrack_tcp_loose",
            "netfilter/nf_conntrack_tcp_loose",
            "after a conntrack entry is gone the client's next packet is INVALID and dropped, instead of being answered",
        )?,
        switch(
            ns,
            "vs.conntrack",
            "ipv4/vs/conntrack",
            "IPVS flows are not in conntrack, idle ones cannot be challenged and are cut when they next send",
        )?,
        switch(
            ns,
            "vs.expire_nodest_conn",
            "ipv4/vs/expire_nodest_conn",
            "IPVS keeps the connections of a destination that is drained",
        )?,
        switch(
            ns,
            "vs.expire_quiescent_template",
            "ipv4/vs/expire_quiescent_template",
            "clients with affinity stay with a destination of weight 0",
        )?,
    ];
    let devices = devices(ns)?;
    let mut sorted = devices.clone();
    sorted.sort();
    for device in &sorted {
        lines.extend(of_device(ns, device)?);
    }
    let way = kernel.attaches_by();
    let past = if kernel.translates_the_past() {
        "by SYN|ACK, then by ACK from the past"
    } else {
        "by SYN|ACK, then by ACK from the past, on flows made liberal"
    };
    let resets = if kernel.ipvs_translates() {
        "made in place; IPVS translates it back"
    } else {
        "injected by the agent: IPVS of this kernel does not translate one made in place (fixed by de2c211868b9)"
    };
    lines.extend([
        ok("TC programs", "work"),
        ok("BPF ring buffer", "works"),
        ok("XDP", "works (used with --xdp only)"),
        ok(
            "attach mode",
            if way == "tcx" { way } else { "clsact (no tcx: it came with 6.6 and CONFIG_NET_XGRESS)" },
        ),
        ok("challenging idle clients", past),
        ok("RST", resets),
        ok("conntrack entries", format!("deleted {}", kernel.deletes())),
        proxy,
        ok("kube-proxy replacement", "no trace of one"),
        flowtables(ns)?,
    ]);
    for device in devices {
        let found = if attached && device == "eth0" {
            format!("attached by {way}")
        } else {
            "not attached".to_owned()
        };
        lines.push(ok(&format!("interface {device}"), found));
    }
    let runs = agent[0] == "ok";
    lines.push(agent);
    if runs {
        lines.push(ok(
            "IPVS guard",
            "child of the agent (in a container: ends with it, see `nodefence guard --help`)",
        ));
    }
    Ok(lines)
}

fn same(found: &[Line], expected: &[Line]) -> Result<()> {
    for (at, expected) in expected.iter().enumerate() {
        ensure!(found.get(at) == Some(expected), "line {at}: {:?} in place of {expected:?}", found.get(at));
    }
    ensure!(found.len() == expected.len(), "{:?} too many", &found[expected.len()..]);
    Ok(())
}

const SWITCHES: [&str; 4] = [
    "netfilter/nf_conntrack_tcp_loose",
    "ipv4/vs/conntrack",
    "ipv4/vs/expire_nodest_conn",
    "ipv4/vs/expire_quiescent_template",
];

/// Each line is true for the machine as it is, and after each change of it. Each remedy that is a command for this machine mends its line.
#[test]
fn each_line_is_true_and_each_remedy_mends() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let mut agent = cluster.agent_with(&["--proxy", "ipvs"])?;
    let pid = agent.proc()?.pid();
    let runs = ok("agent", format!("process {pid}, node node-a"));
    let told_so = ok("kube-proxy", "ipvs (--proxy says so)");
    same(&lines(&agent)?, &expected(ns, true, told_so.clone(), runs.clone())?).context("as it is")?;

    // Only one switch is 0 at a time, so that no line can have another switch's value. Of the two `rp_filter` values for a device the larger counts.
    ns.sysctl("ipv4/conf/all/rp_filter", "2")?;
    for key in SWITCHES {
        ns.sysctl(key, "0")?;
        same(&lines(&agent)?, &expected(ns, true, told_so.clone(), runs.clone())?).context(key)?;
        ns.sysctl(key, "1")?;
    }
    ns.sysctl("ipv4/conf/all/rp_filter", "1")?;
    for key in SWITCHES {
        ns.sysctl(key, "0")?;
    }
    ns.nft(
        "table inet fast {
            flowtable one { hook ingress priority 0; devices = { eth0 }; }
            flowtable two { hook ingress priority 0; devices = { pod0 }; }
        }",
    )?;
    let now = told(&agent, &[])?;
    let found: Vec<Line> = now.iter().map(|(line, _)| line.clone()).collect();
    same(&found, &expected(ns, true, told_so.clone(), runs.clone())?).context("with all faults")?;
    let mut mended = Vec::new();
    for ([level, name, _], remedy) in &now {
        let command = remedy.as_ref().map(|remedy| remedy.split('#').next().unwrap_or_default().trim());
        match command {
            Some(command) if command.starts_with("sysctl -w ") || command.starts_with("mount -t ") => {
                ns.exec(command).with_context(|| name.clone())?;
                mended.push(name.clone());
            }
            Some(command) if level != "ok" && name != "locked memory" => bail!("{name}: {command}"),
            _ => {}
        }
    }
    ensure!(
        ["lockdown", "vs.conntrack", "rp_filter eth0"]
            .iter()
            .all(|name| mended.iter().any(|done| done == name)),
        "{mended:?}"
    );
    let now = lines(&agent)?;
    same(&now, &expected(ns, true, told_so, runs)?).context("mended")?;
    let left: Vec<_> =
        now.iter().filter(|[level, name, _]| level != "ok" && name != "locked memory").collect();
    ensure!(left.is_empty(), "the remedies left {left:?}");

    agent.kill();
    let socket = agent.socket();
    let none = line("warn", "agent", format!("none answers at {}", socket.display()));
    // The test cluster has its masquerade rules in a table of kube-proxy's name.
    let several = line(
        "warn",
        "kube-proxy",
        "datapath only (traces of several modes: the device kube-ipvs0, the nftables table kube-proxy; say which with --proxy; it does not answer: Connection refused (os error 111))",
    );
    same(&lines(&agent)?, &expected(ns, true, several, none.clone())?).context("without an agent")?;
    ns.nft("delete table ip kube-proxy; delete table ip6 kube-proxy;")?;
    let by_trace = ok(
        "kube-proxy",
        "ipvs (by the device kube-ipvs0; it does not answer: Connection refused (os error 111))",
    );
    same(&lines(&agent)?, &expected(ns, true, by_trace.clone(), none.clone())?).context("one trace")?;
    let run_dir = socket.parent().and_then(|path| path.to_str()).context("no folder")?.to_owned();
    agent.expect(&["--run-dir", &run_dir, "detach"])?;
    same(&lines(&agent)?, &expected(ns, false, by_trace, none)?).context("detached")?;
    // A device that `--interface` names must be there.
    let nothere = told(&agent, &["--interface", "nothere"])?;
    let missing =
        line("fail", "interface nothere", "there is no interface named nothere in this network namespace");
    ensure!(nothere.iter().any(|(line, _)| *line == missing), "{nothere:?}");
    Ok(())
}
