//! What runs in a guest: its first process, and the process that does what the host asks for. Both go on while the rest of the guest is frozen.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    mount::{MsFlags, mount},
    sys::{
        signal::{Signal, kill},
        wait::wait,
    },
    unistd::{Pid, chdir, chroot},
};

use super::{
    message::{PORT, Reply, Request},
    wire,
};
use crate::watch::precedence::before_all_programs;

/// The kernel parameter with the number of the guest's node.
pub const NODE: &str = "nodefence.node";

/// The argument of the process that serves the host.
const SERVE: &str = "serve";

/// How long all processes may take to stop.
const STOPPED: Duration = Duration::from_secs(30);

/// How often the watchdog looks at the clock. Each look costs an emulated processor much.
const TICK: Duration = Duration::from_millis(20);

/// A tick that is later than this is told to the host. A stand-still is told up to a tick too short, and the judge excuses by those above 100 ms.
const LATE: Duration = Duration::from_millis(50);

/// The cgroup of containerd, the kubelet, kube-proxy and what they start. In the root of the cgroups each of their threads would compete with all pods together.
/// They take half of an emulated processor at rest. The kubelet gives all pods of a node with one processor a weight of 39. With the 100 that systemd gives
/// system services, pods would wait.
const DAEMONS: &str = "/sys/fs/cgroup/daemons";
const DAEMONS_WEIGHT: &str = "20";

/// A line of `sh` that moves itself into a cgroup, and becomes the program in its arguments.
const IN_CGROUP: &str = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;

/// Where the root is mounted once more for a moment.
const AGAIN: &str = "/mnt";

const BUSYBOX: &str = "/usr/bin/busybox";
const APPLETS: &str = "/opt/busybox";
const PATH: &str = "/usr/sbin:/usr/bin:/opt/busybox";

/// The mounts: the type of the filesystem, and the place. The kubelet and containerd measure the filesystems of their folders, and cannot measure that of an
/// initramfs.
const MOUNTS: [(&str, &str); 11] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("tmpfs", "/var/lib/kubelet"),
    ("tmpfs", "/var/lib/containerd"),
];

/// Modules that no program of Kubernetes loads by itself, or that it loads by calls of modprobe one after the other.
const MODULES: [&str; 24] = [
    "virtio_pci",
    "virtio_net",
    "overlay",
    "veth",
    "bridge",
    "br_netfilter",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nft_ct",
    "ip_set",
    "ip_set_hash_ip",
    "xt_set",
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_wrr",
    "ip_vs_sh",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "tcp_diag",
];

/// Runs the guest's part, if this process is in a guest of the cluster.
pub fn main_if_meant() -> Option<ExitCode> {
    let is_first = std::process::id() == 1;
    if !is_first && std::env::args().nth(1).as_deref() != Some(SERVE) {
        return None;
    }
    let ended = if is_first { first() } else { serve() };
    if let Err(error) = ended {
        eprintln!("guest: {error:#}");
    }
    if is_first {
        // The kernel panics if its first process ends, which ends the guest.
        let _ended = Command::new(BUSYBOX).args(["poweroff", "-f"]).status();
    }
    Some(ExitCode::FAILURE)
}

/// Sets up the guest, starts the process that serves the host, and reaps orphans.
fn first() -> Result<()> {
    let none: Option<&str> = None;
    // runc moves the root of a container by pivot_root(2), which refuses to move the root that the kernel made for its initramfs. A second mount of the same
    // files above it can be moved.
    fs::create_dir_all(AGAIN)?;
    mount(Some("/"), AGAIN, none, MsFlags::MS_BIND, none).context("mount / once more")?;
    chdir(AGAIN).context("enter the second mount")?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none).context("move the second mount")?;
    chroot(".").context("change the root")?;
    chdir("/")?;
    fs::create_dir_all(APPLETS)?;
    run(&[BUSYBOX, "--install", "-s", APPLETS])?;
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place).with_context(|| format!("cannot create {place}"))?;
        mount(Some(kind), place, Some(kind), MsFlags::empty(), none)
            .with_context(|| format!("mount {place}"))?;
    }
    mount(none, "/", none, MsFlags::MS_SHARED | MsFlags::MS_REC, none).context("share all mounts")?;
    for folder in ["/run/netns", "/var/log/pods", "/etc/cni/net.d"] {
        fs::create_dir_all(folder)?;
    }
    let all = [&["modprobe", "-a", "-q"][..], &MODULES].concat();
    if let Err(error) = run(&all) {
        eprintln!("guest: {error:#}");
    }
    let node = node()?;
    for (file, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/bridge/bridge-nf-call-iptables", "1"),
        ("kernel/hostname", &wire::name(node)),
    ] {
        fs::write(format!("/proc/sys/{file}"), value).with_context(|| file.to_owned())?;
    }
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu").context("cgroups with the controller cpu")?;
    fs::create_dir_all(DAEMONS)?;
    fs::write(format!("{DAEMONS}/cpu.weight"), DAEMONS_WEIGHT).context(DAEMONS)?;
    run(&["ip", "link", "set", "lo", "up"])?;
    run(&["ip", "link", "set", "eth0", "up"])?;
    run(&["ip", "address", "add", &format!("{}/24", wire::address(node)), "dev", "eth0"])?;
    for other in wire::NODES.filter(|other| *other != node) {
        run(&["ip", "route", "add", &wire::pods(other), "via", &wire::address(other).to_string()])?;
    }
    // The outside is the host's namespace, which has no way on.
    run(&["ip", "route", "add", "default", "via", &wire::HOST.to_string()])?;
    let child = command(&["/proc/self/exe", SERVE]).spawn().context("start the process that serves")?;
    let child = Pid::from_raw(i32::try_from(child.id())?);
    while wait().context("nothing to wait for")?.pid() != Some(child) {}
    bail!("the process that serves the host has ended")
}

/// The number of this guest's node.
fn node() -> Result<u8> {
    let line = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(NODE)?.strip_prefix('='));
    let value = value.with_context(|| format!("the kernel's command line has no {NODE}"))?;
    value.parse().with_context(|| format!("{NODE}={value}: expected a number"))
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("PATH", PATH).env("HOME", "/root").env("TMPDIR", "/tmp");
    command
}

fn run(words: &[&str]) -> Result<()> {
    let line = words.join(" ");
    let status = command(words).status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` ended with {status}");
    Ok(())
}

/// Does what the host asks for.
fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("listen")?;
    for stream in listener.incoming() {
        let stream = stream.context("accept")?;
        std::thread::spawn(move || {
            if let Err(error) = answer(stream) {
                eprintln!("guest: {error:#}");
            }
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let request = serde_json::from_str(&line).with_context(|| format!("a request that is none: {line:?}"))?;
    if matches!(request, Request::Gaps) {
        return tell_gaps(stream);
    }
    let reply = match carry_out(request) {
        Ok(text) => Reply::Done(text),
        Err(error) => Reply::Failed(format!("{error:#}")),
    };
    Ok(stream.write_all(format!("{}\n", serde_json::to_string(&reply)?).as_bytes())?)
}

fn carry_out(request: Request) -> Result<String> {
    match request {
        Request::Put { path, text } => {
            if let Some(folder) = Path::new(&path).parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&path, text)?;
        }
        Request::Run { line } => {
            let output = command(&["/usr/bin/sh", "-c", &line]).stdin(Stdio::null()).output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (printed, errors) = (text(&output.stdout), text(&output.stderr));
            ensure!(output.status.success(), "{}: {printed}{errors}", output.status);
            return Ok(printed);
        }
        Request::Start { name, words } => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            ensure!(!words.is_empty(), "no program");
            let log = File::options().create(true).append(true).open(format!("/var/log/{name}"))?;
            let mut child = command(&[&["/usr/bin/sh", "-c", IN_CGROUP, DAEMONS], &*words].concat())
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .spawn()?;
            std::thread::spawn(move || {
                let ended = child.wait();
                let _noted = writeln!(&log, "ended: {ended:?}");
            });
        }
        Request::Freeze => freeze()?,
        Request::Thaw => everybody(Signal::SIGCONT)?,
        Request::Gaps => {}
    }
    Ok(String::new())
}

/// Sends a signal to all processes but the first one and this one (kill(2)).
fn everybody(signal: Signal) -> Result<()> {
    kill(Pid::from_raw(-1), signal).with_context(|| format!("{signal} to all processes"))
}

fn freeze() -> Result<()> {
    let began = Instant::now();
    loop {
        // A process that was being made when the others stopped gets the signal in the next round.
        everybody(Signal::SIGSTOP)?;
        let running = running()?;
        if running.is_empty() {
            return Ok(());
        }
        ensure!(began.elapsed() < STOPPED, "still running after {STOPPED:?}: {}", running.join(", "));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The names of the processes that have not stopped. Threads of the kernel and dead processes do not count.
fn running() -> Result<Vec<String>> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end meanwhile. A thread of the kernel has no address space, and so no command line.
        let is_ours = fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty());
        if pid == 1 || pid == own || !is_ours {
            continue;
        }
        for task in fs::read_dir(entry.path().join("task")).into_iter().flatten().filter_map(Result::ok) {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let Some((name, rest)) = stat.rsplit_once(')') else { continue };
            // Stopped, traced, dead, a zombie. A thread that waits in the kernel (D) stops before it gets back to its program. Where it waits for the child of a
            // vfork(2) that has stopped too, it waits as long as the node is frozen.
            if !rest.trim_start().starts_with(['T', 't', 'X', 'Z', 'D']) {
                let name = name.split_once('(').map_or(name, |(_, name)| name);
                found.push(name.to_owned());
            }
        }
    }
    Ok(found)
}

/// Tells the host of each time in which this guest stood still, until the host hangs up.
fn tell_gaps(mut stream: TcpStream) -> Result<()> {
    // No program of the guest can delay this thread. So a late tick is no busy guest.
    before_all_programs().context("the watchdog's priority")?;
    loop {
        let due = Instant::now() + TICK;
        std::thread::sleep(TICK);
        let late = due.elapsed();
        if late > LATE && stream.write_all(format!("{}\n", late.as_millis()).as_bytes()).is_err() {
            return Ok(());
        }
    }
}
