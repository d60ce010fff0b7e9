use clap::Args;

use super::shared::Help;
use crate::{
    cluster::Protocol,
    report::{Place, ServiceFilter},
};

const NODES: Help = Help {
    facts: "\
A row has the node's index in the maps, the number of its backends, what the datapath does with packets to it, and how many of its ports \
are exempt. Of two flags, that of `nodefence flag` takes precedence over that of the cluster file.

-o wide has all addresses, pool and generation too.",
    short: "\
ACTION is what happens to packets for the node: pass, refuse, drop or observe (counted only). FLAG is the flag that holds; behind it \
stands what else is claimed of the node, and what is done about that.

Examples:
  nodefence nodes node-b node-c -o wide
  nodefence nodes --flagged --watch -o json",
};

/// Which nodes are listed, and how.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = NODES.short, after_long_help = NODES.long())]
pub struct NodesArgs {
    /// Only these nodes
    ///
    /// A name that no node has is told on standard error (exit code 7). The others are listed.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Only nodes that bear a flag, or a claim that no person made
    #[arg(long)]
    pub flagged: bool,

    /// Print a row again whenever it changes, until Ctrl-C; with -o json an object a line
    ///
    /// It looks each second. That time goes by, or that a claim is renewed, is no change. With --flagged a row is printed once more when
    /// its node bears nothing any more. A node that is gone has the action `gone`. With -o yaml each row is a document. An agent that goes
    /// away is waited for.
    #[arg(short, long)]
    pub watch: bool,

    /// Without the line that names the columns
    #[arg(long)]
    pub no_headers: bool,
}

pub(super) const BACKENDS: Help = Help {
    facts: "Traffic that leaves by IPsec is not cut, whatever device that is.",
    short: "\
INTERFACE is the attached device by which packets to the backend leave; `none` with a reason means that traffic to it is not cut on \
this machine.

Example:
  nodefence backends -o json",
};

const FLOWS: Help = Help {
    facts: "Flows are listed by node, backend and client. Exit code 7: there is no such node, or no such Service.",
    short: "\
Examples:
  nodefence flows --node node-b --limit 20
  nodefence flows --service default/web --protocol udp",
};

/// Which flows are listed.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = FLOWS.short, after_long_help = FLOWS.long())]
pub struct FlowsArgs {
    /// Only flows to this node's backends
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,

    /// Only flows to this backend, as in 10.244.2.7 or 10.244.2.7:8080
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub backend: Option<Place>,

    /// Only flows through this Service: its name, as in default/web, or what its clients connect to
    ///
    /// By its name these are listed: flows that are addressed to its virtual addresses, flows to its node ports that go on to its
    /// endpoints, and flows to its endpoints where it is headless. What clients connect to is an address, with or without port.
    #[arg(long, value_name = "SERVICE")]
    pub service: Option<ServiceFilter>,

    /// Only flows of this protocol: tcp, udp or sctp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,

    /// So many flows at most, the first by node, backend and client
    ///
    /// How many more there are is told on standard error.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

pub(super) const COUNTERS: Help = Help {
    facts: "\
Two counters, `unanswerable` and `not_injected`, are the agent's own since it started: packets that were handed to it and for which it \
sent no answer. `rescued` and all that begin with `rescue_` are the agent's own too: what became of the packets that the kernel counts \
as `rescue`.",
    short: "\
Packets are counted since the maps were made; a restart of the agent keeps them.

Example:
  nodefence counters -o json",
};
