//! The namespaces, and the agent on node 0 beside the generated cluster.
//!
//! client - router (the agent) - a namespace that has the address of every endpoint.
use std::{
    io::{PipeWriter, Write as _},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use aya::maps::{Array, HashMap, Map, MapData};
use clap::ValueEnum;
use nodefence::{
    flags::monotonic_ns,
    report::{Request, Status},
};
use nodefence_common::{Addr, BackendEntry, NodeEntry, Verdict};
use nodefence_tests::{Agent, Netns, agent::PINNED_MAPS};

use super::{
    meter::Meter,
    view::{self, Moved, Sizes, View},
};
use crate::progress::Progress;

/// The router's address towards the endpoints: node 0's.
const OWN: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 1);
const UPLINK: &str = "uplink";
/// How long a change may take to reach the maps.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the maps are read.
const LOOK: Duration = Duration::from_millis(1);
/// How long the agent's actors may work on a new view after a change, although no map shows it. They get longer if the agent is still busy.
const READERS: Duration = Duration::from_millis(500);
const READERS_AT_MOST: Duration = Duration::from_secs(20);
/// An agent that used less than this percentage of a processor in one slice is not busy.
const BUSY: f64 = 50.0;
const SLICE: Duration = Duration::from_millis(100);

/// The source that the agent follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// Single objects, which the agent gets line by line.
    Objects,
    /// A cluster file.
    File,
}

/// The pipe by which the agent gets objects.
pub(super) struct Says(PipeWriter);

impl Says {
    /// Sends the changed objects to the agent.
    pub(super) fn tell(&mut self, view: &View, changes: &[Moved]) -> anyhow::Result<()> {
        self.line(&view.lines(changes))
    }

    /// Sends these lines to the agent.
    pub(super) fn line(&mut self, lines: &str) -> anyhow::Result<()> {
        Ok(self.0.write_all(lines.as_bytes())?)
    }
}

/// The whole world, with the running agent.
pub(super) struct World {
    pub(super) client: Netns,
    pub(super) servers: Netns,
    pub(super) agent: Agent,
    /// `None` if the agent follows a file.
    pub(super) says: Option<Says>,
    pub(super) meter: Meter,
    pub(super) view: View,
    pub(super) maps: Maps,
    /// Time from the agent's start until it served, with the first tables written.
    pub(super) start: Duration,
    _router: Arc<Netns>,
}

impl World {
    /// Makes the namespaces, starts the agent, and waits until it serves. `options` are further options of the agent.
    pub(super) fn new(
        program: &Path,
        source: Source,
        sizes: Sizes,
        options: &[&str],
    ) -> anyhow::Result<Self> {
        let view = View::new(sizes, OWN);
        let client = Netns::new("client")?;
        let router = Arc::new(Netns::new("router")?);
        let servers = Netns::new("servers")?;
        client.veth("eth0", &router, "downlink")?;
        router.veth(UPLINK, &servers, "eth0")?;
        client.ip("addr add 192.168.1.2/24 dev eth0\nroute add default via 192.168.1.1")?;
        router.ip(&format!(
            "addr add 192.168.1.1/24 dev downlink
             addr add {OWN}/24 dev {UPLINK}
             route add 10.0.0.0/8 via 192.168.2.2
             route add 172.16.0.0/12 via 192.168.2.2"
        ))?;
        // `quickack`: each segment is acknowledged at once. A client that waits for a delayed acknowledgement (40 ms) sends nothing that could
        // be cut.
        servers.ip("addr add 192.168.2.2/24 dev eth0
             route add default via 192.168.2.1 quickack 1
             route add local 10.0.0.0/8 dev lo")?;
        router.sysctl("ipv4/ip_forward", "1")?;
        // A NAT rule, like those of kube-proxy, switches conntrack on. So the agent has flows to list.
        router.nft(
            "table ip kube-proxy {\n chain nat-postrouting {\n  type nat hook postrouting priority srcnat\n }\n}\n",
        )?;
        let own = view::name(0);
        let devices = [UPLINK];
        let text = match source {
            Source::Objects => view.lists(),
            Source::File => view.file(),
        };
        let started = Instant::now();
        let progress = Progress::start("the agent's start", 1);
        let (agent, says) = match source {
            Source::File => (Agent::of(program, &router, &own, &devices, &text, options)?, None),
            Source::Objects => {
                let mut agent = Agent::of_objects(program, &router, &own, &devices, options)?;
                agent.tell(&text)?;
                agent.ready()?;
                let says = Says(agent.take_objects_pipe()?);
                (agent, Some(says))
            }
        };
        drop((progress, text));
        let start = started.elapsed();
        let meter = Meter::of(agent.proc()?.pid())?;
        let maps = router.run(Maps::open)?;
        let world = Self { client, servers, agent, says, meter, view, maps, start, _router: router };
        let status = world.status()?;
        ensure!(
            status.cluster.backends == sizes.backends
                && status.dataplane.error.is_none()
                && status.dataplane.left_out == 0,
            "the agent has not loaded the cluster: {:?} {:?}",
            status.cluster,
            status.dataplane
        );
        Ok(world)
    }

    /// The agent's `status`. It costs the agent some milliseconds, so it is read outside of measured times.
    pub(super) fn status(&self) -> anyhow::Result<Status> {
        self.agent.ask(&Request::Status)
    }

    /// Waits until the agent's actors are done with its last view, as far as the agent's processor time shows that.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        std::thread::sleep(READERS);
        let mut before = self.meter.now()?;
        loop {
            std::thread::sleep(SLICE);
            let now = self.meter.now()?;
            if (now - before).share() < BUSY || started.elapsed() > READERS_AT_MOST {
                return Ok(());
            }
            before = now;
        }
    }
}

/// The agent's maps. Reading them costs the agent nothing.
pub(super) struct Maps {
    backends: HashMap<MapData, Addr, BackendEntry>,
    nodes: Array<MapData, NodeEntry>,
}

impl Maps {
    /// Opens the pinned maps. The caller must be in the namespace whose BPF filesystem has the pins.
    fn open() -> anyhow::Result<Self> {
        let open = |name: &str| {
            let path = Path::new(PINNED_MAPS).join(name);
            MapData::from_pin(&path).with_context(|| format!("cannot open {}", path.display()))
        };
        Ok(Self {
            backends: Map::HashMap(open("backends")?).try_into()?,
            nodes: Map::Array(open("nodes")?).try_into()?,
        })
    }

    /// A node's entry, by its index.
    pub(super) fn node(&self, index: u32) -> anyhow::Result<NodeEntry> {
        self.nodes.get(&index, 0).with_context(|| format!("cannot read entry {index} of the map `nodes`"))
    }

    /// Waits until a node's entry has a verdict. Returns the time at which the map had it: CLOCK_MONOTONIC, in ns.
    pub(super) fn wait_for_verdict(&self, index: u32) -> anyhow::Result<u64> {
        let started = Instant::now();
        while self.node(index)?.verdict == Verdict::Healthy as u32 {
            ensure!(
                started.elapsed() < PATIENCE,
                "entry {index} of `nodes` has no verdict after {PATIENCE:?}"
            );
            std::thread::sleep(LOOK);
        }
        Ok(monotonic_ns())
    }

    fn has(&self, address: Ipv4Addr) -> bool {
        self.backends.get(&Addr::from(IpAddr::from(address)), 0).is_ok()
    }

    /// Waits until the map has these changes. Returns the time at which it had them: CLOCK_MONOTONIC, in ns.
    pub(super) fn wait(&self, changes: &[Moved]) -> anyhow::Result<u64> {
        let started = Instant::now();
        for change in changes {
            while !self.has(change.to) || self.has(change.from) {
                ensure!(started.elapsed() < PATIENCE, "{change:?} is not in the map after {PATIENCE:?}");
                std::thread::sleep(LOOK);
            }
        }
        Ok(monotonic_ns())
    }
}
