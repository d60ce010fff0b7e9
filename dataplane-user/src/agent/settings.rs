//! How an agent runs, as its command line says.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use super::logging::Logging;
use crate::{
    cluster::NodeName,
    dataplane::{self, probe::Findings},
    drain::GuardKind,
    enforce::{Auto, EnforcerSettings, Share},
    plan::{
        Answer, Mode, Policy,
        audit::{Cidr, Kind},
    },
    proxy,
};
use nodefence_common::{Config, config_flags};

/// Which devices to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceChoice {
    /// Devices to attach to, by name.
    pub names: Vec<String>,
    /// Whether to attach also to the devices by which packets to nodes and backends leave.
    pub auto: bool,
}

/// How the tables are watched for what differs.
#[derive(Clone, Debug)]
pub struct AuditSettings {
    /// After how long a difference is a fault.
    pub fault_after: Duration,
    /// The kinds that are mended without a request.
    pub repair: BTreeSet<Kind>,
    /// Virtual addresses of others, as kube-proxy's `ipvs.excludeCIDRs`.
    pub excluded: Vec<Cidr>,
}

impl Default for AuditSettings {
    /// Two of kube-proxy's syncs (`syncPeriod`, 30 s), and nothing mended.
    fn default() -> Self {
        Self { fault_after: Duration::from_secs(60), repair: BTreeSet::new(), excluded: Vec::new() }
    }
}

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether a cluster without nodes is believed.
    pub allow_empty: bool,
    /// Where to attach.
    pub interfaces: InterfaceChoice,
    /// This node's name; `None` to find it by its address.
    pub node: Option<String>,
    /// Whether to cut.
    pub mode: Mode,
    /// Whether to cut for claims that no person made.
    pub auto: Auto,
    /// How many nodes automatic claims may cut, of all, of each zone and of each pool.
    pub auto_limit: Share,
    /// Nothing is cut, only counted, while the view is older. `None`: the view holds however old it is.
    pub max_view_age: Option<Duration>,
    /// Whether to cut where something else than kube-proxy forwards Services.
    pub force: bool,
    /// Whether settings for all agents come from the API server.
    pub shares: bool,
    /// How senders of cut packets are answered.
    pub answer: Answer,
    /// The operator's word on kube-proxy's mode.
    pub proxy: proxy::ProxyChoice,
    /// The conntrack zone of flows to backends; entries of others are left alone.
    pub conntrack_zone: u16,
    /// The guard, which restores IPVS where this agent is killed.
    pub guard: GuardKind,
    /// How the tables are watched for what differs.
    pub audit: AuditSettings,
    /// How often all that lies in the maps is compared.
    pub compare_every: Duration,
    /// How often the last good view is stored at most.
    pub view_store_every: Duration,
    /// How many packets a second are rescued at most.
    pub rescue_per_second: u32,
    /// How the dataplane is opened.
    pub options: dataplane::Options,
    /// Folder of the lock and the flags.
    pub run_dir: PathBuf,
    /// The socket.
    pub socket: PathBuf,
    /// Where the state is served over TCP. `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// The pod that the agent runs in. `None`: in no pod.
    pub pod_uid: Option<String>,
    /// For how long nobody must have had the node before an agent that stands by takes it again.
    pub vacant: Duration,
    /// Whether to take over from an agent that runs.
    pub take_over: bool,
    /// The log's filter, and how many lines were lost.
    pub log: Logging,
}

impl Settings {
    /// How flags are carried out.
    pub(super) fn policy<'a>(&self, own_node: &'a str) -> Policy<'a> {
        Policy { own_node, mode: self.mode, answer: self.answer }
    }

    /// The settings that `verdicts` must know.
    pub(super) fn enforcer_settings(&self, own: NodeName) -> EnforcerSettings {
        EnforcerSettings {
            own,
            mode: self.mode,
            auto: self.auto,
            answer: self.answer,
            limit: self.auto_limit,
            max_view_age: self.max_view_age,
            force: self.force,
            shares: self.shares,
        }
    }

    /// The configuration of the kernel programs, by the findings of the probes.
    pub(super) fn config(&self, findings: &Findings) -> Config {
        let mut config = self.options.config;
        config.flags &= !config_flags::INJECT;
        if findings.inject() {
            config.flags |= config_flags::INJECT;
        }
        config
    }
}
