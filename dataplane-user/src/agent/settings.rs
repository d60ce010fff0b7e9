//! How an agent runs, as its command line says.

use std::path::PathBuf;

use super::audit::AuditSettings;
use crate::{
    dataplane,
    plan::{Answer, Mode},
    proxy,
};

/// Which devices to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// These.
    pub names: Vec<String>,
    /// And those by which packets to nodes and backends leave.
    pub auto: bool,
}

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who exists.
    pub cluster_file: PathBuf,
    /// Whether a cluster without nodes is believed.
    pub allow_empty: bool,
    /// Where to attach.
    pub interfaces: Wanted,
    /// This node's name; `None` to find it by its address.
    pub node: Option<String>,
    /// Whether to cut.
    pub mode: Mode,
    /// What senders are told.
    pub answer: Answer,
    /// What the operator says of kube-proxy's mode.
    pub proxy: proxy::Wanted,
    /// How the tables are watched for what differs.
    pub audit: AuditSettings,
    /// How the dataplane is opened.
    pub options: dataplane::Options,
    /// Folder of the lock and the flags.
    pub run_dir: PathBuf,
    /// The socket.
    pub socket: PathBuf,
    /// Whether to take over from an agent that runs.
    pub take_over: bool,
}
