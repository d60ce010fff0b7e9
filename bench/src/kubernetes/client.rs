//! A client of the API server, alone in a namespace: a relay to the API server is its only way out.
use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nodefence::report::{Request, Status};
use nodefence_tests::{
    Agent, Netns, Proc,
    kube::{KubeProxy, Mode, Wire, assets::asset, proxy::SYNC_PERIOD, wire},
};

use super::{
    objects,
    objects::OWN,
    sizes::Sizes,
    smaps,
    world::{World, processor},
};
use crate::progress::Progress;

const UPLINK: &str = "uplink";
/// How long a client may take to get the lists, or a change.
const PATIENCE: Duration = Duration::from_secs(600);
/// After this long without a byte from the API server, a client has all that the server had for it.
const QUIET: Duration = Duration::from_secs(5);
/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// The API server without a client.
    Nobody,
    KubeProxy,
    /// An informer of client-go that asks for JSON.
    Informer,
    Agent,
}

impl Who {
    /// The name in the table of figures.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::KubeProxy => "kube-proxy",
            Self::Informer => "informer",
            Self::Agent => "ours",
        }
    }
}

/// What a client has cost between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Bytes that the API server sent, and bytes that the client sent.
    pub(super) from_server: u64,
    pub(super) from_client: u64,
    /// Processor time of the API server, and of the client.
    pub(super) server: Duration,
    pub(super) client: Duration,
    /// Time between the first moment and the last byte of the API server.
    pub(super) elapsed: Duration,
}

/// A running client. It ends when this is dropped.
pub(super) struct Client {
    pub(super) wire: Wire,
    program: Program,
    ns: Arc<Netns>,
    /// Only the agent's namespace has a device beside loopback.
    _neighbour: Option<Netns>,
}

enum Program {
    Agent(Box<Agent>),
    KubeProxy(KubeProxy),
    Informer(Proc),
}

/// What was measured of a client's start.
pub(super) struct Started {
    pub(super) client: Client,
    /// How long it took until it had all objects, as far as the client tells that.
    pub(super) took: Duration,
    pub(super) spent: Spent,
}

impl Client {
    /// Starts a client, and waits until it has all objects. `agent` is the agent's program.
    pub(super) fn start(world: &World, who: Who, agent: &Path) -> anyhow::Result<Started> {
        let _progress = Progress::start(&format!("the first lists: {}", who.name()), 1);
        let ns = Arc::new(Netns::new("client")?);
        let neighbour = if who == Who::Agent { Some(uplink(&ns)?) } else { None };
        let wire = Wire::between(&ns, &world.control.ns)?;
        let server = format!("https://127.0.0.1:{}", wire::PORT);
        let kubeconfig = world.control.kubeconfig_at("kubeconfig-client", &server)?;
        let before = world.processor()?;
        let began = Instant::now();
        let begin = || -> anyhow::Result<(Program, Duration)> {
            let program = Program::start(who, &ns, agent, &kubeconfig)?;
            Ok((program, began.elapsed()))
        };
        let (begun, last) = scope(|scope| {
            let starting = scope.spawn(begin);
            let last = until_quiet(world, &wire, || !starting.is_finished());
            let begun = starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (begun, last)
        });
        let ((program, took), last) = (begun?, last?);
        let this = Self { wire, program, ns, _neighbour: neighbour };
        let spent = Spent {
            from_server: this.wire.from_server(),
            from_client: this.wire.from_client(),
            server: last.server.saturating_sub(before),
            client: this.processor()?,
            elapsed: last.at - began,
        };
        if who == Who::Agent {
            this.wait(world.sizes, world.sizes.endpoints())?;
        }
        Ok(Started { client: this, took, spent })
    }

    /// The agent, if this is the agent.
    pub(super) fn agent(&self) -> anyhow::Result<&Agent> {
        match &self.program {
            Program::Agent(agent) => Ok(agent),
            Program::KubeProxy(_) | Program::Informer(_) => bail!("this is no agent"),
        }
    }

    /// A value of `/proc/PID/status` in MiB, without the kernel's maps that the process has mapped.
    pub(super) fn memory(&self, what: &str) -> anyhow::Result<f64> {
        let process = self.program.process()?;
        let file = format!("/proc/{}/smaps", process.pid());
        let smaps = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        Ok(process.memory(what)? - smaps::maps(&smaps) as f64 / 1024.0)
    }

    /// The processor time that the client has used.
    fn processor(&self) -> anyhow::Result<Duration> {
        processor(self.program.process()?.pid())
    }

    /// Measures what the client costs while `work` is done, and until the API server has sent all that it has to send.
    pub(super) fn during(
        &self,
        world: &mut World,
        work: impl FnOnce(&mut World) -> anyhow::Result<()>,
    ) -> anyhow::Result<Spent> {
        let Spent { from_server, from_client, .. } = self.sent();
        let (server, client) = (world.processor()?, self.processor()?);
        let began = Instant::now();
        work(world)?;
        let last = until_quiet(world, &self.wire, || false)?;
        let sent = self.sent();
        Ok(Spent {
            from_server: sent.from_server - from_server,
            from_client: sent.from_client - from_client,
            server: last.server.saturating_sub(server),
            client: self.processor()?.saturating_sub(client),
            elapsed: last.at.saturating_duration_since(began),
        })
    }

    /// The bytes so far.
    fn sent(&self) -> Spent {
        let (from_server, from_client) = (self.wire.from_server(), self.wire.from_client());
        Spent { from_server, from_client, ..Spent::default() }
    }

    /// Measures what the client costs in this time, in which nothing changes.
    pub(super) fn at_rest(&self, world: &World, time: Duration) -> anyhow::Result<Spent> {
        let before = (self.sent(), world.processor()?, self.processor()?);
        sleep(time);
        let after = self.sent();
        Ok(Spent {
            from_server: after.from_server - before.0.from_server,
            from_client: after.from_client - before.0.from_client,
            server: world.processor()? - before.1,
            client: self.processor()? - before.2,
            elapsed: time,
        })
    }

    /// Waits until the agent has this many members and endpoints, and its watches answer.
    pub(super) fn wait(&self, sizes: Sizes, endpoints: usize) -> anyhow::Result<()> {
        let agent = self.agent()?;
        let began = Instant::now();
        loop {
            let status: Status = agent.ask(&Request::Status)?;
            let (cluster, dataplane) = (&status.cluster, &status.dataplane);
            let is_whole = cluster.backends == endpoints && cluster.nodes == sizes.members;
            if is_whole && cluster.away.is_none() && dataplane.error.is_none() && dataplane.left_out == 0 {
                return Ok(());
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "after {PATIENCE:?} the agent lacks something: {cluster:?} {dataplane:?}\n{}",
                agent.log()
            );
            sleep(LOOK);
        }
    }

    /// Ends the client.
    pub(super) fn end(self) -> anyhow::Result<()> {
        match self.program {
            Program::Agent(agent) => agent.end().map(drop),
            Program::Informer(informer) => {
                drop(informer);
                Ok(())
            }
            Program::KubeProxy(proxy) => {
                drop(proxy);
                // The relay keeps the namespace, and the namespace the tables, which are large.
                self.ns.nft("flush ruleset\n")
            }
        }
    }
}

impl Program {
    /// Starts a program, and waits until it has all objects. kube-proxy is not waited for: it tells only when it has written its tables, which may take
    /// long.
    fn start(who: Who, ns: &Arc<Netns>, agent: &Path, kubeconfig: &Path) -> anyhow::Result<Self> {
        let node = objects::node(0);
        Ok(match who {
            Who::Nobody => bail!("nobody cannot be started"),
            Who::KubeProxy => {
                Self::KubeProxy(KubeProxy::begin(kubeconfig, ns, &node, Mode::Nftables, SYNC_PERIOD)?)
            }
            Who::Informer => {
                let mut command = Command::new(asset("informer")?);
                command.arg("--kubeconfig").arg(kubeconfig).stderr(Stdio::inherit());
                Self::Informer(Proc::spawn_ready(ns, command)?)
            }
            Who::Agent => {
                let options = ["--mode", "observe", "--proxy", "nftables"];
                let mut agent =
                    Agent::begin_kubernetes_of(agent, ns, &node, &[UPLINK], kubeconfig, &options)?;
                agent.ready()?;
                Self::Agent(Box::new(agent))
            }
        })
    }

    fn process(&self) -> anyhow::Result<&Proc> {
        match self {
            Self::Agent(agent) => agent.proc(),
            Self::KubeProxy(proxy) => Ok(proxy.process()),
            Self::Informer(informer) => Ok(informer),
        }
    }
}

/// Gives the agent's namespace an uplink. Returns the namespace at its other end.
fn uplink(ns: &Netns) -> anyhow::Result<Netns> {
    let neighbour = Netns::new("neighbour")?;
    ns.veth(UPLINK, &neighbour, "eth0")?;
    ns.ip(&format!(
        "addr add {OWN}/24 dev {UPLINK}
         route add default via 192.168.2.2"
    ))?;
    neighbour.ip("addr add 192.168.2.2/24 dev eth0")?;
    Ok(neighbour)
}

/// The moment of the last byte of the API server, and its processor time then.
struct Last {
    at: Instant,
    server: Duration,
}

impl Last {
    fn now(world: &World) -> anyhow::Result<Self> {
        Ok(Self { at: Instant::now(), server: world.processor()? })
    }
}

/// Waits until the API server has sent nothing for a while, and the client is not busy any more. Returns when it sent the last byte.
fn until_quiet(world: &World, wire: &Wire, is_busy: impl Fn() -> bool) -> anyhow::Result<Last> {
    let began = Instant::now();
    let mut bytes = wire.from_server();
    let mut last = Last::now(world)?;
    loop {
        sleep(LOOK);
        let now = wire.from_server();
        if now != bytes {
            bytes = now;
            last = Last::now(world)?;
        } else if bytes > 0 && last.at.elapsed() >= QUIET && !is_busy() {
            return Ok(last);
        }
        ensure!(began.elapsed() < PATIENCE, "after {PATIENCE:?} the API server still sends: {bytes} bytes");
    }
}
