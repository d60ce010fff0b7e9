//! Which agents are off, and what is left of the others. Pure.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::cli::output::count;

/// What the wait for agents to be off found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct Waited {
    /// The number of agents that are off, with nothing of theirs left on their nodes.
    pub(super) off: usize,
    /// The other agents. What they did may remain on their nodes.
    pub(super) left: Vec<LeftAgent>,
    /// The nodes that have no agent's pod. What an earlier agent did may remain on them.
    pub(super) without_pod: Vec<String>,
    /// Why it is not known which nodes have no agent's pod. `None` if it is known.
    pub(super) members_unknown: Option<String>,
}

/// An agent that did not say that it is off and that nothing of it is left.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct LeftAgent {
    /// The name of the node.
    pub(super) node: String,
    /// The agent's pod.
    pub(super) pod: String,
    /// What the agent says, or why it does not answer.
    pub(super) why: String,
}

/// What an agent's answer says of the off state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is off, and nothing of it is left.
    Off,
    /// It answers, and is not as far. What it says.
    NotYet(String),
    /// It does not answer, and why.
    Silent(String),
}

/// Reads an agent's status.
pub(super) fn said(answer: Result<Value, String>) -> Said {
    let status = match answer {
        Ok(status) => status,
        Err(why) => return Said::Silent(why),
    };
    let problems: Vec<&str> =
        status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match (status["state"].as_str(), status["taken_back"].as_bool()) {
        (Some("off"), Some(true)) if problems.is_empty() => Said::Off,
        (Some("off"), _) if problems.is_empty() => {
            Said::NotYet("the agent is off, and what it did is still being taken back".to_owned())
        }
        (Some("off"), _) => Said::NotYet(format!(
            "the agent is off, but not all could be taken back: {}",
            problems.join("; ")
        )),
        _ => Said::NotYet("the agent is not off".to_owned()),
    }
}

impl Waited {
    /// Whether there was no agent to wait for.
    pub(super) fn is_without_agents(&self) -> bool {
        self.off == 0 && self.left.is_empty()
    }

    /// The lines of it.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { off, left, without_pod, members_unknown } = self;
        let of = off + left.len();
        let mut all = match self.is_without_agents() {
            true => vec!["off        there was no agent to wait for".to_owned()],
            false => {
                vec![format!("off        {off} of {of} agents; nothing of theirs is left on their nodes")]
            }
        };
        all.extend(
            left.iter().map(|LeftAgent { node, pod, why }| format!("left       {node} (pod {pod}): {why}")),
        );
        if !without_pod.is_empty() {
            let nodes = count(without_pod.len(), "node");
            let names = without_pod.join(", ");
            all.push(format!(
                "left       {nodes} without an agent's pod: what an earlier agent did may remain there: {names}"
            ));
        }
        all.extend(
            members_unknown
                .iter()
                .map(|why| format!("left       nodes without an agent's pod are not known: {why}")),
        );
        if !left.is_empty() {
            all.push(
                "           what such an agent did may remain on its node: programs, pins, and destinations drained from IPVS".to_owned(),
            );
        }
        if !left.is_empty() || !without_pod.is_empty() {
            all.push(
                "           once the node answers again and the pod of its agent is deleted, run `nodefence detach` there (docs/install.md)"
                    .to_owned(),
            );
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_agent_that_took_all_back_is_off() {
        let status = |taken_back: bool, problems: &[&str]| {
            said(Ok(json!({ "state": "off", "taken_back": taken_back, "problems": problems })))
        };
        assert_eq!(status(true, &[]), Said::Off);
        let text = |said: Said| match said {
            Said::NotYet(why) | Said::Silent(why) => why,
            Said::Off => panic!("it is off"),
        };
        assert!(text(status(false, &[])).contains("still being taken back"));
        assert!(text(status(false, &["IPVS refuses"])).ends_with("IPVS refuses"));
        assert!(text(status(true, &["IPVS refuses"])).ends_with("IPVS refuses"));
        for running in [json!({ "state": "ok", "mode": "observe" }), json!({ "mode": "off" }), json!(7)] {
            assert_eq!(text(said(Ok(running))), "the agent is not off");
        }
        assert_eq!(said(Err("no route".to_owned())), Said::Silent("no route".to_owned()));
    }

    #[test]
    fn the_rest_is_named_with_what_removes_it() {
        let mut waited = Waited { off: 2, ..Waited::default() };
        assert_eq!(waited.lines().len(), 1);
        let [node, pod, why] = ["node-b", "agent-x", "no route"].map(str::to_owned);
        waited.left.push(LeftAgent { node, pod, why });
        let text = waited.lines().join("\n");
        assert!(text.contains("2 of 3 agents") && text.contains("node-b (pod agent-x): no route"), "{text}");
        assert!(text.contains("`nodefence detach`"), "{text}");
        let without_pod = vec!["node-c".to_owned(), "node-d".to_owned()];
        let text = Waited { off: 2, without_pod, ..Waited::default() }.lines().join("\n");
        assert!(text.contains("2 nodes without an agent's pod") && text.contains("node-c, node-d"), "{text}");
        assert!(text.contains("`nodefence detach`"), "{text}");
        let text = Waited::default().lines().join("\n");
        assert!(text.ends_with("there was no agent to wait for"), "{text}");
    }
}
