use clap::{Args, builder::NonEmptyStringValueParser};

use super::shared::Help;
use crate::{cli::values::kind, plan::audit::Kind};

const STATUS: Help = Help {
    facts: "docs/output.md says what the lines mean. Times are in UTC, to the second.",
    short: "\
The first word says whether traffic to flagged nodes is cut here: OK (it is), DEGRADED (but for what the warnings name), OBSERVE \
(nothing is, only counted), or BLIND (nothing is, though it should be). Below it each warning has a number, which \
`nodefence doctor NUMBER` explains. -o wide shows all that the agent knows.

Examples:
  nodefence status --check
  nodefence doctor NF07",
};

/// What else `status` does.
#[derive(Clone, Debug, Args)]
#[command(after_help = STATUS.short, after_long_help = STATUS.long())]
pub struct StatusArgs {
    /// Exit code 5 where a warning stands
    ///
    /// It is for scripts and alerts. What was counted since the agent began is no finding. It is no liveness probe: most warnings
    /// outlive a restart, and a cluster file that is wrong keeps the next agent from starting.
    #[arg(long)]
    pub check: bool,

    /// Print nothing, and end with exit code 0 if the agent is ready: for the readiness probe of its pod
    ///
    /// The exit code is 1 if it is not ready, with the reason, or if the agent that answers is not that of the pod --pod-uid. It is 3 if no agent
    /// answers. docs/metrics.md says when an agent is ready.
    #[arg(long, conflicts_with = "check")]
    pub ready: bool,

    /// With --ready: the UID of the pod whose agent must answer
    #[arg(long, value_name = "UID", value_parser = NonEmptyStringValueParser::new())]
    pub pod_uid: Option<String>,
}

pub(super) const AUDIT: Help = Help {
    facts: "\
Endpoints are those that the cluster file's `services` give for this node. All is read anew for each `audit`. Its memory is the agent's. \
The agent reads by itself six times in --fault-after (every 10 s by default). It reads less often where reading takes long: IPVS, \
conntrack and affinity take at most 1 % of a processor each. The memory begins anew when the agent does. What has not been watched for \
--fault-after is no fault yet, and the command says so.

Kinds, with what `repair` does about each:
  stale-destination    a real server that outlived its endpoint.
                       Deleted; weight 0 while the Service still names it and it has TCP connections.
  missing-destination  an endpoint that is no real server.
                       Added with weight 1.
  missing-service      a virtual address without virtual server.
                       Reported: the address on `kube-ipvs0` and the ipsets belong to kube-proxy. Restart kube-proxy.
  extra-service        a virtual server whose address no Service has; marks and --exclude-cidr are left out.
                       Reported: restart kube-proxy.
  stray-weight         weight 0 that neither a flag (the ledger) nor a leaving endpoint explains.
                       Deleted where it has no connections: kube-proxy adds it again. Else reported: kube-proxy may be draining it and
                       would never lower a raised weight. Restart kube-proxy.
  flagged-destination  a real server on a flagged node with weight or connections, in a service that has others.
                       Reported: the agent is at it, see `status`.
  stale-udp            a UDP flow of a Service that goes to none of its serving endpoints, as kube-proxy counts them.
                       Its conntrack entry is deleted.
  flagged-flow         a translated flow to a flagged node, but for what is exempt.
                       Its conntrack entry is deleted where kube-proxy forwards by iptables or nftables; TCP only with
                       `nf_conntrack_tcp_loose` 1.
  kube-proxy-stale     kube-proxy was asked for a sync, and none has succeeded for two minutes (its metrics at 127.0.0.1:10249).
                       Reported: its log says what its sync waits for or fails at.
  flagged-affinity     a client that Service affinity (`sessionAffinity: ClientIP`) keeps at a backend of a flagged node, but for what is
                       exempt; behind IPVS a real server there that has persistence templates, in a service that has others.
                       The client is removed from kube-proxy's set or list where it forwards by nftables or iptables. Behind IPVS it is
                       reported: the agent is at it, see `status`.

States:
  new       kube-proxy may still repair it.
  fault     kube-proxy has not repaired it in time (--fault-after). For a TCP destination of weight 0 without connections that is twice as long, and two
            minutes at least: kube-proxy looks at it once a minute.
  draining  weight 0, TCP connections, and its endpoint leaves: kube-proxy ends it gently. It is never a fault.

Node ports are expected at every address of the node at which there is one; at the node's own where there is none. The first six kinds \
are looked at where kube-proxy's mode is IPVS (--proxy). These and `stale-udp` need `services` in the cluster file, and so does \
`flagged-affinity` where the mode is iptables. What is not looked at is named with the reason. Of each kind 4,096 differences are \
remembered and 1,000 listed, the oldest faults first. Flows from all clients to one backend are one row, and so are clients that \
affinity keeps at one backend.",
    short: "\
A difference is a fault once it has been there for two of kube-proxy's syncs (--fault-after of the agent), at each reading. Exit code 5 \
where there are faults: the report is on standard output.

Example:
  nodefence audit -o json",
};

const REPAIR: Help = Help {
    facts: "\
It looks anew first, and looks again afterwards. Virtual servers are changed only as they are at that moment. The drain and its guard \
wait meanwhile. Where these have the table for longer than half a second, nothing is changed, and the answer says \"busy\". What is in \
their ledger is not touched.

Each fault has one result:
  fixed      it is gone.
  failed     it was tried, and the fault is still there.
  would fix  it would be tried (--dry-run).
  skipped    the reason stands behind it: a kind that is only reported, --mode observe, or, for flows and affinity, --proxy none.",
    short: "\
Only what `audit` calls a fault is repaired. Virtual servers and destinations of flagged nodes are reported, with what to do, and not \
changed. Exit code 1 if a fault could not be repaired.

Examples:
  nodefence repair --kind stale-udp --dry-run
  nodefence repair --kind stale-destination,missing-destination",
};

/// What is repaired.
#[derive(Clone, Debug, Args)]
#[command(after_help = REPAIR.short, after_long_help = REPAIR.long())]
pub struct RepairArgs {
    /// What to repair (repeatable, or separated by commas)
    #[arg(long = "kind", value_name = "KIND", required = true, value_delimiter = ',', value_parser = kind())]
    pub kinds: Vec<Kind>,

    /// Show what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
