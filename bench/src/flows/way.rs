//! What an operator can do about a hung node: flag it, or use the tools that exist.
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::{Cluster, SERVER_PORT, SERVICE, SERVICE_PORT, SPARE, Sizes, UPLINK};
use crate::{
    agent::{self, Agent},
    netns::Netns,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Ours,
    Conntrack,
    SsOnNode,
    SsAtClient,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Ours, Self::Conntrack, Self::SsOnNode, Self::SsAtClient];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "nodefence flag",
            Self::Conntrack => "conntrack -D",
            Self::SsOnNode => "ss -K on the node",
            Self::SsAtClient => "ss -K at the client",
        }
    }

    /// Starts what must run beforehand.
    pub(super) fn prepare(
        self,
        cluster: &Cluster,
        sizes: &Sizes,
        program: &Path,
    ) -> anyhow::Result<Option<Agent>> {
        if self != Self::Ours {
            return Ok(None);
        }
        let nodes = [
            agent::Node { name: "node-a", address: "192.168.2.1".parse()?, backends: Vec::new() },
            agent::Node {
                name: "node-b",
                address: "192.168.2.2".parse()?,
                backends: (0..sizes.backends).map(crate::tables::backend).collect(),
            },
            agent::Node { name: "node-c", address: "192.168.3.2".parse()?, backends: vec![SPARE.parse()?] },
        ];
        Agent::start(program, &cluster.router, &[UPLINK, "uplink-c"], "node-a", &nodes).map(Some)
    }

    /// What the peers need first, before the clock starts: the service no longer leads to the hung node (as once its endpoints are
    /// taken out), else deleted entries come back with the same backend.
    pub(super) fn before(self, cluster: &Cluster) -> anyhow::Result<()> {
        if self != Self::Conntrack {
            return Ok(());
        }
        nft(
            &cluster.router,
            &format!(
                "flush chain ip kube services\nadd rule ip kube services ip daddr {SERVICE} tcp dport {SERVICE_PORT} \
                 dnat to {SPARE}:{SERVER_PORT}\n"
            ),
        )
    }

    /// The operator's command, to its end; ours says what came of asking the idle clients.
    pub(super) fn act(self, cluster: &Cluster, agent: Option<&Agent>) -> anyhow::Result<Option<String>> {
        let _printed = match self {
            Self::Ours => {
                let report = agent.context("the agent was started")?.flag_and_wait("node-b")?;
                let asked = &report["asked"];
                return Ok(Some(match asked["seconds"].as_f64() {
                    Some(seconds) => format!(
                        "the agent listed {}, asked {}, saw {} closed within {seconds:.2} s",
                        asked["listed"], asked["asked"], asked["closed"]
                    ),
                    None => format!("the agent was still asking when it answered: {}", report["warnings"]),
                }));
            }
            Self::Conntrack => {
                cluster.router.run("conntrack", &["-D", "-p", "tcp", "--orig-dst", SERVICE])?
            }
            Self::SsOnNode => {
                let filter = format!("dport = :{SERVER_PORT}");
                cluster.router.run("ss", &["-K", "-n", "-t", "-H", &filter])?
            }
            Self::SsAtClient => cluster.client.run("ss", &["-K", "-n", "-t", "-H", "dst", SERVICE])?,
        };
        Ok(None)
    }
}

/// Feeds a script to nft inside `netns`.
pub(super) fn nft(netns: &Netns, script: &str) -> anyhow::Result<()> {
    netns.within(|| {
        let mut child = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start nft")?;
        let written = child.stdin.take().context("stdin was piped")?.write_all(script.as_bytes());
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("nft: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(written?)
    })
}
