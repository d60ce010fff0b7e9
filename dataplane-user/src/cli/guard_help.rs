//! What `nodefence guard --help` adds: how it is run apart.

pub(super) const GUARD: &str = "\
Behind IPVS the agent sets the weights of flagged nodes to 0, and no weight lapses by itself. The guard restores them within \
5 s once the agent is gone or stands still. By default the agent starts it as a child, which ends with it where a container \
or control group is killed as a whole. Start it apart there: in a container or unit of its own, with the agent's run folder \
and BPF filesystem, in its network namespace. Agents come and go meanwhile; they are started with --guard external, and \
`nodefence status` says whether they see it.

SIGTERM ends it once nothing is left to be restored: while an agent lives that took something out, it waits for that one. It needs \
CAP_NET_ADMIN and CAP_BPF, as the user of the agent.

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
    - { name: bpf, hostPath: { path: /sys/fs/bpf } }";
