//! Why a verb of `kubectl nodefence` was not carried out.

use kube::core::Status;

use crate::cli::exit::Exit;

/// Why a verb was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The API server allows the request only to others.
    #[error("you may not {verb} {resource}: {message} (expected: {role})")]
    Forbidden {
        /// What was to be done, as RBAC names it.
        verb: &'static str,
        /// Of which objects, as RBAC names them.
        resource: String,
        /// What the API server says.
        message: String,
        /// The role that allows it.
        role: &'static str,
    },
    /// The API server does not serve objects of that kind.
    #[error(
        "the API server has no {resource}: expected the definitions that `nodefence crds --apply` creates"
    )]
    NoKind {
        /// The objects, as RBAC names them.
        resource: String,
    },
    /// A rule of the API server does not allow the object.
    #[error("the API server refuses to {verb} {resource}: {message}")]
    Invalid {
        /// What was to be done.
        verb: &'static str,
        /// Of which objects.
        resource: String,
        /// What the API server says.
        message: String,
    },
    /// The request failed for another reason.
    #[error("cannot {verb} {resource}")]
    Request {
        /// What was to be done.
        verb: &'static str,
        /// Of which objects.
        resource: String,
        /// What the API server or the client says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer does not say what time it is.
    #[error("the API server's answer has no `Date`, by which the end of a flag is set")]
    NoDate,
    /// No agent has a pod in the namespace.
    #[error("no agent's pod in namespace {0} (expected: --namespace of the release)")]
    NoAgents(String),
    /// There is no such node.
    #[error("there is no node `{0}` (see `kubectl get nodes` and `kubectl get nodemembers`)")]
    UnknownNode(String),
    /// There is no such flag.
    #[error("there is no NodeFlag `{0}` (see `kubectl nodefence flags`)")]
    UnknownFlag(String),
    /// The flag is unwise.
    #[error("node `{node}` was not flagged: {}; --force flags it all the same", .why.join("; "))]
    Unwise {
        /// The node.
        node: String,
        /// What speaks against it.
        why: Vec<String>,
    },
    /// The end of the flag is too far ahead.
    #[error("the flag would end more than 24 hours from now; expected --long with such an end")]
    TooLong,
    /// The end of the flag has passed.
    #[error("the end of the flag, {until}, has passed: by the API server's clock it is {now}")]
    Past {
        /// The end.
        until: String,
        /// The time.
        now: String,
    },
    /// The settings cannot be read.
    #[error(
        "NodefenceSettings/default cannot be read: {0}; expected content as in `kubectl explain nodefencesettings.spec` \
         (`kubectl edit nodefencesettings default` sets it right)"
    )]
    UnreadSettings(String),
    /// The same user's flag on the node has more force than the new one.
    #[error(
        "node `{node}` was not flagged: your flag {flag} there has force, and a limit may withhold one without; expected --force, or before it \
         `kubectl nodefence unflag --name {flag}`"
    )]
    Forced {
        /// The node.
        node: String,
        /// The flag.
        flag: String,
    },
    /// The object to create is there already.
    #[error("there is such an object already")]
    Exists,
    /// Somebody else changed the settings at the same time, again and again.
    #[error("the settings were changed by somebody else at the same time; try again")]
    Busy,
}

impl Error {
    /// The error of a request that failed.
    pub(super) fn of(verb: &'static str, resource: String, role: &'static str, error: kube::Error) -> Self {
        let status = match error {
            kube::Error::Api(status) => *status,
            other => return Self::Request { verb, resource, source: Box::new(other) },
        };
        match status.code {
            403 => Self::Forbidden { verb, resource, message: message(status), role },
            409 if verb == "create" => Self::Exists,
            404 if is_of_kind(&status) => Self::NoKind { resource },
            422 => Self::Invalid { verb, resource, message: message(status) },
            _ => Self::Request { verb, resource, source: Box::new(status) },
        }
    }

    /// The exit code.
    pub(super) const fn exit(&self) -> Exit {
        match self {
            Self::Forbidden { .. }
            | Self::Invalid { .. }
            | Self::Unwise { .. }
            | Self::Forced { .. }
            | Self::TooLong
            | Self::Past { .. } => Exit::Refused,
            Self::UnknownNode(_) | Self::UnknownFlag(_) => Exit::Unknown,
            Self::NoKind { .. }
            | Self::Request { .. }
            | Self::NoDate
            | Self::NoAgents(_)
            | Self::UnreadSettings(_)
            | Self::Exists
            | Self::Busy => Exit::Error,
        }
    }
}

fn message(status: Status) -> String {
    if status.message.is_empty() { status.reason } else { status.message }
}

/// Whether the kind is missing, not one object. The API server names the object in `details`, and has no name for a kind.
fn is_of_kind(status: &Status) -> bool {
    status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, name: &str) -> Error {
        let details = serde_json::from_value(serde_json::json!({ "name": name })).unwrap();
        let status = Status { code, message: "because".to_owned(), details, ..Status::default() };
        let error = kube::Error::Api(Box::new(status));
        Error::of("list", "nodeflags.nodefence.io".to_owned(), "the ClusterRole nodefence-view", error)
    }

    #[test]
    fn an_answer_has_its_exit_code() {
        for (code, name, exit) in [
            (403, "", Exit::Refused),
            (404, "", Exit::Error),
            (404, "b-1", Exit::Error),
            (422, "b-1", Exit::Refused),
            (500, "", Exit::Error),
        ] {
            assert_eq!(answer(code, name).exit(), exit, "{code}");
        }
        assert!(matches!(answer(404, ""), Error::NoKind { .. }));
        assert!(matches!(answer(404, "b-1"), Error::Request { .. }));
    }

    #[test]
    fn a_forbidden_names_verb_resource_and_role() {
        let text = answer(403, "").to_string();
        let wanted =
            "you may not list nodeflags.nodefence.io: because (expected: the ClusterRole nodefence-view)";
        assert_eq!(text, wanted);
    }
}
