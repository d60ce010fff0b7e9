//! Whether the agent is ready, by its state. Pure.

use crate::report::{Health, State, Status};

/// Why the agent is not ready. `None` if it is ready.
///
/// An agent is ready once its maps hold a view, and while it cuts, or counts, what it should. A source that is away is no reason: the last view
/// holds, and a new pod would know less.
pub fn not_ready(status: &Status, health: &Health, has_tables: bool) -> Option<String> {
    if health.state == State::Blind {
        return Some(format!("BLIND: {}", health.why));
    }
    if let Some(error) = &status.dataplane.error {
        return Some(format!("the maps could not be written: {error}"));
    }
    (!has_tables).then(|| "the maps do not hold a view yet".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::sample;

    fn reason(status: &Status, has_tables: bool) -> Option<String> {
        not_ready(status, &Health::of(status), has_tables)
    }

    #[test]
    fn an_agent_without_a_view_in_its_maps_or_that_is_blind_is_not_ready() {
        let well = sample::changed(|_| {});
        assert_eq!(reason(&well, true), None);
        assert!(reason(&well, false).is_some_and(|why| why.contains("do not hold a view")));
        assert!(reason(&sample::blind(), true).is_some_and(|why| why.contains("no device is attached")));
        let lapsed = sample::changed(|status| status["dataplane"]["renewed_seconds_ago"] = json!(3.1));
        assert!(reason(&lapsed, true).is_some_and(|why| why.contains("verdicts have lapsed")));
        let unwritten = sample::changed(|status| status["dataplane"]["error"] = json!("backends: E2BIG"));
        assert!(reason(&unwritten, true).is_some_and(|why| why.contains("backends: E2BIG")));
    }

    /// A rollout that waits for the API server would replace agents that know the cluster by agents that do not.
    #[test]
    fn an_agent_stays_ready_while_the_api_server_is_away_and_while_it_only_observes() {
        let away = sample::changed(|status| {
            status["cluster"]["away"] = json!("connection refused");
            status["cluster"]["age_seconds"] = json!(86_400);
        });
        assert_eq!(reason(&away, true), None);
        assert_eq!(reason(&sample::observes(), true), None);
    }
}
