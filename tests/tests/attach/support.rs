//! Two namespaces joined by a veth pair, and what the tests need to look at them.
use std::{net::Ipv4Addr, path::PathBuf, process::Command, sync::Arc};

use aya::programs::{SchedClassifier, TcAttachType};
use nodefence::dataplane::{Dataplane, Options, TcChoice, TcMode, features};
use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, Verdict};
use nodefence_tests::{expected::ExpectedMaps, kernel, load::datagrams::Numbered, netns::Netns};

/// Addresses of the far side of the pair. Each address stands for a backend.
pub(crate) const PEERS: [Ipv4Addr; 4] = [
    Ipv4Addr::new(10, 77, 0, 2),
    Ipv4Addr::new(10, 77, 0, 3),
    Ipv4Addr::new(10, 77, 0, 4),
    Ipv4Addr::new(10, 77, 0, 5),
];

/// `near` has `up0` (10.77.0.1), to which the dataplane is attached; `far` has `up1` with [`PEERS`].
pub(crate) struct Pair {
    pub(crate) near: Arc<Netns>,
    pub(crate) far: Netns,
}

impl Pair {
    pub(crate) fn new(label: &str) -> Self {
        let near = Arc::new(Netns::new(label).unwrap());
        let far = Netns::new(label).unwrap();
        near.ip(&format!(
            "link add up0 address 02:77:00:00:00:01 type veth peer name up1 address 02:77:00:00:00:02 netns {}",
            far.path().display()
        ))
        .unwrap();
        near.ip("addr add 10.77.0.1/24 dev up0\nlink set up0 up").unwrap();
        far.ip("link set up1 up\nneigh replace 10.77.0.1 lladdr 02:77:00:00:00:01 nud permanent dev up1")
            .unwrap();
        for peer in PEERS {
            far.ip(&format!("addr add {peer}/24 dev up1")).unwrap();
            near.ip(&format!("neigh replace {peer} lladdr 02:77:00:00:00:02 nud permanent dev up0")).unwrap();
        }
        Self { near, far }
    }
}

/// Starts to send datagrams to each of these addresses on `far`.
pub(crate) fn load(pair: &Pair, to: &[Ipv4Addr]) -> Numbered {
    Numbered::start(&pair.near, Ipv4Addr::new(10, 77, 0, 1), &pair.far, to).unwrap()
}

/// Whether datagrams to an address arrive. Panics if only some of them do.
pub(crate) fn arrives(pair: &Pair, to: Ipv4Addr) -> bool {
    let load = load(pair, &[to]);
    load.pass(20).unwrap();
    let arrived = load.finish().unwrap().remove(0);
    let any = !arrived.numbers.is_empty();
    if any {
        arrived.all("one way or the other").unwrap();
    }
    any
}

/// A dataplane that stays loaded while the test does other things, since a load takes seconds on an emulated processor.
pub(crate) struct Held<'a> {
    pair: &'a Pair,
    dataplane: Option<Dataplane>,
}

impl<'a> Held<'a> {
    /// Opens a dataplane in the near namespace.
    pub(crate) fn open(pair: &'a Pair, options: Options) -> Self {
        Self { pair, dataplane: Some(pair.near.run(move || Dataplane::open(&options).unwrap())) }
    }

    /// Works with the dataplane in the near namespace.
    pub(crate) fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Dataplane) -> T + Send + 'static,
    ) -> T {
        let mut dataplane = self.dataplane.take().unwrap();
        let (dataplane, result) = self.pair.near.run(move || {
            let result = work(&mut dataplane);
            (dataplane, result)
        });
        self.dataplane = Some(dataplane);
        result
    }
}

/// The mode that `TcChoice::Auto` gives on this kernel: tcx from kernel 6.6 on. Panics if `features` says otherwise.
pub(crate) fn auto() -> TcMode {
    let version = kernel::version().unwrap();
    let has = version >= kernel::TCX;
    assert_eq!(features().tcx, has, "tcx on {version:?}");
    if has { TcMode::Tcx } else { TcMode::Clsact }
}

/// The ways of attaching, and the mode that the status must show for each on this kernel. Without tcx there is one way only, `TcChoice::Auto`.
pub(crate) fn ways() -> Vec<(TcChoice, TcMode)> {
    let mut ways = vec![(TcChoice::Auto, auto()), (TcChoice::Clsact, TcMode::Clsact)];
    ways.dedup_by_key(|(_, mode)| *mode);
    ways
}

pub(crate) fn options(tc: TcChoice) -> Options {
    Options { max_backends: 1024, tc, ..Options::default() }
}

pub(crate) fn up0() -> Vec<String> {
    vec!["up0".into()]
}

/// CLOCK_MONOTONIC plus an hour: a verdict that does not lapse while a test runs.
pub(crate) fn for_an_hour() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    (now.tv_sec() as u64 + 3600) * 1_000_000_000
}

pub(crate) fn node(name: &str, generation: u32, flagged: bool) -> NodeEntry {
    let mut entry =
        NodeEntry { verdict: Verdict::Healthy as u32, action: 0, until: 0, generation, name: [0; 28] };
    entry.name[..name.len()].copy_from_slice(name.as_bytes());
    if flagged {
        entry.verdict = Verdict::Flagged as u32;
        entry.action = Action::Drop as u32;
        entry.until = for_an_hour();
    }
    entry
}

/// The maps for these nodes, which stand in the order of their indexes, each with its backends.
pub(crate) fn wanted(nodes: &[(NodeEntry, &[Ipv4Addr])]) -> ExpectedMaps {
    let mut wanted = ExpectedMaps::default();
    for (index, (node, backends)) in (0_u32..).zip(nodes) {
        wanted.nodes.insert(index, *node);
        for backend in *backends {
            let entry = BackendEntry { node: index, generation: node.generation, flags: 0 };
            wanted.tables.backends.insert(Addr::v4(backend.octets()), entry);
        }
    }
    wanted
}

/// The first peer's node is healthy, and the second's is flagged. The other peers are no backends.
pub(crate) fn one_flagged() -> ExpectedMaps {
    wanted(&[(node("good", 1, false), &PEERS[..1]), (node("hung", 1, true), &PEERS[1..2])])
}

/// Runs a command line in the calling thread's namespace and gives its output. Panics with its standard error if it fails.
pub(crate) fn sh(line: &str) -> String {
    let out = Command::new("sh").args(["-c", line]).output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line}: {error}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub(crate) fn ifindex(device: &str) -> u32 {
    nix::net::if_::if_nametoindex(device).unwrap()
}

/// Names of the tcx programs of a device's hook, in the order in which they run.
pub(crate) fn tcx(device: &str, hook: TcAttachType) -> Vec<String> {
    if auto() == TcMode::Clsact {
        return Vec::new();
    }
    let (_, programs) = SchedClassifier::query_tcx(ifindex(device), hook).unwrap();
    programs.iter().map(|program| program.name_as_str().unwrap_or_default().to_owned()).collect()
}

/// The names of our programs on a device, attached by tcx or by clsact.
pub(crate) fn attached(device: &str) -> Vec<String> {
    let mut names = [tcx(device, TcAttachType::Egress), tcx(device, TcAttachType::Ingress)].concat();
    names.retain(|name| name.starts_with("nf_"));
    for hook in ["egress", "ingress"] {
        let filters = sh(&format!("tc filter show dev {device} {hook}"));
        let ours = filters.split(' ').filter_map(|word| word.strip_prefix("nodefence:"));
        names.extend(ours.map(str::to_owned));
    }
    names.sort();
    names
}

/// The pin folder of [`Options::default`].
pub(crate) fn pin_dir() -> PathBuf {
    Options::default().pin_dir
}
