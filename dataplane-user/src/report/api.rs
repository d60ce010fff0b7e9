use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::flows::FlowFilter;
use crate::plan::{Mode, audit::Kind};

/// A request to an agent: one JSON object in one line, answered by one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Flag a node. Answered with a [`super::FlagReport`].
    Flag {
        /// The node's name.
        node: String,
        /// For how long; without it until an `unflag`.
        #[serde(default)]
        for_ms: Option<u64>,
        /// The reason, in words.
        #[serde(default)]
        reason: String,
        /// Flag also the own node, and also more than a third of all nodes.
        #[serde(default)]
        force: bool,
        /// Answer only once the idle clients were challenged.
        #[serde(default)]
        wait: bool,
        /// The user that sudo names (`SUDO_USER`). Left out where there is none: earlier agents do not know this field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sudo_user: Option<String>,
    },
    /// Take the CLI's flag back. Answered with a [`super::UnflagReport`].
    Unflag {
        /// The node's name.
        node: String,
    },
    /// Answered with a list of [`super::NodeRow`].
    Nodes,
    /// Answered with a list of [`super::BackendRow`].
    Backends,
    /// Answered with [`super::FlowList`].
    Flows(FlowFilter),
    /// Answered with a list of [`super::CounterRow`].
    Counters,
    /// Answered with a [`super::Status`].
    Status,
    /// Tell whether the agent is ready. Answered with the agent's process id, or with the reason why not.
    Ready {
        /// The pod whose agent must answer.
        #[serde(default)]
        pod_uid: Option<String>,
    },
    /// Answered with a [`super::AuditReport`].
    Audit,
    /// Repair faults: differences that have lasted for long enough. Answered with a [`super::RepairReport`].
    Repair {
        /// The kinds to repair.
        kinds: Vec<Kind>,
        /// Change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Tell the mode, or change it until the agent ends. Answered with a [`super::ModeReport`].
    Mode {
        /// The new mode.
        #[serde(default)]
        mode: Option<Mode>,
        /// The user that sudo names (`SUDO_USER`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sudo_user: Option<String>,
    },
    /// Tell what is logged, or change it until the agent ends. Answered with [`super::Adjusted`].
    LogLevel {
        /// The new filter: a level, or directives as in `RUST_LOG`.
        #[serde(default)]
        level: Option<String>,
        /// The user that sudo names (`SUDO_USER`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sudo_user: Option<String>,
    },
    /// Take back all that the agent did to the kernel, and do nothing until [`Request::On`]. Answered with a [`super::OffReport`].
    Off {
        /// The reason, in words.
        #[serde(default)]
        reason: String,
        /// The user that sudo names (`SUDO_USER`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sudo_user: Option<String>,
    },
    /// End the off state: the agent starts anew. Answered with a [`super::OnReport`].
    On {
        /// The user that sudo names (`SUDO_USER`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sudo_user: Option<String>,
    },
    /// Renew once more, give up the lock and end; the dataplane stays. Answered with the agent's process id.
    HandOver,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request could not be understood.
    Invalid,
    /// There is no such node, or no such Service.
    NotFound,
    /// The request would be unwise, and nobody said `force`.
    Refused,
    /// The request was tried and failed.
    Failed,
}

/// A request that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind of reason.
    pub kind: ErrorKind,
    /// The reason, for whoever asked.
    pub message: String,
}

impl Failure {
    /// A failure with a reason of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Something that was tried and failed.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Failed, error.to_string())
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The value that was requested.
    Ok(serde_json::Value),
    /// Why the request was not carried out.
    Error(Failure),
}

impl Reply {
    /// A good answer.
    pub fn ok(value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Error(Failure::failed(error)),
        }
    }

    /// The value inside, as the type that the request is answered with.
    ///
    /// # Errors
    /// The failure inside, or that the answer is another agent version's.
    pub fn into_value<T: DeserializeOwned>(self) -> Result<T, Failure> {
        match self {
            Self::Ok(value) => serde_json::from_value(value)
                .map_err(|error| Failure::failed(format_args!("the agent is of another version: {error}"))),
            Self::Error(failure) => Err(failure),
        }
    }
}

impl<T: Serialize> From<Result<T, Failure>> for Reply {
    fn from(result: Result<T, Failure>) -> Self {
        match result {
            Ok(value) => Self::ok(&value),
            Err(failure) => Self::Error(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sent(request: &Request) -> Value {
        serde_json::to_value(request).unwrap()
    }

    fn read(request: Value) -> Result<Request, String> {
        serde_json::from_value(request).map_err(|error| error.to_string())
    }

    /// An agent refuses fields that it does not know.
    #[test]
    fn what_is_not_asked_for_is_not_sent() {
        assert_eq!(sent(&Request::Flows(FlowFilter::default())), json!({"verb": "flows"}));
        let flag = |sudo_user: Option<&str>| Request::Flag {
            node: "b".to_owned(),
            for_ms: None,
            reason: String::new(),
            force: false,
            wait: false,
            sudo_user: sudo_user.map(str::to_owned),
        };
        let plain =
            json!({"verb": "flag", "node": "b", "for_ms": null, "reason": "", "force": false, "wait": false});
        assert_eq!(sent(&flag(None)), plain);
        assert_eq!(sent(&flag(Some("alice")))["sudo_user"], "alice");
        assert_eq!(read(plain), Ok(flag(None)));
        assert_eq!(read(sent(&flag(Some("alice")))), Ok(flag(Some("alice"))));
    }

    #[test]
    fn flows_are_asked_for_as_before_and_by_more() {
        let of_node = FlowFilter { node: Some("b".to_owned()), ..FlowFilter::default() };
        assert_eq!(read(json!({"verb": "flows", "node": "b"})), Ok(Request::Flows(of_node.clone())));
        assert_eq!(read(json!({"verb": "flows", "node": null})), Ok(Request::Flows(FlowFilter::default())));
        let all = FlowFilter {
            backend: Some("10.1.1.1:80".parse().unwrap()),
            service: Some("default/web".to_owned().into()),
            protocol: Some(crate::cluster::Protocol::Udp),
            limit: Some(5),
            ..of_node
        };
        let text = json!({
            "verb": "flows", "node": "b", "backend": "10.1.1.1:80", "service": "default/web", "protocol": "udp", "limit": 5
        });
        assert_eq!(sent(&Request::Flows(all.clone())), text);
        assert_eq!(read(text), Ok(Request::Flows(all)));
        let error = read(json!({"verb": "flows", "backend": "b"})).unwrap_err();
        assert!(error.contains("`b`: expected ADDRESS or ADDRESS:PORT"), "{error}");
        assert!(read(json!({"verb": "flows", "colour": 1})).unwrap_err().contains("unknown field `colour`"));
    }
}
