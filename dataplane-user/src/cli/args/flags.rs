use clap::Args;

use super::shared::Help;
use crate::cli::values::{Lasts, lasting, reason};

const FLAG: Help = Help {
    facts: "\
The verdict is one map write. The agent writes it, lists the node's flows, and challenges idle clients, so that they are reset too. The \
command returns when the flows are counted, or after half a second. With --wait it returns when the challenged flows are closed. \
`nodefence status` shows the result of the challenge.

The agent stores its flags in `flags.json` in the run folder. A new agent renews all verdicts before it reads the cluster file.

The answer begins with \"on this node only\". These lines follow, each with its number:
  established  TCP flows to the node that conntrack lists. Each is reset when its client next sends.
  idle         established flows whose clients were challenged. With --wait: how many of these are closed.
  new          new connections and datagrams to covered backends: balanced anew to other endpoints, or why not.
  exempt       ports that pass, since a Service has nothing else. The first 20 are named.
  uncovered    backends that no attached device covers: traffic to them is not cut. The first 20 are named.
  left out     endpoints that may be the node's own address: traffic to them is not cut.

The agent stores who set the flag: the user that the kernel names (by /etc/passwd, else `user N`). If sudo started the command, `sudo by \
NAME` follows (SUDO_USER, which root can set to anything). `nodes`, `status` and the log show it.

A flag lasts until its end, `unflag` or a restart of the machine. A flag also lasts while the cluster file lacks its node: traffic to that \
node passes, `status` lists the flag, and the flag holds again once the node is back.

A flags file that is damaged, of a later version, or from before the machine booted is not used: traffic flows, `status` says so, and \
the agent renames the file to `flags.json.bad`. A flags file of an earlier version is read.",
    short: "\
The flag holds on this node only: every node has its own agent. With --strict the exit code is 5 if some traffic to the node is not cut; the \
flag is set all the same. Exit code 4: refused without --force.

Examples:
  nodefence flag node-b --for 10m --reason \"ext4 journal blocked\"
  nodefence flag node-b --for forever --wait --strict",
};

/// What is flagged.
#[derive(Clone, Debug, Args)]
#[command(after_help = FLAG.short, after_long_help = FLAG.long())]
pub struct FlagArgs {
    /// Name of the node
    pub node: String,

    /// When the flag ends by itself, as in 90s, 10m, 2h; with `forever`, when `unflag` is called
    ///
    /// The shortest time is 1 s, the longest 3,650 days.
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = lasting)]
    pub lasts: Lasts,

    /// Why, for whoever reads `nodes`
    ///
    /// It may have 1,000 characters.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = reason)]
    pub reason: String,

    /// Flag it even if it is this very node, or more than a third of all nodes would bear a flag
    ///
    /// Of the own node, traffic that enters here goes elsewhere. With --interface auto the devices of its pods are attached meanwhile.
    /// Processes of the host that connect to one of its pods themselves still reach it, as the kubelet's probes must; the answer says so.
    #[arg(long)]
    pub force: bool,

    /// Return only once the node's idle clients were challenged, with what came of it
    ///
    /// It waits for 45 s at most. The answer has the number of flows listed, challenged and closed.
    #[arg(long)]
    pub wait: bool,

    /// Exit code 5 where something of the node is exempt, or not covered, or only counted
    ///
    /// Standard error names it: ports that are exempt, backends that are not covered or do not fit in the maps, endpoints that are left
    /// out, or all of it where the agent only observes. The flag is set all the same.
    #[arg(long)]
    pub strict: bool,
}

const UNFLAG: Help = Help {
    facts: "\
The next packet passes. Where the cluster file flags the node too, the answer says so.

Where kube-proxy forwards by IPVS, drained real servers are restored. All but these get their weight at once: a TCP real server that \
still has connections gets it only once the source of nodes has confirmed its endpoint since the drain began. kube-proxy may be draining \
it, and would never lower a raised weight. A cluster file confirms it when it is written or touched. Behind a source that is cut off (an \
API server that is down) it keeps weight 0 until its connections end; `status` names it. A real server whose virtual server has no \
weight on other nodes that are not flagged gets its weight at once, too.

If the next view lacks the endpoint of a real server that was restored, the agent deletes it, or gives it weight 0 again while it serves \
to its end.",
    short: "\
Takes back what `nodefence flag` set on this machine. A flag in the cluster file stays until it is removed there.

Example:
  nodefence unflag node-b",
};

/// What is no longer flagged.
#[derive(Clone, Debug, Args)]
#[command(after_help = UNFLAG.short, after_long_help = UNFLAG.long())]
pub struct UnflagArgs {
    /// Name of the node
    pub node: String,
}
