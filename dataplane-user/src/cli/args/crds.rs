use clap::Args;

use super::{api_server::ApiServerArgs, shared::Help};

const CRDS: Help = Help {
    facts: "\
Agents that run with --kubernetes read objects of these kinds. docs/kubernetes.md says what the objects mean, and what the agent may do at \
the API server.

--apply applies the definitions on the server's side, with `nodefence` as the manager of their fields. Fields that others have changed get \
their values back. The command waits until the API server serves the objects, a minute for each kind at most. It needs the right to get, \
list, watch, create and patch `customresourcedefinitions` (apiextensions.k8s.io).",
    short: "\
Without --apply it needs no API server, and prints what `kubectl apply` takes: YAML, or with -o json one List. With --apply it says of \
each definition whether it was created, changed or unchanged.

Examples:
  nodefence crds | kubectl apply --server-side -f -
  nodefence crds --apply --kubeconfig admin.conf",
};

/// Whether definitions are printed or applied.
#[derive(Clone, Debug, Args)]
#[command(after_help = CRDS.short, after_long_help = CRDS.long())]
pub struct CrdsArgs {
    /// Apply the definitions at the API server instead of printing them
    #[arg(long)]
    pub apply: bool,

    /// The API server, for --apply.
    #[command(flatten)]
    pub api_server: ApiServerArgs,
}
