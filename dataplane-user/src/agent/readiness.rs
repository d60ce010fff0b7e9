//! Whether a pod's agent is ready, for the probe that runs in the pod (`nodefence status --ready`).
//!
//! All agents of a node share one socket and one HTTP port. During a rollout the old pod's agent answers there while the new pod's agent starts. So
//! whoever asks says for which pod.

use crate::report::Failure;

/// The answer to a probe: this process, or why the pod is not ready. `own`: the pod of the agent that answers. `asked`: the pod that the probe is
/// for; without it only the agent's own state counts.
pub(super) fn answer(
    own: Option<&str>,
    asked: Option<&str>,
    not_ready: Option<String>,
) -> Result<u32, Failure> {
    if let Some(asked) = asked
        && own != Some(asked)
    {
        let other =
            own.map_or_else(|| "an agent without a pod".to_owned(), |own| format!("that of pod {own}"));
        let why =
            format!("not ready: another agent runs on this node, {other}; the agent of pod {asked} does not");
        return Err(Failure::failed(why));
    }
    match not_ready {
        Some(why) => Err(Failure::failed(format_args!("not ready: {why}"))),
        None => Ok(std::process::id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(own: Option<&str>, asked: Option<&str>, not_ready: Option<&str>) -> Result<u32, String> {
        answer(own, asked, not_ready.map(str::to_owned)).map_err(|failure| failure.message)
    }

    #[test]
    fn a_pod_is_ready_where_its_own_agent_runs_and_is_ready() {
        let here = Ok(std::process::id());
        assert_eq!(told(Some("a"), Some("a"), None), here);
        assert_eq!(told(Some("a"), None, None), here);
        assert_eq!(told(None, None, None), here);
        let late = told(Some("a"), Some("a"), Some("no view")).unwrap_err();
        assert_eq!(late, "not ready: no view");
        // The old agent is well, and the new pod is not ready all the same.
        let other = told(Some("old"), Some("new"), None).unwrap_err();
        assert!(other.contains("pod old") && other.contains("pod new"), "{other}");
        let none = told(None, Some("new"), None).unwrap_err();
        assert!(none.contains("an agent without a pod"), "{none}");
    }
}
