//! The demo as people run it, with shorter runs: what it shows, and that it leaves nothing after Ctrl-C.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use aya::{maps::loaded_maps, programs::loaded_programs};
use nix::sys::signal::Signal;
use nodefence_tests::{Netns, Proc, bin, client::wait_until, promises::FREED, watch};
use serde_json::Value;
use tempfile::TempDir;

/// The limit within which a demo reaches the step that a test waits for. Most of this time is the start of a cluster.
const UNDER_WAY: Duration = Duration::from_secs(120);
/// The demo draws a client that waits for longer as stalled.
const STALL: Duration = Duration::from_millis(250);
/// A client of the demo waits this long for an answer.
const GIVES_UP: Duration = Duration::from_secs(2);
/// The number of keep-alive and UDP clients that are connected to each of the two nodes.
const ON_EACH: usize = 16;
/// The number of TCP connections among them.
const CONNECTIONS: u64 = 12;

/// Only one demo runs at a time. Each makes two clusters, and a client that waits for the processor looks like a stalled one.
static ALONE: Mutex<()> = Mutex::new(());

/// A demo in a namespace of its own.
struct Demo {
    proc: Proc,
    ns: Netns,
    /// The demo's own temporary files.
    temporary: TempDir,
    out: TempDir,
    /// The entries of the BPF filesystem before the demo.
    pins: BTreeSet<PathBuf>,
    _alone: MutexGuard<'static, ()>,
}

impl Demo {
    fn start() -> Result<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let ns = Netns::new("demo")?;
        let pins = ns.run(|| names("/sys/fs/bpf"));
        let temporary = TempDir::with_prefix("nodefence-test-")?;
        let out = TempDir::with_prefix("nodefence-test-")?;
        let log = File::create(out.path().join("log"))?;
        let mut command = Command::new(bin("nodefence-demo")?);
        command.arg("--short").arg("--out").arg(out.path().join("made")).env("TMPDIR", temporary.path());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let proc = Proc::spawn(&ns, command)?;
        Ok(Self { proc, ns, temporary, out, pins, _alone: alone })
    }

    fn said(&self) -> Result<String> {
        Ok(fs::read_to_string(self.out.path().join("log"))?)
    }

    /// The text of a file that the demo made.
    fn made(&self, file: &str) -> Result<String> {
        let path = self.out.path().join("made").join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Waits until the demo has printed `text` this many times.
    fn wait_for(&mut self, text: &str, times: usize) -> Result<()> {
        let mut ended = None;
        let said = wait_until(text, UNDER_WAY, || {
            ended = self.proc.ended().ok().flatten();
            ended.is_some() || self.said().is_ok_and(|said| said.matches(text).count() >= times)
        });
        match (said, ended) {
            (Ok(_), None) => Ok(()),
            (_, ended) => {
                bail!("`{text}` was not printed {times} times; ended: {ended:?}\n{}", self.said()?)
            }
        }
    }
}

/// The two columns of a row of the table.
fn row(said: &str, name: &str) -> Result<[String; 2]> {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let columns = line.with_context(|| format!("no row `{name}`\n{said}"))?;
    let columns: Vec<_> =
        columns.split("   ").map(str::trim).filter(|column| !column.is_empty()).map(str::to_owned).collect();
    columns.try_into().map_err(|other| anyhow::anyhow!("row `{name}`: {other:?}"))
}

fn number(text: &str) -> Result<u64> {
    text.parse().with_context(|| text.to_owned())
}

/// A request that was not answered at once, with its client. `start` and `end` are milliseconds after the freeze.
struct Request {
    client: usize,
    kind: String,
    how: String,
    start: f64,
    end: f64,
    began: Instant,
}

impl Request {
    fn took(&self) -> Duration {
        Duration::from_secs_f64((self.end - self.start) / 1e3)
    }

    fn in_time(&self, what: &str) -> Result<()> {
        watch::held(what, STALL, self.began, self.took()).map(drop)
    }
}

/// The moment that is this many milliseconds after the freeze.
fn moment(run: &Value, after_ms: f64) -> Result<Instant> {
    let frozen = run["frozen_monotonic_ns"].as_u64().context("when the node froze")? as f64;
    Ok(watch::moment((frozen + after_ms * 1e6) as u64))
}

fn requests(run: &Value) -> Result<Vec<Request>> {
    let one = |value: &Value| {
        let start = value["start_ms"].as_f64()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Request {
            client: value["client"].as_u64()? as usize,
            kind: text("kind")?,
            how: text("how")?,
            start,
            end: value["end_ms"].as_f64()?,
            began: moment(run, start).ok()?,
        })
    };
    let all = run["requests_not_answered_at_once"].as_array().context("requests")?;
    all.iter().map(|value| one(value).with_context(|| value.to_string())).collect()
}

#[test]
fn it_shows_who_waits_without_nodefence_and_that_nobody_does_with_it() -> Result<()> {
    let mut demo = Demo::start()?;
    let status = demo.proc.wait(UNDER_WAY)?;
    let said = demo.said()?;
    ensure!(status.success(), "{status}\n{said}");
    let timeline: Value = serde_json::from_str(&demo.made("timeline.json")?)?;
    let [without, with] = [&timeline["runs"][0], &timeline["runs"][1]];
    stalls_without(without, &said)?;
    freed_with(with, &said).with_context(|| said.clone())?;
    for run in [without, with] {
        let healthy: Vec<u64> = serde_json::from_value(run["clients_of_the_healthy_node"].clone())?;
        ensure!(healthy.len() == ON_EACH, "{healthy:?}");
        for request in requests(run)?.iter().filter(|request| healthy.contains(&(request.client as u64))) {
            let is_slow = request.how == "Answered" || request.how == "Waiting";
            ensure!(is_slow, "{}: {} of a client of node C: {}", run["name"], request.kind, request.how);
            request.in_time("a request to the healthy node")?;
        }
    }
    picture(&demo.made("timeline.svg")?, &said)?;
    let left: Vec<_> = fs::read_dir(demo.temporary.path())?.collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Each client of the frozen node waits until the run is over: nothing resets it.
fn stalls_without(run: &Value, said: &str) -> Result<()> {
    ensure!(run["flag_ms"].is_null(), "{}", run["flag_ms"]);
    let ended = run["ended_ms"].as_f64().context("its end")?;
    let at_the_end = requests(run)?.into_iter().filter(|request| request.how == "Waiting");
    let waiting: BTreeSet<_> =
        at_the_end.filter(|request| request.end >= ended).map(|one| one.client).collect();
    // The clients with connections, those with datagrams, and the idle one wait.
    ensure!(waiting.len() > ON_EACH, "{} clients waited at the end\n{said}", waiting.len());
    ensure!(row(said, "connections reset")?[0] == "0", "{said}");
    ensure!(row(said, "idle clients freed")?[0] == "0 of 1", "{said}");
    ensure!(number(&row(said, "requests stalled when the run ended")?[0])? >= CONNECTIONS, "{said}");
    Ok(())
}

/// Each client of the frozen node is reset or refused once the node is flagged, and no later client waits.
fn freed_with(run: &Value, said: &str) -> Result<()> {
    let holds = run["flag_holds_ms"].as_f64().context("no flag")?;
    let resets = number(&row(said, "connections reset")?[1])?;
    ensure!(resets == CONNECTIONS, "{resets} connections were reset");
    let idle = &row(said, "idle clients freed")?[1];
    ensure!(idle.starts_with("1 of 1"), "{idle}");
    ensure!(row(said, "requests stalled when the run ended")?[1] == "0");
    let seconds = |column: &str| -> Result<f64> { Ok(column.split(' ').next().unwrap_or_default().parse()?) };
    let [without, with] = row(said, "stalled requests, seconds in all")?;
    ensure!(seconds(&with)? * 2.0 < seconds(&without)?, "stalled: {without} s without, {with} s with");
    let (after, before): (Vec<Request>, Vec<Request>) =
        requests(run)?.into_iter().partition(|request| request.start > holds);
    let flagged = moment(run, holds)?;
    // A datagram that the frozen node received before the flag gets no answer, so its client waits until its own time limit.
    let lost = |request: &Request| request.kind == "Udp" && request.how == "GaveUp";
    let (lost, told): (Vec<Request>, Vec<Request>) = before.into_iter().partition(lost);
    ensure!(lost.len() <= ON_EACH - CONNECTIONS as usize, "{} datagrams were lost", lost.len());
    for request in lost {
        watch::held("a client's own time limit", GIVES_UP + STALL, request.began, request.took())?;
    }
    for request in told {
        let after_the_flag = Duration::from_secs_f64((request.end - holds).max(0.0) / 1e3);
        watch::held("from the flag to the end of what stalled", FREED, flagged, after_the_flag)
            .with_context(|| format!("{}, {}", request.kind, request.how))?;
    }
    for request in after.iter().filter(|request| request.kind != "Idle") {
        request
            .in_time("a request after the flag")
            .with_context(|| format!("{}, {}", request.kind, request.how))?;
    }
    Ok(())
}

/// Checks that the picture is well-formed and has the table's figures.
fn picture(svg: &str, said: &str) -> Result<()> {
    let (shapes, texts) = parse(svg).context("timeline.svg")?;
    let has = |text: &str| texts.iter().filter(|found| found.contains(text)).count();
    for (text, times) in [
        ("1. Without nodefence", 1),
        ("2. With the node flagged", 1),
        ("node B freezes", 2),
        ("nodefence flag node-b", 1),
        ("idle client never freed", 1),
        ("cut short here", 1),
    ] {
        ensure!(has(text) == times, "`{text}` stands {} times in timeline.svg", has(text));
    }
    for (column, resets) in row(said, "connections reset")?.iter().enumerate() {
        let summary = texts.iter().filter(|text| text.contains("connections reset;")).nth(column);
        let summary = summary.context("a summary of each run")?;
        ensure!(summary.contains(&format!("  {resets} connections reset;")), "{summary}");
    }
    // Stalled clients and stalled new connections of both runs are four outlines.
    let stalled =
        shapes.iter().filter(|shape| shape.starts_with("path ") && shape.contains("fill=\"#c8391b\""));
    let drawn: Vec<bool> = stalled.map(|shape| !shape.contains("d=\"\"")).collect();
    ensure!(drawn.len() == 4 && drawn[0] && drawn[1] && drawn[2], "stalled clients drawn: {drawn:?}");
    Ok(())
}

/// The tags with their attributes, and the texts, of an XML document without comments. Fails if the document is not well-formed.
fn parse(xml: &str) -> Result<(Vec<String>, Vec<String>)> {
    let mut tags = Vec::new();
    let mut texts = Vec::new();
    let mut open = Vec::new();
    let mut rest = xml.trim();
    while !rest.is_empty() {
        let at = rest.find('<').context("text behind the last tag")?;
        let (text, tag) = rest.split_at(at);
        let sound = text.split('&').skip(1).all(|entity| {
            ["amp;", "lt;", "gt;", "quot;", "apos;", "#"].iter().any(|known| entity.starts_with(known))
        });
        ensure!(sound && !text.contains('>'), "text `{text}`");
        if !text.trim().is_empty() {
            ensure!(!open.is_empty(), "text outside of all tags: `{text}`");
            texts.push(text.to_owned());
        }
        let (tag, behind) = tag[1..].split_once('>').context("a tag without an end")?;
        rest = behind;
        if let Some(name) = tag.strip_prefix('/') {
            ensure!(open.pop() == Some(name), "`{name}` ends, and was not the last tag that began");
            ensure!(!open.is_empty() || rest.is_empty(), "text or a tag behind the root");
            continue;
        }
        attributes(tag.trim_end_matches('/'))?;
        tags.push(tag.to_owned());
        if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap_or_default());
        }
    }
    ensure!(
        open.is_empty() && tags.first().is_some_and(|tag| tag.starts_with("svg ")),
        "left open: {open:?}"
    );
    Ok((tags, texts))
}

/// Checks that each attribute has a name and a value in quotes, and that none occurs twice.
fn attributes(tag: &str) -> Result<()> {
    let mut names = BTreeSet::new();
    let (_, mut rest) = tag.split_once(' ').unwrap_or_default();
    while !rest.trim().is_empty() {
        let (name, value) =
            rest.trim_start().split_once("=\"").with_context(|| format!("`{rest}` in `{tag}`"))?;
        let plain = !name.is_empty()
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == ':');
        ensure!(plain && names.insert(name), "attribute `{name}` in `{tag}`");
        let (value, behind) =
            value.split_once('"').with_context(|| format!("`{name}` is not closed in `{tag}`"))?;
        ensure!(!value.contains(['<', '&']), "value of `{name}` in `{tag}`");
        rest = behind;
    }
    Ok(())
}

/// The belongings of a demo: processes, namespaces, programs and maps in the kernel.
#[derive(Debug, Default)]
struct Belongings {
    pids: BTreeSet<u32>,
    namespaces: BTreeSet<PathBuf>,
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Belongings {
    /// The belongings of all processes whose temporary folder is this one.
    fn of(temporary: &Path) -> Result<Self> {
        let mut this = Self::default();
        let marked = format!("TMPDIR={}", temporary.display());
        for (pid, folder) in processes()? {
            // A process that has ended, or is a thread of the kernel, has no environment.
            let Ok(environment) = fs::read(folder.join("environ")) else { continue };
            if !environment.split(|byte| *byte == 0).any(|variable| variable == marked.as_bytes()) {
                continue;
            }
            this.pids.insert(pid);
            this.namespaces.extend(namespaces(&folder));
            for info in fs::read_dir(folder.join("fdinfo")).into_iter().flatten().flatten() {
                let text = fs::read_to_string(info.path()).unwrap_or_default();
                let id = |name: &str| {
                    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok())
                };
                this.programs.extend(id("prog_id:"));
                this.maps.extend(id("map_id:"));
            }
        }
        Ok(this)
    }

    /// The belongings that still exist.
    fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (pid, folder) in processes()? {
            if self.pids.contains(&pid) {
                left.push(format!("process {pid}"));
            }
            let held = namespaces(&folder);
            left.extend(held.intersection(&self.namespaces).map(|ns| format!("{} of {pid}", ns.display())));
        }
        let programs = loaded_programs().filter_map(|program| Some(program.ok()?.id()));
        left.extend(programs.filter(|id| self.programs.contains(id)).map(|id| format!("program {id}")));
        let maps = loaded_maps().filter_map(|map| Some(map.ok()?.id()));
        left.extend(maps.filter(|id| self.maps.contains(id)).map(|id| format!("map {id}")));
        Ok(left)
    }
}

fn processes() -> Result<Vec<(u32, PathBuf)>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect())
}

/// Network and mount namespaces of a process's threads.
fn namespaces(process: &Path) -> BTreeSet<PathBuf> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let both =
        threads.flat_map(|thread| ["ns/net", "ns/mnt"].map(|kind| fs::read_link(thread.path().join(kind))));
    both.flatten().collect()
}

/// The paths in a folder. Empty if there is no such folder.
fn names(folder: &str) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Interrupts a demo once it has printed `text` this many times. The demo must end soon and leave nothing.
fn interrupted(text: &str, times: usize, with_agent: bool) -> Result<()> {
    const FOLDERS: [&str; 2] = ["/sys/fs/bpf", "/run/nodefence"];
    let before = FOLDERS.map(names);
    let mut demo = Demo::start()?;
    demo.wait_for(text, times)?;
    let mut all = Belongings::of(demo.temporary.path())?;
    // The demo also uses namespaces of the test, which stay.
    let own = namespaces(Path::new("/proc/self"));
    all.namespaces.retain(|namespace| !own.contains(namespace));
    // The processes are the demo itself, its servers, and the agent.
    ensure!(all.pids.len() >= if with_agent { 4 } else { 3 }, "{all:?}");
    ensure!(all.namespaces.len() >= 16, "{all:?}");
    ensure!(all.maps.is_empty() != with_agent && all.programs.is_empty() != with_agent, "{all:?}");
    let begun = Instant::now();
    demo.proc.signal(Signal::SIGINT)?;
    let status = demo.proc.wait(UNDER_WAY)?;
    watch::within("Ctrl-C to the demo's end", Duration::from_secs(5), begun)?;
    ensure!(status.code() == Some(130), "{status}\n{}", demo.said()?);
    // The kernel frees programs and maps only after all processors have left them.
    watch::wait_within("Ctrl-C to nothing left", Duration::from_secs(5), begun, || {
        all.left().is_ok_and(|left| left.is_empty())
    })
    .with_context(|| format!("left: {:?}", all.left()))?;
    let files: Vec<_> = fs::read_dir(demo.temporary.path())?.collect();
    ensure!(files.is_empty(), "{files:?}");
    ensure!(!demo.out.path().join("made").exists(), "the interrupted demo wrote its pictures");
    let pins = demo.ns.run(|| names("/sys/fs/bpf"));
    ensure!(pins == demo.pins, "{pins:?}");
    ensure!(FOLDERS.map(names) == before, "{:?}", FOLDERS.map(names));
    Ok(())
}

#[test]
fn ctrl_c_leaves_nothing_while_the_node_hangs_unseen() -> Result<()> {
    interrupted("every process of node B is frozen", 1, false)
}

#[test]
fn ctrl_c_leaves_nothing_while_the_node_is_flagged() -> Result<()> {
    interrupted("nodefence flag node-b --", 1, true)
}
