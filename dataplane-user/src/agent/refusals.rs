//! Answers to requests that were not carried out, or whose change may not outlive the agent.

use crate::{
    cluster::SourceName,
    enforce::{Refusal, SaveState},
    report::{ErrorKind, Failure},
};

/// Why a request on a node was not carried out.
pub(super) fn failure(refusal: &Refusal, node: &str, source: SourceName) -> Failure {
    match refusal {
        Refusal::Starting => {
            Failure::failed("this agent is starting; nothing was changed, try again in a few seconds")
        }
        Refusal::HandingOver => Failure::failed(
            "this agent is handing over to another; nothing was changed, try again in a few seconds",
        ),
        Refusal::UnknownNode(node) => not_found(node, source),
        Refusal::OwnNode(node) => Failure::new(
            ErrorKind::Refused,
            format!(
                "`{node}` is the node this agent runs on: whoever enters here would be cut off from its pods \
                 (--force to do so)"
            ),
        ),
        Refusal::TooMany { flagged, all } => Failure::new(
            ErrorKind::Refused,
            format!(
                "{flagged} of {all} nodes would be flagged, more than a third: the rest may not carry the load \
                 (--force to do it)"
            ),
        ),
        Refusal::NotWritten(error) => not_written(node, error),
        Refusal::NotExempt { port, error } => {
            not_written(node, &format!("{port} must be exempt, which failed: {error}"))
        }
        Refusal::NotTakenBack(error) => Failure::failed(format_args!(
            "the verdict on `{node}` could not be taken back, it lapses in 3 s: {error}"
        )),
        Refusal::NotSaved(error) => Failure::failed(unsaved(error)),
    }
}

fn not_written(node: &str, error: &str) -> Failure {
    Failure::failed(format_args!("the verdict on `{node}` could not be written, it bears no flag: {error}"))
}

/// The answer to a request that names a node which does not exist.
pub(super) fn not_found(node: &str, source: SourceName) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no node `{node}` in {source} (see `nodefence nodes`)"),
    )
}

/// The text where the flags file could not be written.
pub(super) fn unsaved(error: &str) -> String {
    format!(
        "{error}; the file has its earlier content, so a restart of the agent loses the change; the agent tries again \
         each second"
    )
}

/// The warning where a change may not outlive the agent.
pub(super) fn save_warning(saved: &SaveState) -> Option<String> {
    match saved {
        SaveState::Saved => None,
        SaveState::Late => Some(
            "the flags file is still being written: until then the flag does not survive the agent"
                .to_owned(),
        ),
        SaveState::Failed(error) => Some(unsaved(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Backend, Protocol, Scope};

    /// The texts that `nodefence flag` and `unflag` have always printed.
    #[test]
    fn each_refusal_has_its_words_and_its_kind() {
        let port = Backend { address: [10, 1, 1, 2].into(), scope: Scope::Port(80, Protocol::Tcp) };
        let full = "map ports: no space";
        let mut golden = String::new();
        for (refusal, kind, text) in [
            (
                Refusal::Starting,
                ErrorKind::Failed,
                "this agent is starting; nothing was changed, try again in a few seconds",
            ),
            (
                Refusal::HandingOver,
                ErrorKind::Failed,
                "this agent is handing over to another; nothing was changed, try again in a few seconds",
            ),
            (
                Refusal::UnknownNode("node-z".into()),
                ErrorKind::NotFound,
                "there is no node `node-z` in the source of nodes (see `nodefence nodes`)",
            ),
            (
                Refusal::OwnNode("node-a".into()),
                ErrorKind::Refused,
                "`node-a` is the node this agent runs on: whoever enters here would be cut off from its pods (--force to do so)",
            ),
            (
                Refusal::TooMany { flagged: 2, all: 4 },
                ErrorKind::Refused,
                "2 of 4 nodes would be flagged, more than a third: the rest may not carry the load (--force to do it)",
            ),
            (
                Refusal::NotWritten(full.into()),
                ErrorKind::Failed,
                "the verdict on `node-b` could not be written, it bears no flag: map ports: no space",
            ),
            (
                Refusal::NotExempt { port, error: full.into() },
                ErrorKind::Failed,
                "the verdict on `node-b` could not be written, it bears no flag: 10.1.1.2:80/tcp must be exempt, which failed: map \
                 ports: no space",
            ),
            (
                Refusal::NotTakenBack(full.into()),
                ErrorKind::Failed,
                "the verdict on `node-b` could not be taken back, it lapses in 3 s: map ports: no space",
            ),
            (
                Refusal::NotSaved("flags file /run/x: full".into()),
                ErrorKind::Failed,
                "flags file /run/x: full; the file has its earlier content, so a restart of the agent loses the change; the agent tries again each second",
            ),
        ] {
            assert_eq!(failure(&refusal, "node-b", SourceName::default()), Failure::new(kind, text));
            golden += &format!("nodefence: {text}\n");
        }
        golden += &format!("warning: {}\n", save_warning(&SaveState::Late).unwrap());
        crate::cli::golden::check("refusals", &golden);
    }

    #[test]
    fn a_change_that_may_not_outlive_the_agent_is_warned_of() {
        assert_eq!(save_warning(&SaveState::Saved), None);
        let late = save_warning(&SaveState::Late).unwrap();
        assert_eq!(
            late,
            "the flags file is still being written: until then the flag does not survive the agent"
        );
        let failed = save_warning(&SaveState::Failed("flags file x: full".into())).unwrap();
        assert!(failed.starts_with("flags file x: full; the file has its earlier content, "), "{failed}");
    }
}
