//! Nodes as they are printed, with their flags and agents. Pure.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    agent_rows::AgentRow, asked_rows::AskedAgents, flag_rows::NodeFlagRow, known::Known, lines::lines,
};
use crate::{
    cli::{
        args::Format,
        output::{columns, or_dash},
    },
    report::{Document, seconds},
};

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterNodeRow {
    /// The name of the node.
    pub(super) name: String,
    /// The addresses of the node.
    pub(super) addresses: Vec<String>,
    /// The zone of the node. `None` if it has none.
    pub(super) zone: Option<String>,
    /// The pool of the node. `None` if it has none.
    pub(super) pool: Option<String>,
    /// All flags of the node, those that are over too.
    pub(super) flags: Vec<NodeFlagRow>,
    /// The agent on the node. `None` if the node has no pod of an agent, or if the pods could not be listed.
    pub(super) agent: Option<AgentRow>,
}

/// A list of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterNodes {
    /// The nodes, by name.
    pub(super) items: Vec<ClusterNodeRow>,
    /// The requested names that no node has.
    pub(super) not_found: Vec<String>,
    /// What all agents answer, those of other nodes too. `None` without `--flagged`, or if they were not asked.
    pub(super) agents: Option<AskedAgents>,
    /// Why the agents were not asked. `None` if they were.
    pub(super) agents_unknown: Option<String>,
    /// The objects that cannot be read, and why. Agents leave them out too.
    pub(super) unread: Vec<String>,
}

impl Document for ClusterNodes {
    const KIND: &'static str = "ClusterNodeList";
    const PRINTED_BY: &'static str = "kubectl nodefence nodes";
}

/// Whether a node is listed: it is one of the names, if there are any, and bears a flag, if only such nodes are wanted.
pub(super) fn is_wanted(known: &Known, names: &[String], flagged: bool, node: &str) -> bool {
    (names.is_empty() || names.iter().any(|name| name == node))
        && (!flagged || known.held().any(|flag| flag.spec.node == node))
}

impl ClusterNodes {
    /// The list of the wanted nodes.
    pub(super) fn new(
        known: &Known,
        names: &[String],
        flagged: bool,
        agents: Result<BTreeMap<String, AgentRow>, String>,
    ) -> Self {
        let (mut agents, agents_unknown) = match agents {
            Ok(agents) => (agents, None),
            Err(why) => (BTreeMap::new(), Some(why)),
        };
        // Whether a flagged node is cut, the agents of all other nodes say.
        let asked = (flagged && agents_unknown.is_none()).then(|| AskedAgents::new(&agents));
        let wanted = known.members.iter().filter(|(name, _)| is_wanted(known, names, flagged, name));
        let row = |(name, member): (&String, &crate::crds::NodeMember)| ClusterNodeRow {
            name: name.clone(),
            addresses: member.spec.addresses.clone(),
            zone: member.spec.zone.clone(),
            pool: member.spec.pool.clone(),
            flags: known.of_node(name).map(|flag| NodeFlagRow::new(known, flag)).collect(),
            agent: agents.remove(name),
        };
        let items = wanted.map(row).collect();
        let not_found = names.iter().filter(|name| !known.members.contains_key(*name)).cloned().collect();
        Self { items, not_found, agents: asked, agents_unknown, unread: known.unread_texts() }
    }
}

/// The nodes as a table, or as names that kubectl takes.
pub(super) fn nodes(list: &ClusterNodes, format: Format) -> String {
    let flags = |row: &ClusterNodeRow| {
        let texts: Vec<String> = row.flags.iter().map(NodeFlagRow::text).collect();
        or_dash((!texts.is_empty()).then(|| texts.join("; ")))
    };
    let is_unknown = list.agents_unknown.is_some();
    let table = match format {
        Format::Name => {
            return list.items.iter().map(|row| format!("node/{}", row.name)).collect::<Vec<_>>().join("\n");
        }
        Format::Wide => columns(
            ["NAME", "ADDRESSES", "ZONE", "POOL", "AGENT", "VERSION", "MODE", "VIEW AGE", "POD", "FLAGS"],
            list.items.iter().map(|row| {
                let [agent, version, mode, age, pod] = agent(row.agent.as_ref(), is_unknown);
                let addresses = (!row.addresses.is_empty()).then(|| row.addresses.join(","));
                let zone = or_dash(row.zone.as_ref());
                let pool = or_dash(row.pool.as_ref());
                [row.name.clone(), or_dash(addresses), zone, pool, agent, version, mode, age, pod, flags(row)]
            }),
        ),
        Format::Table | Format::Json | Format::Yaml => columns(
            ["NAME", "ZONE", "AGENT", "VERSION", "MODE", "VIEW AGE", "FLAGS"],
            list.items.iter().map(|row| {
                let [agent, version, mode, age, _] = agent(row.agent.as_ref(), is_unknown);
                [row.name.clone(), or_dash(row.zone.as_ref()), agent, version, mode, age, flags(row)]
            }),
        ),
    };
    match &list.agents {
        Some(agents) => format!("{table}\n{}", lines([agents.text()])),
        None => table,
    }
}

/// An agent's cells: health, version, mode, age of the view, and pod.
fn agent(agent: Option<&AgentRow>, is_unknown: bool) -> [String; 5] {
    let Some(row) = agent else {
        let first = if is_unknown { "unknown" } else { "none" };
        return [first, "-", "-", "-", "-"].map(str::to_owned);
    };
    let health = match (&row.silent, &row.health) {
        (Some(_), _) => "no answer".to_owned(),
        (None, Some(health)) => health.to_uppercase(),
        (None, None) => "-".to_owned(),
    };
    let age = or_dash(row.view_age_seconds.map(seconds));
    [health, or_dash(row.version.as_ref()), or_dash(row.mode.as_ref()), age, row.pod.clone()]
}

/// Lines about what the table does not say.
pub(super) fn notes(list: &ClusterNodes) -> Vec<String> {
    let mut notes = list.unread.clone();
    notes.extend(list.agents_unknown.iter().map(|why| format!("the agents were not asked: {why}")));
    for row in &list.items {
        let silent = row.agent.as_ref().and_then(|agent| agent.silent.as_ref());
        notes.extend(silent.map(|why| format!("node {}: the agent does not answer: {why}", row.name)));
    }
    notes
}
