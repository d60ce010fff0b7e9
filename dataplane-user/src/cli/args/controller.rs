use clap::{Args, builder::NonEmptyStringValueParser};

use super::{api_server::ApiServerArgs, shared::Help};
use crate::{
    cli::values::{LogFormat, identity},
    controller::ControllerSettings,
};

const CONTROLLER: Help = Help {
    facts: "\
The controller makes a NodeMember of each Linux Node, keeps it up to date, and deletes it with the Node. It creates NodefenceSettings/default \
where that is missing, with mode observe, and never changes it. It writes the status of NodeFlags, and deletes those that ended more than an \
hour ago.

Several controllers may run: one holds the Lease `nodefence-controller` and works, and the others wait. Without a controller, agents go on \
with the NodeMembers, flags and settings that there are.

docs/kubernetes.md says what the controller may do at the API server.",
    short: "\
It runs until SIGTERM, SIGINT or SIGHUP, and then gives the Lease up.

Examples:
  nodefence controller
  nodefence controller --kubeconfig admin.conf --pool-label example.com/pool",
};

/// The labels that clouds and Karpenter give to the Nodes of a pool.
const POOL_LABELS: [&str; 4] = [
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
];

/// How the controller runs.
#[derive(Clone, Debug, Args)]
#[command(after_help = CONTROLLER.short, after_long_help = CONTROLLER.long())]
pub struct ControllerArgs {
    /// The API server.
    #[command(flatten)]
    pub api_server: ApiServerArgs,

    /// The namespace of the Lease [default: that of the pod, or `nodefence` with --kubeconfig]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub lease_namespace: Option<String>,

    /// The name by which this controller holds the Lease, at most 110 printable ASCII characters [default: the host's name and a random one]
    ///
    /// No two controllers may have the same. A pod's name is a good one.
    #[arg(long, value_name = "NAME", value_parser = identity)]
    pub identity: Option<String>,

    /// A label of Nodes whose value is the Node's pool (repeatable, or separated by commas); the first that a Node has counts
    #[arg(long = "pool-label", value_name = "LABEL", value_delimiter = ',', default_values = POOL_LABELS,
          value_parser = NonEmptyStringValueParser::new())]
    pub pool_labels: Vec<String>,

    /// How to log
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

impl ControllerArgs {
    /// The settings that these options give.
    pub(in crate::cli) fn settings(&self) -> ControllerSettings {
        ControllerSettings {
            server: self.api_server.server(),
            lease_namespace: self.lease_namespace.clone(),
            identity: self.identity.clone(),
            pool_labels: self.pool_labels.clone(),
        }
    }
}
