//! Which agents are off, and what is left of the others. Pure.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// What the wait for agents to be off found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct Waited {
    /// The number of agents that are off, with nothing of theirs left on their nodes.
    pub(super) off: usize,
    /// The other agents. What they did may remain on their nodes.
    pub(super) left: Vec<LeftAgent>,
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
    /// The lines of it.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { off, left } = self;
        let of = off + left.len();
        let mut all =
            vec![format!("off        {off} of {of} agents; nothing of theirs is left on their nodes")];
        all.extend(
            left.iter().map(|LeftAgent { node, pod, why }| format!("left       {node} (pod {pod}): {why}")),
        );
        if !left.is_empty() {
            all.push(
                "           what such an agent did may remain on its node: programs, pins, and destinations drained from IPVS".to_owned(),
            );
            all.push(
                "           once the node answers again, end the agent there and run `nodefence detach`"
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
        let mut waited = Waited { off: 2, left: Vec::new() };
        assert_eq!(waited.lines().len(), 1);
        let [node, pod, why] = ["node-b", "agent-x", "no route"].map(str::to_owned);
        waited.left.push(LeftAgent { node, pod, why });
        let text = waited.lines().join("\n");
        assert!(text.contains("2 of 3 agents") && text.contains("node-b (pod agent-x): no route"), "{text}");
        assert!(text.contains("`nodefence detach`"), "{text}");
    }
}
