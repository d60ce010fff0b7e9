//! The ways in which an operator can deal with a hung node: nodefence, or the tools that exist.
use std::path::Path;

use anyhow::Context as _;

use super::world::{Cluster, SERVER_PORT, SERVICE, SERVICE_PORT, SPARE, Sizes, UPLINK};
use nodefence_tests::Agent;

use crate::cluster::{self, Node};

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

    /// Starts the agent if this way needs it.
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
            Node { name: "node-a", address: "192.168.2.1".parse()?, backends: Vec::new() },
            Node {
                name: "node-b",
                address: "192.168.2.2".parse()?,
                backends: (0..sizes.backends).map(crate::tables::backend).collect(),
            },
            Node { name: "node-c", address: "192.168.3.2".parse()?, backends: vec![SPARE.parse()?] },
        ];
        let interfaces = [UPLINK, "uplink-c"];
        Agent::of(program, &cluster.router, "node-a", &interfaces, &cluster::file(&nodes), &[]).map(Some)
    }

    /// Work that a peer needs before the clock starts. For `conntrack -D` the service no longer leads to the hung node (as once its
    /// endpoints are drained): else deleted entries come back with the same backend.
    pub(super) fn before(self, cluster: &Cluster) -> anyhow::Result<()> {
        if self != Self::Conntrack {
            return Ok(());
        }
        cluster.router.nft(
            &format!(
                "flush chain ip kube services\nadd rule ip kube services ip daddr {SERVICE} tcp dport {SERVICE_PORT} \
                 dnat to {SPARE}:{SERVER_PORT}\n"
            ),
        )
    }

    /// Runs the operator's command to its end. `nodefence flag` returns the outcome of the challenges.
    pub(super) fn act(self, cluster: &Cluster, agent: Option<&Agent>) -> anyhow::Result<Option<String>> {
        let _printed = match self {
            Self::Ours => {
                let report = cluster::flag(agent.context("the agent was started")?, "node-b", &["--wait"])?;
                let row = &report["challenged"];
                return Ok(Some(match row["seconds"].as_f64() {
                    Some(seconds) => format!(
                        "the agent listed {} flows, challenged {}, and found {} of these closed within {seconds:.2} s",
                        row["listed"], row["challenged"], row["closed"]
                    ),
                    None => format!(
                        "the agent was still challenging clients when it answered: {}",
                        report["warnings"]
                    ),
                }));
            }
            Self::Conntrack => cluster.router.exec(&format!("conntrack -D -p tcp --orig-dst {SERVICE}"))?,
            Self::SsOnNode => cluster.router.exec(&format!("ss -K -n -t -H dport = :{SERVER_PORT}"))?,
            Self::SsAtClient => cluster.client.exec(&format!("ss -K -n -t -H dst {SERVICE}"))?,
        };
        Ok(None)
    }
}
