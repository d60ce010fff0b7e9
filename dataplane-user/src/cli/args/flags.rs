use clap::Args;

use super::shared::Help;
use crate::cli::values::{Lasts, lasting, reason};

const FLAG: Help = Help {
    facts: "\
The verdict is one map write. The command returns once it is in the kernel. The node's idle clients are challenged meanwhile, so that \
they are reset too. `nodefence status` shows what came of it, and --wait waits for it.

The flag is kept in `flags.json` in the run folder, with all else that is claimed of nodes. An agent that is started anew renews all \
verdicts before it has read the cluster file.

The answer begins with \"on this node only\": no other node's agent knows of the flag. These lines follow, each with its number:
  established  TCP flows to the node that conntrack lists. Each is reset when its client next sends. They are counted with --wait.
  idle         those of them whose clients were challenged, and how many closed since. They are counted with --wait.
  new          new connections and datagrams to covered backends: balanced anew to other endpoints, or why not.
  exempt       ports that pass, since a Service has nothing else. The first 20 are named.
  uncovered    backends that no attached device covers: traffic to them is not cut. The first 20 are named.
  left out     endpoints that may be the node's own address: traffic to them is not cut.

The agent keeps who set the flag: the user whom the kernel names (by /etc/passwd, else `user N`). Behind it stands `sudo by NAME` where \
sudo started the command (SUDO_USER, which root may set as they like). `nodes`, `status` and the log show it.

A flag stays until its own end, `unflag` or a restart of the machine. It stays while the cluster file lacks its node, too: traffic to a \
node that nobody knows passes, `status` lists the flag, and it holds again once the node is back.

A flags file that is damaged, of a later version, or from before the machine booted gives no flags: traffic flows, `status` says so, and \
the file is kept as `flags.json.bad`. A flags file of an earlier version is read.",
    short: "\
Only this node's agent is told; every node has its own. With --strict the exit code is 5 where something of the node is not cut; the \
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
The next packet passes. A flag in the cluster file stays until it is removed there; the answer says that it does.

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
