//! What becomes of each NodeFlag, and which of them are to be deleted. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::wire::Flag;
use crate::{
    crds::{FlagState, NodeFlagSpec, NodeFlagStatus, NodefenceSettingsSpec, SettingsMode},
    enforce::{Judge, Now, Share, Standing},
};

/// How long a flag stays after its end, so that people can still see it.
pub(super) const STAYS: Duration = Duration::from_secs(3600);

/// Works out the status of each flag, by its name. `uids`: the UID of each NodeMember, by its name. `now`: its wall clock is the API
/// server's.
pub(super) fn statuses(
    flags: &BTreeMap<String, Flag>,
    uids: &BTreeMap<String, String>,
    settings: &NodefenceSettingsSpec,
    judge: &mut Judge,
    now: Now,
) -> BTreeMap<String, NodeFlagStatus> {
    let mut found: BTreeMap<&String, (FlagState, String)> = BTreeMap::new();
    let mut counts: Vec<(&String, NodeFlagSpec)> = Vec::new();
    for (name, flag) in flags {
        match read(flag) {
            Err(error) => {
                let message = format!("the controller cannot read the flag: {error}");
                found.insert(name, (FlagState::Pending, message));
            }
            Ok(spec) => match alone(&spec, uids, settings, now.wall) {
                Some(status) => drop(found.insert(name, status)),
                None => counts.push((name, spec)),
            },
        }
    }
    let claims = counts.iter().map(|(name, spec)| spec.claim(name, spec.until)).collect();
    let standings = judge.judge(claims, now);
    for ((name, spec), standing) in counts.iter().zip(standings) {
        found.insert(name, stands(spec, standing, settings));
    }
    let status = |(name, (state, message)): (&String, (FlagState, String))| {
        let observed_generation = flags.get(name).and_then(|flag| flag.metadata.generation).unwrap_or(0);
        (name.clone(), NodeFlagStatus { state, message, observed_generation })
    };
    found.into_iter().map(status).collect()
}

/// What a flag says, with the end at which agents end it.
fn read(flag: &Flag) -> serde_json::Result<NodeFlagSpec> {
    let spec: NodeFlagSpec = serde_json::from_value(flag.spec.clone())?;
    let until = spec.ends(flag.metadata.creation_timestamp.as_ref().map(|created| created.0));
    Ok(NodeFlagSpec { until, ..spec })
}

/// What follows from a flag, the members and the settings, without the other flags. `None`: the flag counts.
fn alone(
    spec: &NodeFlagSpec,
    uids: &BTreeMap<String, String>,
    settings: &NodefenceSettingsSpec,
    now: Timestamp,
) -> Option<(FlagState, String)> {
    if spec.until <= now {
        return Some((FlagState::Over, format!("it ended at {}", spec.until)));
    }
    let node = &spec.node;
    let message = match uids.get(node) {
        None => format!("there is no NodeMember {node}"),
        Some(uid) if *uid != spec.uid => {
            format!("node {node} is another machine now: its UID is {uid}, and the flag is for {}", spec.uid)
        }
        Some(_) if settings.opt_outs.nodes.contains(node) => {
            // Agents do not count it in their limits either.
            let message = "NodefenceSettings/default opts the node out: its traffic passes".to_owned();
            return Some((FlagState::Accepted, message));
        }
        Some(_) => return None,
    };
    Some((FlagState::NodeUnknown, message))
}

/// What follows from how the claim stands.
fn stands(spec: &NodeFlagSpec, standing: Standing, settings: &NodefenceSettingsSpec) -> (FlagState, String) {
    match standing {
        Standing::Over => (FlagState::Over, format!("it ended at {}", spec.until)),
        Standing::Unknown => (FlagState::NodeUnknown, format!("there is no NodeMember {}", spec.node)),
        Standing::Withheld(scopes) => {
            let scopes = scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let message = format!(
                "more than {} of these are claimed: {scopes}; `force: true` overrides it",
                settings.limit
            );
            (FlagState::Withheld, message)
        }
        Standing::Enforced | Standing::Observed | Standing::Off | Standing::OptedOut => {
            let message = match settings.mode {
                SettingsMode::Enforce => "agents cut the node, as far as their own mode lets them",
                SettingsMode::Observe => {
                    "agents count what they would cut: the mode of NodefenceSettings/default is observe"
                }
                SettingsMode::Off => "nothing is cut: the mode of NodefenceSettings/default is off",
            };
            (FlagState::Accepted, message.to_owned())
        }
    }
}

/// Whether a flag ended so long ago that it is to be deleted.
pub(super) fn is_to_be_deleted(flag: &Flag, now: Timestamp) -> bool {
    let gone = read(flag).ok().and_then(|spec| spec.until.checked_add(STAYS).ok());
    gone.is_some_and(|gone| gone <= now) && flag.metadata.deletion_timestamp.is_none()
}

/// The limit of the settings. One that cannot be read is the default.
pub(super) fn limit(settings: &NodefenceSettingsSpec) -> Share {
    settings.share().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::enforce::JudgedNode;

    const NOW: &str = "2026-06-01T12:00:00Z";

    fn at(wall: &str) -> Now {
        Now { mono: 1, boot: Duration::from_secs(1), wall: wall.parse().unwrap() }
    }

    fn flag(node: &str, uid: &str, until: &str, force: bool) -> Flag {
        serde_json::from_value(json!({
            "metadata": {"name": node, "generation": 3},
            "spec": {"node": node, "uid": uid, "until": until, "force": force},
        }))
        .unwrap()
    }

    /// Judges these flags of three nodes. Only one may be claimed.
    fn judged(flags: &[(&str, Flag)], settings: &NodefenceSettingsSpec) -> Vec<String> {
        let flags = flags.iter().map(|(name, flag)| ((*name).to_owned(), flag.clone())).collect();
        let nodes = ["a", "b", "c"];
        let uids = nodes.map(|node| (node.to_owned(), format!("uid-{node}"))).into();
        let mut judge = Judge::new(limit(settings));
        judge.open(nodes.map(|node| JudgedNode { name: node.into(), zone: None, pool: None }));
        let found = statuses(&flags, &uids, settings, &mut judge, at(NOW));
        let text = |(name, status): (&String, &NodeFlagStatus)| {
            format!("{name} {:?} {}: {}", status.state, status.observed_generation, status.message)
        };
        found.iter().map(text).collect()
    }

    const LATER: &str = "2026-06-01T13:00:00Z";

    #[test]
    fn each_state_says_why() {
        let enforce = NodefenceSettingsSpec { mode: SettingsMode::Enforce, ..Default::default() };
        let unread = Flag { spec: json!({"node": 7}), ..flag("d", "", LATER, false) };
        let texts = judged(
            &[
                ("f1", flag("a", "uid-a", LATER, false)),
                ("f2", flag("b", "uid-of-old-b", LATER, false)),
                ("f3", flag("nobody", "uid", LATER, false)),
                ("f4", flag("nobody", "uid", NOW, false)),
                ("f5", unread),
            ],
            &enforce,
        );
        assert_eq!(
            texts[..4],
            [
                "f1 Accepted 3: agents cut the node, as far as their own mode lets them",
                "f2 NodeUnknown 3: node b is another machine now: its UID is uid-b, and the flag is for uid-of-old-b",
                "f3 NodeUnknown 3: there is no NodeMember nobody",
                "f4 Over 3: it ended at 2026-06-01T12:00:00Z",
            ]
        );
        assert!(texts[4].starts_with("f5 Pending 3: the controller cannot read the flag: "), "{}", texts[4]);
    }

    #[test]
    fn the_limit_withholds_what_is_not_forced() {
        let settings = NodefenceSettingsSpec::default();
        let both =
            |force| [("f1", flag("a", "uid-a", LATER, force)), ("f2", flag("b", "uid-b", LATER, false))];
        let observed = "agents count what they would cut: the mode of NodefenceSettings/default is observe";
        let withheld = "more than 1/3 of these are claimed: all nodes; `force: true` overrides it";
        let texts = judged(&both(false), &settings);
        assert_eq!(texts, ["f1", "f2"].map(|name| format!("{name} Withheld 3: {withheld}")));
        let texts = judged(&both(true), &settings);
        assert_eq!(texts, [format!("f1 Accepted 3: {observed}"), format!("f2 Withheld 3: {withheld}")]);
        // A flag of a machine that is gone does not count.
        let one = [("f1", flag("a", "uid-a", LATER, false)), ("f2", flag("b", "old", LATER, false))];
        assert_eq!(judged(&one, &settings)[0], format!("f1 Accepted 3: {observed}"));
        // Nor does one of a node that is opted out.
        let mut opted_out = settings.clone();
        opted_out.opt_outs.nodes = vec!["b".to_owned()];
        assert_eq!(judged(&both(false), &opted_out)[0], format!("f1 Accepted 3: {observed}"));
        let wider = NodefenceSettingsSpec { limit: "2/3".to_owned(), ..settings };
        assert_eq!(judged(&both(false), &wider)[1], format!("f2 Accepted 3: {observed}"));
    }

    #[test]
    fn the_settings_say_what_accepted_means() {
        let of = |settings: &NodefenceSettingsSpec| {
            judged(&[("f", flag("a", "uid-a", LATER, false))], settings).remove(0)
        };
        let mut settings = NodefenceSettingsSpec { mode: SettingsMode::Off, ..Default::default() };
        assert!(of(&settings).ends_with("the mode of NodefenceSettings/default is off"));
        settings.opt_outs.nodes = vec!["a".to_owned()];
        assert!(of(&settings).ends_with("opts the node out: its traffic passes"));
    }

    #[test]
    fn flags_stay_for_an_hour_after_their_end() {
        let flag = flag("a", "uid-a", NOW, false);
        let is_due = |wall: &str| is_to_be_deleted(&flag, wall.parse().unwrap());
        assert!(!is_due("2026-06-01T12:59:59Z") && is_due("2026-06-01T13:00:00Z"));
        let mut leaving = flag.clone();
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
        assert!(!is_to_be_deleted(&leaving, LATER.parse().unwrap()));
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_the_default() {
        let of = |limit: &str| {
            super::limit(&NodefenceSettingsSpec { limit: limit.to_owned(), ..Default::default() })
        };
        assert_eq!(of("2/5"), Share { part: 2, of: 5 });
        for text in ["", "1", "1/0", "9999999999/1", "a/b"] {
            assert_eq!(of(text), Share::default(), "{text}");
        }
    }
}
