//! What an operator should know beside the rows of an answer.

use std::fmt;

use super::inbox::NoAnswer;
use crate::{
    cluster::{NodeName, SourceName},
    report::{ErrorKind, Failure},
};

/// Why idle clients are not challenged in observe mode.
pub(super) const OBSERVES: &str = "nothing is cut in observe mode";
/// Why idle clients are not challenged where cut packets are dropped.
pub(super) const ANSWERS_NOBODY: &str =
    "with --answer drop no client gets an answer; idle clients wait for their own timeouts";

/// A remark in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The flag of a node that has no backends.
    NoBackends(SourceName),
    /// The flag of the agent's own node.
    OwnNode,
    /// A flag while the agent observes because its view is old.
    ViewIsOld,
    /// A flag while the agent observes by its mode.
    Observes,
    /// A request to enforce while the view is old.
    NotConfirmed(SourceName),
    /// Verdicts of which the map still has some.
    Lapsing(usize),
    /// An `unflag` whose flags file still has the flag.
    FlagIsStored,
    /// An `unflag` of a node that the source flags too.
    SourceFlags(SourceName),
    /// An `unflag` of a node that another command flagged meanwhile.
    AnotherFlag,
    /// A listing that the kernel broke off again and again.
    FlowsMissing,
    /// Flows beyond a limit.
    MoreFlows { more: usize, limit: usize },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBackends(source) => write!(f, "{source} has no backends on this node: nothing is cut"),
            Self::OwnNode => f.write_str(
                "processes of this machine that connect to a pod of this machine still reach it, as the kubelet's probes must",
            ),
            Self::ViewIsOld => {
                f.write_str("the view is older than --max-view-age: nothing is cut, only counted")
            }
            Self::Observes => f.write_str("the agent observes: nothing is cut, only counted"),
            Self::NotConfirmed(source) => write!(
                f,
                "{source} has not confirmed its view for longer than --max-view-age: nothing is cut, only counted, until it does"
            ),
            Self::Lapsing(count) => write!(
                f,
                "verdicts that could not be removed: {count}; they lapse 3 s after they were last renewed (see `nodefence status`)"
            ),
            Self::FlagIsStored => f.write_str(
                "the flags file is still being written: until then a restart of the agent would bring the flag back",
            ),
            Self::SourceFlags(source) => write!(f, "{source} flags the node too: remove the flag there"),
            Self::AnotherFlag => f.write_str("another command has flagged the node meanwhile"),
            Self::FlowsMissing => {
                f.write_str("conntrack changed too fast to be listed whole; flows may be missing")
            }
            Self::MoreFlows { more, limit } => write!(f, "flows that are not listed (--limit {limit}): {more}"),
        }
    }
}

/// The answer where a node left the source of nodes while the request was carried out.
pub(super) fn left_meanwhile(node: &NodeName, source: SourceName) -> Failure {
    Failure::failed(format_args!("node `{node}` left {source} meanwhile"))
}

/// The answer to a change of the mode that has not reached all verdicts in time.
pub(super) fn mode_changes_later() -> Failure {
    Failure::failed(format_args!("{}; the mode changes once the thread goes on", NoAnswer::StandsStill))
}

/// The answer to a request that names a Service which does not exist.
pub(super) fn no_service(name: &str, source: SourceName) -> Failure {
    let text = format!("there is no Service `{name}` in {source} (expected NAMESPACE/NAME, or its address)");
    Failure::new(ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_notes() {
        let source = SourceName::default();
        let mut golden = String::new();
        for note in [
            Note::NoBackends(source),
            Note::OwnNode,
            Note::ViewIsOld,
            Note::Observes,
            Note::NotConfirmed(source),
            Note::Lapsing(2),
            Note::FlagIsStored,
            Note::SourceFlags(source),
            Note::AnotherFlag,
            Note::FlowsMissing,
            Note::MoreFlows { more: 7, limit: 20 },
        ] {
            golden += &format!("warning: {note}\n");
        }
        for why in [OBSERVES, ANSWERS_NOBODY] {
            golden += &format!("not challenged: {why}\n");
        }
        for failure in
            [left_meanwhile(&"node-b".into(), source), no_service("web", source), mode_changes_later()]
        {
            golden += &format!("error: {failure}\n");
        }
        for none in [NoAnswer::Full, NoAnswer::Ended, NoAnswer::StandsStill] {
            golden += &format!("error: {none}\n");
        }
        crate::cli::golden::check("notes", &golden);
    }
}
