use std::path::PathBuf;

use clap::Args;

use super::shared::{Help, PIN_DIR};
use crate::report::Code;

const DETACH: Help = Help {
    facts: "\
What an agent drained from IPVS is restored first. Ledgers that could not be read and were set aside (`ledger.bad1` to 9) are named and \
left. Where nothing of ours is pinned in the folder, a warning says that what another --pin-dir had attached may still be.",
    short: "\
Programs, links, filters, maps, pins, and in the run folder the flags and the word of `nodefence off` are removed; a clsact qdisc only if we made it and it is empty. \
Refused (exit code 6) while an agent runs on the run folder or on the pin folder: end it first.

Example:
  nodefence detach",
};

/// Where `detach` looks.
#[derive(Clone, Debug, Args)]
#[command(after_help = DETACH.short, after_long_help = DETACH.long())]
pub struct DetachArgs {
    /// Folder of the pins; must end in nodefence/v3, inside a BPF filesystem
    #[arg(long, value_name = "DIR", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,
}

const GUARD: Help = Help {
    facts: "\
By default each agent starts a guard as a child, which ends with it where a container or control group is killed as a whole. There the \
guard is to be started apart: in a container or unit of its own. It outlives the agent then, and stays while agents come and go. They \
are started with --guard external, and `nodefence status` says whether they see it.

The guard needs the agent's run folder, the agent's BPF filesystem and the agent's network namespace. A PID namespace of its own is no \
matter: it knows the agent by locks in the run folder (on one machine: not over NFS). It needs CAP_NET_ADMIN and CAP_BPF, and runs as the \
agent's user. With CAP_SYS_NICE it takes precedence over others, as the agent's child does. In another BPF filesystem an earlier agent's \
lease may lie, by which the guard would restore what the agent drains. The run folder must be there and belong to that user: an empty \
volume will do, and a path of the host keeps it when the pod goes.

SIGTERM, SIGINT and SIGHUP end the guard once nothing is left to be restored (exit code 0; 1 where its run folder is gone): at once where \
nothing is drained or another guard waits (`--wait`), else when the agent has restored it or is gone. Nothing that is drained is restored while the agent lives. In a pod, \
`terminationGracePeriodSeconds` must leave the agent the 10 s that it may take, and the guard 5 s more: Kubernetes' 30 do.

A second guard on the same run folder ends with exit code 1. With --wait it waits until the first has ended, as the guard of a new pod must \
that starts before the old pod ends. A ledger that the guard cannot read (of another version, or of another \
network namespace) is left as it is, and the log says so.",
    short: "\
Behind IPVS the agent sets the weights of flagged nodes to 0, and no weight lapses by itself. The guard restores them within 5 s once the \
agent is gone or stands still, for whatever reason and however long.

Example, beside the agent in a pod with hostNetwork: true; of the agent only what is new:
  containers:
    - name: agent
      args: [agent, --guard, external, ...]
      volumeMounts: &shared
        - { name: run, mountPath: /run/nodefence }
        - { name: bpf, mountPath: /sys/fs/bpf }
    - name: guard
      args: [guard, --run-dir, /run/nodefence]
      securityContext: { capabilities: { add: [NET_ADMIN, BPF] } }
      volumeMounts: *shared
  volumes:
    - { name: run, hostPath: { path: /run/nodefence, type: DirectoryOrCreate } }
    - { name: bpf, hostPath: { path: /sys/fs/bpf } }",
};

/// Whom the guard watches.
#[derive(Clone, Debug, Args)]
#[command(after_help = GUARD.short, after_long_help = GUARD.long())]
pub struct GuardArgs {
    /// Process id of the agent that started it: it ends with that one
    #[arg(long, hide = true)]
    pub parent: Option<u32>,

    /// Wait while another guard watches over the run folder, instead of ending with exit code 1
    #[arg(long, conflicts_with = "parent")]
    pub wait: bool,

    /// Folder of the pins, the agent's own
    ///
    /// While an agent lives and no lease can be read there, nothing is restored, and the log says so: the BPF filesystem is another one.
    #[arg(long, value_name = "DIR", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,
}

const DOCTOR: Help = Help {
    facts: "\
A line says ok, warn or fail. It looks at the network namespace that it runs in. It asks the agent that answers where its pins are and \
how kube-proxy forwards. It takes a second at least: conntrack's counters are read twice, and what grew between is told (packets that it \
drops).

These are warnings: what an ordinary user may not look at, conflicts of single objects, endpoints that are left out, \
a device that has virtual functions (SR-IOV), what forwards Services in kube-proxy's place unless the agent has --force, and a BPF \
filesystem that is not mounted: the agent mounts one at `/sys/fs/bpf`, and only there. Sysctls that break the promise are told with what \
sets them. A conntrack table that is nine tenths full is told. What is wrong with the agent's source is told too.",
    short: "\
Works without an agent; best as root, since what an ordinary user may not look at is shown as unknown. Each remedy behind `->` can be \
pasted into a shell. Exit code 5 if a line says fail. With a CODE it only explains that warning of `status`, also where no agent answers.

Examples:
  nodefence doctor --interface eth0
  nodefence doctor NF07",
};

/// What `doctor` looks at.
#[derive(Clone, Debug, Args)]
#[command(after_help = DOCTOR.short, after_long_help = DOCTOR.long())]
pub struct DoctorArgs {
    /// The number of a warning, as `status` prints it: what it means, what users see of it, and what to do
    pub code: Option<Code>,

    /// Check these devices only (repeatable, or separated by commas) [default: all but the loopback device]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub interface: Vec<String>,

    /// Folder of the pins [default: that of the agent that answers, else /sys/fs/bpf/nodefence/v3]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
}

const COMPLETIONS: &str = "Example:\n  nodefence completions bash > /etc/bash_completion.d/nodefence";

/// Whose completions.
#[derive(Clone, Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

const MAN: &str = "Examples:\n  nodefence man | man -l -\n  nodefence man --dir /usr/local/share/man/man1";

/// Where manual pages go.
#[derive(Clone, Debug, Args)]
#[command(after_help = MAN)]
pub struct ManArgs {
    /// Folder to write one page per command into, instead of printing
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
