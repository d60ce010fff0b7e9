//! What an agent says of itself, as far as it is printed. Pure.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct AgentRow {
    /// The agent's pod.
    pub(super) pod: String,
    /// Why the agent does not answer. `None` if it answers. That of a hung node does not.
    pub(super) silent: Option<String>,
    /// The version. `None` if the agent does not say so.
    pub(super) version: Option<String>,
    /// The mode in effect: `enforce`, `observe` or `off`. `None` if the agent does not say so.
    pub(super) mode: Option<String>,
    /// Whether traffic to flagged nodes is cut, as `nodefence status` says it: `ok`, `degraded`, `observe` or `blind`. `None` if the agent does not say so.
    pub(super) health: Option<String>,
    /// The reason for the health, in one line. `None` if the agent does not say so.
    pub(super) why: Option<String>,
    /// Seconds since the source of nodes last confirmed the agent's view. `None` if the agent does not say so.
    pub(super) view_age_seconds: Option<u64>,
    /// The number of objects of the source that conflict. `None` if the agent does not say so.
    pub(super) conflicts: Option<u64>,
}

impl AgentRow {
    /// The row of an agent that has answered with its status, or of one that has not. Agents of other versions may lack fields.
    pub(super) fn new(pod: String, answer: Result<Value, String>) -> Self {
        let (silent, status) = match answer {
            Ok(status) => (None, status),
            Err(why) => (Some(why), Value::Null),
        };
        let text = |field: &Value| field.as_str().map(str::to_owned);
        Self {
            pod,
            silent,
            version: text(&status["version"]),
            // An agent that is off has no other mode.
            mode: text(&status["mode"]).or_else(|| (status["state"] == "off").then(|| "off".to_owned())),
            health: text(&status["state"]),
            why: text(&status["why"]),
            view_age_seconds: status["cluster"]["age_seconds"].as_u64(),
            conflicts: status["cluster"]["conflicts"].as_u64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{StatusReport, sample};

    #[test]
    fn the_status_of_an_agent_is_understood() {
        let status = serde_json::to_value(StatusReport::from(sample::full())).unwrap();
        let row = AgentRow::new("pod".to_owned(), Ok(status.clone()));
        assert_eq!(row.silent, None);
        assert_eq!(json!(row.version), status["version"]);
        assert_eq!(json!(row.mode), status["mode"]);
        assert_eq!(json!(row.health), status["state"]);
        assert!(row.view_age_seconds.is_some() && row.conflicts.is_some() && row.why.is_some(), "{row:?}");
    }

    #[test]
    fn an_agent_that_is_off_is_in_no_other_mode() {
        let status = serde_json::to_value(sample::off()).unwrap();
        let row = AgentRow::new("pod".to_owned(), Ok(status.clone()));
        assert_eq!((row.mode.as_deref(), row.health.as_deref()), (Some("off"), Some("off")));
        assert_eq!(json!(row.version), status["version"]);
    }

    #[test]
    fn an_agent_that_says_less_is_listed() {
        let row = AgentRow::new("pod".to_owned(), Ok(json!({ "mode": "off" })));
        assert_eq!((row.mode.as_deref(), row.version), (Some("off"), None));
        let row = AgentRow::new("pod".to_owned(), Ok(json!({ "state": "off" })));
        assert_eq!((row.mode.as_deref(), row.health.as_deref()), (Some("off"), Some("off")));
        let row = AgentRow::new("pod".to_owned(), Err("no route".to_owned()));
        assert_eq!(row.silent.as_deref(), Some("no route"));
    }
}
