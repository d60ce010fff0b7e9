//! What becomes of each NodeFlag, and which of them are to be deleted. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::wire::Flag;
use crate::{
    crds::{FlagState, NodeFlagSpec, NodeFlagStatus},
    enforce::{Judge, Now, Share, SharedSettings, Standing},
    plan::Mode,
};

/// How long a flag stays after its end, so that people can still see it.
pub(super) const STAYS: Duration = Duration::from_secs(3600);

/// Works out the status of each flag, by its name. `uids`: the UID of each NodeMember, by its name. `now`: its wall clock is the API
/// server's.
pub(super) fn statuses(
    flags: &BTreeMap<String, Flag>,
    uids: &BTreeMap<String, String>,
    settings: &SharedSettings,
    judge: &mut Judge,
    now: Now,
) -> BTreeMap<String, NodeFlagStatus> {
    let mut found: BTreeMap<&String, (FlagState, String)> = BTreeMap::new();
    let mut counts: Vec<(&String, NodeFlagSpec)> = Vec::new();
    for (name, flag) in flags {
        if flag.metadata.deletion_timestamp.is_some() {
            found.insert(name, (FlagState::Over, "it is being deleted".to_owned()));
            continue;
        }
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
        found.insert(name, stands(spec, standing, settings, now));
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
    settings: &SharedSettings,
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
        Some(_) if settings.opted_out.contains(node.as_str()) => {
            // Agents do not count it in their limits either.
            let message = "NodefenceSettings/default opts the node out: its traffic passes".to_owned();
            return Some((FlagState::Accepted, message));
        }
        Some(_) => return None,
    };
    Some((FlagState::NodeUnknown, message))
}

/// What follows from how the claim stands.
fn stands(
    spec: &NodeFlagSpec,
    standing: Standing,
    settings: &SharedSettings,
    now: Now,
) -> (FlagState, String) {
    match standing {
        Standing::Over => (FlagState::Over, format!("it ended at {}", spec.until)),
        Standing::Unknown => (FlagState::NodeUnknown, format!("there is no NodeMember {}", spec.node)),
        Standing::Withheld(scopes) => {
            let scopes = scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let Share { part, of } = settings.limit;
            let message =
                format!("more than {part}/{of} of these are claimed: {scopes}; `force: true` overrides it");
            (FlagState::Withheld, message)
        }
        Standing::Enforced | Standing::Observed | Standing::Off | Standing::OptedOut => {
            (FlagState::Accepted, accepted(settings, now))
        }
    }
}

/// What agents do about a flag that counts.
fn accepted(settings: &SharedSettings, now: Now) -> String {
    let pause = settings.holding(now).next();
    match (settings.mode, pause) {
        _ if settings.off => "nothing is cut: the mode of NodefenceSettings/default is off".to_owned(),
        (Mode::Observe, _) => {
            "agents count what they would cut: the mode of NodefenceSettings/default is observe".to_owned()
        }
        (Mode::Enforce, Some(pause)) => {
            format!("agents count what they would cut: NodefenceSettings/default is paused by {}", pause.by)
        }
        (Mode::Enforce, None) => "agents cut the node, as far as their own mode lets them".to_owned(),
    }
}

/// Whether a flag ended so long ago that it is to be deleted. `now`: by the clock furthest behind, since a deletion cannot be taken back.
pub(super) fn is_to_be_deleted(flag: &Flag, now: Timestamp) -> bool {
    let gone = read(flag).ok().and_then(|spec| spec.until.checked_add(STAYS).ok());
    gone.is_some_and(|gone| gone <= now) && flag.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        enforce::{JudgedNode, SharedPause},
        source::kubernetes::{ServerClock, shared_settings},
    };

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

    /// What agents make of these settings.
    fn settings(spec: serde_json::Value) -> SharedSettings {
        shared_settings(&spec, &ServerClock::default(), at(NOW)).unwrap()
    }

    /// Judges these flags of three nodes. Only one may be claimed.
    fn judged(flags: &[(&str, Flag)], settings: &SharedSettings) -> Vec<String> {
        let flags = flags.iter().map(|(name, flag)| ((*name).to_owned(), flag.clone())).collect();
        let nodes = ["a", "b", "c"];
        let uids = nodes.map(|node| (node.to_owned(), format!("uid-{node}"))).into();
        let mut judge = Judge::new(settings.limit);
        judge.open(nodes.map(|node| JudgedNode { name: node.into(), zone: None, pool: None }));
        let found = statuses(&flags, &uids, settings, &mut judge, at(NOW));
        let text = |(name, status): (&String, &NodeFlagStatus)| {
            format!("{name} {:?} {}: {}", status.state, status.observed_generation, status.message)
        };
        found.iter().map(text).collect()
    }

    const LATER: &str = "2026-06-01T13:00:00Z";

    #[test]
    fn a_flag_that_is_being_deleted_is_over_and_takes_no_ones_place() {
        let enforce = settings(json!({"mode": "enforce"}));
        let mut leaving = flag("a", "uid-a", LATER, false);
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
        let texts = judged(&[("f1", leaving), ("f2", flag("b", "uid-b", LATER, false))], &enforce);
        assert_eq!(texts[0], "f1 Over 3: it is being deleted");
        assert!(texts[1].starts_with("f2 Accepted 3: "), "{texts:?}");
    }

    #[test]
    fn each_state_says_why() {
        let enforce = settings(json!({"mode": "enforce"}));
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
        let settings = settings(json!({}));
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
        opted_out.opted_out = ["b".into()].into();
        assert_eq!(judged(&both(false), &opted_out)[0], format!("f1 Accepted 3: {observed}"));
        let wider = SharedSettings { limit: Share { part: 2, of: 3 }, ..settings };
        assert_eq!(judged(&both(false), &wider)[1], format!("f2 Accepted 3: {observed}"));
    }

    #[test]
    fn the_settings_say_what_accepted_means() {
        let of = |settings: &SharedSettings| {
            judged(&[("f", flag("a", "uid-a", LATER, false))], settings).remove(0)
        };
        let mut off = settings(json!({"mode": "off"}));
        assert!(of(&off).ends_with("the mode of NodefenceSettings/default is off"));
        off.opted_out = ["a".into()].into();
        assert!(of(&off).ends_with("opts the node out: its traffic passes"));
    }

    #[test]
    fn a_pause_is_said_until_its_end_by_the_server_s_clock() {
        let of = |ends| {
            let pause =
                SharedPause { by: "ann".into(), reason: "a move".into(), ends: Duration::from_millis(ends) };
            let settings = SharedSettings { pauses: vec![pause], ..settings(json!({"mode": "enforce"})) };
            judged(&[("f", flag("a", "uid-a", LATER, false))], &settings).remove(0)
        };
        let paused =
            "f Accepted 3: agents count what they would cut: NodefenceSettings/default is paused by ann";
        assert_eq!(of(1_001), paused);
        // It ends at this very moment.
        assert_eq!(of(1_000), "f Accepted 3: agents cut the node, as far as their own mode lets them");
        // As the API server's object has it, by a clock of which nothing is known but the machine's own.
        let given = |until: &str| {
            let pause = json!({"by": "ann", "until": until});
            let settings = settings(json!({"mode": "enforce", "pauses": [pause]}));
            judged(&[("f", flag("a", "uid-a", LATER, false))], &settings).remove(0)
        };
        assert_eq!(given(LATER), paused);
        assert_ne!(given(NOW), paused);
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
}
