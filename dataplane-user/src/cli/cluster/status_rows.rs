//! The state of the whole cluster in one page. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    agent_rows::AgentRow,
    ask::Server,
    flag_rows::{NodeFlagRow, state},
    known::{Does, Known, paused},
    lines::{counts, lines, named},
    node_rows::ClusterNodes,
    settings_rows::mode,
};
use crate::{
    cli::output::count,
    crds::{FlagState, NodefenceSettingsSpec, Pause},
    report::Document,
};

/// How long after its creation a flag waits for the controller's word in a sound cluster.
const JUDGED_IN: Duration = Duration::from_secs(30);

/// What the agents say of themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct AgentsRow {
    /// The number of nodes that have a pod of an agent.
    pub(super) pods: usize,
    /// The number of these agents that answer.
    pub(super) answering: usize,
    /// The nodes whose agents do not answer.
    pub(super) silent: Vec<String>,
    /// The nodes that have no pod of an agent.
    pub(super) missing: Vec<String>,
    /// The number of nodes that have a pod of an agent or should have one, by the DaemonSet. `None` if it is not known.
    pub(super) wanted: Option<usize>,
    /// Why that number is not known. `None` if it is known.
    pub(super) wanted_unknown: Option<String>,
    /// The nodes whose agents do less than the settings want, since their own mode is weaker.
    pub(super) weaker: Vec<String>,
    /// How many agents have each version.
    pub(super) versions: BTreeMap<String, usize>,
    /// How many agents have each mode.
    pub(super) modes: BTreeMap<String, usize>,
    /// How many agents have each health.
    pub(super) health: BTreeMap<String, usize>,
    /// The age of the oldest view, in seconds. `None` if no agent says so.
    pub(super) oldest_view_seconds: Option<u64>,
    /// The largest number of conflicts that an agent sees among the objects of the API server.
    pub(super) conflicts: u64,
}

/// The state of the whole cluster.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterStatus {
    /// The version of the API server. `None` if it does not say so.
    pub(super) api_server: Option<String>,
    /// The settings. `None` if there are none, or if they cannot be read.
    pub(super) settings: Option<NodefenceSettingsSpec>,
    /// What agents do by the settings, in words.
    pub(super) does: String,
    /// The pauses that hold now.
    pub(super) pauses: Vec<Pause>,
    /// The number of NodeMembers.
    pub(super) members: usize,
    /// The number of flags in each state.
    pub(super) flags: BTreeMap<String, usize>,
    /// The flags that are not over.
    pub(super) current_flags: Vec<NodeFlagRow>,
    /// The agents. `None` if they were not asked.
    pub(super) agents: Option<AgentsRow>,
    /// Why the agents were not asked. `None` if they were.
    pub(super) agents_unknown: Option<String>,
    /// What is wrong, in words. With `--check` the exit code is 5 if there is something.
    pub(super) problems: Vec<String>,
}

impl Document for ClusterStatus {
    const KIND: &'static str = "ClusterStatus";
    const PRINTED_BY: &'static str = "kubectl nodefence status";
}

impl ClusterStatus {
    /// The state, from what was read. `nodes` has all nodes. `wanted`: how many of them should have a pod of an agent.
    pub(super) fn new(
        server: &Server,
        known: &Known,
        nodes: &ClusterNodes,
        wanted: Result<usize, String>,
    ) -> Self {
        let (does, why) = known.does();
        let rows: Vec<NodeFlagRow> = known.flags.iter().map(|flag| NodeFlagRow::new(known, flag)).collect();
        let mut flags = BTreeMap::new();
        for row in &rows {
            *flags.entry(state(row.state).to_owned()).or_default() += 1;
        }
        let agents = nodes.agents_unknown.is_none().then(|| agents(nodes, does, wanted));
        let mut this = Self {
            api_server: server.version.clone(),
            settings: known.settings.clone(),
            does: why,
            pauses: known.pauses().cloned().collect(),
            members: known.members.len(),
            flags,
            current_flags: rows.into_iter().filter(|row| row.state != FlagState::Over).collect(),
            agents,
            agents_unknown: nodes.agents_unknown.clone(),
            problems: Vec::new(),
        };
        this.problems = known.unread_texts();
        let is_missing = this.settings.is_none() && known.unread_settings().is_none();
        this.problems.extend(problems(&this, is_missing, server.now));
        this
    }
}

fn agents(nodes: &ClusterNodes, does: Does, wanted: Result<usize, String>) -> AgentsRow {
    let (wanted, wanted_unknown) = match wanted {
        Ok(wanted) => (Some(wanted), None),
        Err(why) => (None, Some(why)),
    };
    let mut found = AgentsRow { wanted, wanted_unknown, ..AgentsRow::default() };
    for row in &nodes.items {
        let Some(agent) = &row.agent else {
            found.missing.push(row.name.clone());
            continue;
        };
        found.pods += 1;
        if agent.silent.is_some() {
            found.silent.push(row.name.clone());
            continue;
        }
        found.answering += 1;
        if is_weaker(agent, does) {
            found.weaker.push(row.name.clone());
        }
        for (value, counts) in [
            (&agent.version, &mut found.versions),
            (&agent.mode, &mut found.modes),
            (&agent.health, &mut found.health),
        ] {
            *counts.entry(value.clone().unwrap_or_else(|| "-".to_owned())).or_default() += 1;
        }
        found.oldest_view_seconds = found.oldest_view_seconds.max(agent.view_age_seconds);
        found.conflicts = found.conflicts.max(agent.conflicts.unwrap_or(0));
    }
    found
}

/// Whether an agent does less than the settings have it do.
fn is_weaker(agent: &AgentRow, does: Does) -> bool {
    matches!(
        (agent.mode.as_deref(), does),
        (Some("off"), Does::Cut | Does::Observe) | (Some("observe"), Does::Cut)
    )
}

fn problems(status: &ClusterStatus, is_without_settings: bool, now: Timestamp) -> Vec<String> {
    let mut problems = Vec::new();
    if is_without_settings {
        problems.push(status.does.clone());
    }
    if status.members == 0 {
        problems
            .push("there are no NodeMembers: agents know no node (the controller writes them)".to_owned());
    }
    for row in &status.current_flags {
        if matches!(row.state, FlagState::Withheld | FlagState::NodeUnknown) {
            let message = if row.message.is_empty() { String::new() } else { format!(": {}", row.message) };
            problems.push(format!("flag {} of node {} is {}{message}", row.name, row.node, state(row.state)));
        }
        let is_old = row.created.is_some_and(|created| created + JUDGED_IN < now);
        if row.state == FlagState::Pending && row.message.is_empty() && is_old {
            problems.push(format!(
                "flag {} of node {}: the controller has said nothing: does it run?",
                row.name, row.node
            ));
        }
    }
    if let Some(why) = &status.agents_unknown {
        problems.push(format!("the agents were not asked: {why}"));
    }
    let Some(agents) = &status.agents else { return problems };
    problems.extend(missing(agents));
    for (nodes, what) in [
        (&agents.silent, "with an agent that does not answer"),
        (&agents.weaker, "with an agent whose own mode is weaker than the settings"),
    ] {
        if !nodes.is_empty() {
            problems.push(format!("{} {what}: {}", count(nodes.len(), "node"), named(nodes)));
        }
    }
    for health in ["degraded", "blind"] {
        if let Some(number) = agents.health.get(health) {
            problems.push(format!("{} {health} (see `nodefence status` on the node)", are(*number)));
        }
    }
    if agents.versions.len() > 1 {
        problems.push(format!("agents have different versions: {}", counts(&agents.versions)));
    }
    if agents.conflicts > 0 {
        problems.push(format!(
            "an agent leaves out objects that conflict: {} (see `nodefence status` on a node)",
            agents.conflicts
        ));
    }
    problems
}

/// What is wrong with nodes that have no pod of an agent. Where the DaemonSet wants none there, as by its nodeSelector, nothing is.
fn missing(agents: &AgentsRow) -> Option<String> {
    let nodes = &agents.missing;
    if nodes.is_empty() || agents.wanted.is_some_and(|wanted| wanted <= agents.pods) {
        return None;
    }
    let text = format!("{} without pod of an agent: {}", count(nodes.len(), "node"), named(nodes));
    Some(match &agents.wanted_unknown {
        Some(why) => format!("{text}; whether there should be one is not known: {why}"),
        None => text,
    })
}

fn are(number: usize) -> String {
    format!("{} {}", count(number, "agent"), if number == 1 { "is" } else { "are" })
}

/// The state as text.
pub(super) fn text(status: &ClusterStatus) -> String {
    let mut all = vec![format!("agents    {}", status.does)];
    if let Some(settings) = &status.settings {
        all.push(format!(
            "settings  mode {}, automatic {}, limit {}",
            mode(settings.mode),
            mode(settings.automatic),
            settings.limit
        ));
        if !settings.opt_outs.nodes.is_empty() {
            all.push(format!("never cut {}", named(&settings.opt_outs.nodes)));
        }
    }
    for pause in &status.pauses {
        all.push(format!("pause     {}", paused(pause)));
    }
    let version = status.api_server.as_deref().unwrap_or("of an unknown version");
    all.push(format!("server    {version}, {}", count(status.members, "NodeMember")));
    all.push(format!("flags     {}", counts(&status.flags)));
    for row in &status.current_flags {
        all.push(format!("          {}: {}", row.node, row.text()));
    }
    if let Some(agents) = &status.agents {
        all.push(format!("answer    {} of {}", agents.answering, count(agents.pods, "agent")));
        let said = [("version", &agents.versions), ("mode", &agents.modes), ("health", &agents.health)];
        for (name, values) in said.into_iter().filter(|_| agents.answering > 0) {
            all.push(format!("{name:<10}{}", counts(values)));
        }
        if let Some(age) = agents.oldest_view_seconds {
            all.push(format!("view      the oldest was confirmed {} ago", crate::report::seconds(age)));
        }
    }
    for problem in &status.problems {
        all.push(format!("problem   {problem}"));
    }
    lines(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::cluster::samples::{flag, known, member, now};

    fn agent(mode: &str) -> AgentRow {
        let status = json!({
            "version": "0.1.0", "mode": mode, "state": "ok", "cluster": { "age_seconds": 5, "conflicts": 0 }
        });
        AgentRow::new("pod".to_owned(), Ok(status))
    }

    fn status_with(
        known: &Known,
        agents: BTreeMap<String, AgentRow>,
        wanted: Result<usize, String>,
    ) -> ClusterStatus {
        let nodes = ClusterNodes::new(known, &[], false, Ok(agents));
        ClusterStatus::new(&Server { now: now(), version: None }, known, &nodes, wanted)
    }

    fn status(known: &Known, agents: &[(&str, AgentRow)]) -> ClusterStatus {
        let agents = agents.iter().map(|(node, row)| ((*node).to_owned(), row.clone())).collect();
        status_with(known, agents, Ok(known.members.len()))
    }

    #[test]
    fn nothing_is_wrong_with_a_good_cluster() {
        let mut new = flag("b", "alice");
        new.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now() - JUDGED_IN));
        let known = known([member("a", None, None), member("b", None, None)], [new]);
        let found = status(&known, &[("a", agent("enforce")), ("b", agent("enforce"))]);
        assert_eq!(found.problems, [""; 0]);
        assert_eq!(found.flags, BTreeMap::from([("Pending".to_owned(), 1)]));
        // Whoever pauses agents or lets them observe wants that.
        let mut known = known;
        known.settings.as_mut().unwrap().mode = crate::crds::SettingsMode::Observe;
        let found = status(&known, &[("a", agent("observe")), ("b", agent("observe"))]);
        assert_eq!(found.problems, [""; 0]);
    }

    #[test]
    fn a_node_that_the_daemon_set_leaves_out_is_no_problem() {
        let known = known([member("a", None, None), member("b", None, None)], []);
        let of = |wanted| {
            status_with(&known, BTreeMap::from([("a".to_owned(), agent("enforce"))]), wanted).problems
        };
        assert_eq!(of(Ok(1)), [""; 0]);
        assert_eq!(of(Ok(2)), ["1 node without pod of an agent: b"]);
        let unknown = of(Err("no".to_owned()));
        assert_eq!(
            unknown,
            ["1 node without pod of an agent: b; whether there should be one is not known: no"]
        );
    }

    #[test]
    fn a_flag_of_which_the_controller_says_nothing_is_a_problem() {
        let known = known([member("a", None, None)], [flag("a", "alice")]);
        let found = status(&known, &[("a", agent("enforce"))]);
        assert_eq!(found.problems, ["flag a-7xk2p of node a: the controller has said nothing: does it run?"]);
    }

    #[test]
    fn an_agent_that_is_silent_missing_or_weaker_is_a_problem() {
        let nodes = ["a", "b", "c", "d"].map(|name| member(name, None, None));
        let silent = AgentRow::new("pod".to_owned(), Err("no route".to_owned()));
        let known = known(nodes, []);
        let found = status(&known, &[("a", agent("enforce")), ("b", silent), ("c", agent("observe"))]);
        assert_eq!(
            found.problems,
            [
                "1 node without pod of an agent: d",
                "1 node with an agent that does not answer: b",
                "1 node with an agent whose own mode is weaker than the settings: c",
            ]
        );
    }
}
