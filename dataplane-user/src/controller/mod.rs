//! The controller, a process apart from the agents: it makes NodeMembers of Nodes, creates the settings, and says what becomes of NodeFlags.
//! No cut waits for it.

mod client;
mod clock;
mod flags;
mod known;
mod last_good;
mod lease;
mod members;
mod orphans;
mod queue;
mod watch;
mod wire;
mod work;
mod writes;

use anyhow::Context as _;
use kube::{Api, Client, runtime::watcher};
use tokio::sync::mpsc;

use self::{
    clock::Answers,
    lease::Lease,
    watch::watch,
    work::{News, Work},
    writes::Writes,
};
use crate::{
    agent::Signals,
    crds::SETTINGS_NAME,
    source::{
        ApiServer,
        kubernetes::{Heard, Pace, ServerClock, config, watching_client},
    },
};

/// The namespace of the Lease, outside of a pod.
const NAMESPACE: &str = "nodefence";
/// How many changes wait at most between a watch and the end that takes them.
const WAITING: usize = 64;

/// How the controller runs.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Which API server, and how it is reached.
    pub server: ApiServer,
    /// The namespace of the Lease. `None`: the pod's own, or `nodefence` outside of a pod.
    pub lease_namespace: Option<String>,
    /// The name by which this controller holds the Lease. `None`: one that no other controller has.
    pub identity: Option<String>,
    /// The labels of Nodes that may name a pool. The first that a Node has counts.
    pub pool_labels: Vec<String>,
}

/// Runs the controller until a signal ends it.
///
/// # Errors
/// Where the configuration cannot be read. The API server need not answer.
pub async fn run(settings: ControllerSettings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let config = config(&settings.server).await?;
    let clock = Answers::default();
    // Answers to other requests must not show that the Lease was renewed, so it has a client of its own.
    let of_lease = client::client(&config, &clock)?;
    let writing = client::client(&config, &Answers::default())?;
    let watching = watching_client(&config, &Heard::default(), &ServerClock::default(), Pace::default())?;
    let identity = match settings.identity {
        Some(identity) => identity,
        None => identity()?,
    };
    let namespace = settings.lease_namespace.unwrap_or_else(|| match settings.server.kubeconfig {
        Some(_) => NAMESPACE.to_owned(),
        None => config.default_namespace.clone(),
    });
    tracing::info!(
        event = "controller-started",
        identity,
        namespace,
        version = env!("CARGO_PKG_VERSION"),
        "the controller runs"
    );
    let lease = Lease::new(of_lease, clock.clone(), namespace, identity);
    let works = async {
        loop {
            lease.becomes(true).await;
            // What is under way ends with the Lease.
            tokio::select! {
                () = work(&lease, &clock, &settings.pool_labels, &writing, &watching) => {}
                () = lease.becomes(false) => {}
            }
        }
    };
    let why = tokio::select! {
        why = signals.come() => why,
        () = lease.hold() => "the Lease",
        () = works => "its work",
    };
    lease.release().await;
    tracing::info!(event = "ended", why, "the controller ends");
    Ok(())
}

/// Watches and writes for as long as nobody drops it.
async fn work(lease: &Lease, clock: &Answers, pool_labels: &[String], client: &Client, watching: &Client) {
    let (to, news) = mpsc::channel(WAITING);
    let all = watcher::Config::default;
    let settings = all().fields(&format!("metadata.name={SETTINGS_NAME}"));
    let watched = || watching.clone();
    tokio::join!(
        Work::new(lease, clock, pool_labels, Writes::new(client)).go_on(news),
        watch("Nodes", Api::all(watched()), all(), News::Nodes, to.clone()),
        watch("members", Api::all(watched()), all(), News::Members, to.clone()),
        watch("flags", Api::all(watched()), all(), News::Flags, to.clone()),
        watch("settings", Api::all(watched()), settings, News::Settings, to),
    );
}

/// A name that no other controller has, not even one on the same machine.
fn identity() -> anyhow::Result<String> {
    let read = |name: &str| {
        let path = format!("/proc/sys/kernel/{name}");
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    };
    Ok(format!("{}_{}", read("hostname")?.trim(), read("random/uuid")?.trim()))
}
