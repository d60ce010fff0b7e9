use std::time::Duration;

use serde_json::{Value, json};

use super::*;

fn now() -> Now {
    let wall = "2026-11-28T12:00:00Z".parse().expect("a time");
    Now { mono: 0, boot: Duration::from_secs(1_000), wall }
}

fn clock() -> ServerTime {
    // Without an answer the own clock counts.
    super::super::date::ServerClock::default().read(now())
}

fn read(name: &str, spec: Value) -> Result<Option<Given>, String> {
    let object: wire::Settings = serde_json::from_value(json!({
        "apiVersion": "nodefence.io/v1alpha1", "kind": "NodefenceSettings", "metadata": {"name": name}, "spec": spec,
    }))
    .expect("settings");
    object.read(&mut Texts::default())
}

fn given(spec: Value) -> Given {
    read("default", spec).expect("they can be read").expect("they count")
}

/// What is told, where something is; the inner one is `None` where there are no settings.
fn news(told: &mut SettingsTold, settings: &Settings) -> Option<Option<SharedSettings>> {
    match told.news(settings, clock())? {
        Input::Shared(shared) => Some(shared.map(|shared| SharedSettings::clone(&shared))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_fields_are_read() {
    let shared = given(json!({
        "mode": "enforce", "automatic": "off", "limit": "2/7", "optOuts": {"nodes": ["b", "a"]},
        "pauses": [{"by": "ann", "reason": "a move", "until": "2026-11-28T12:10:00Z"}],
    }))
    .shared(clock());
    let pause = SharedPause { by: "ann".into(), reason: "a move".into(), ends: Duration::from_secs(1_600) };
    let expected = SharedSettings {
        off: false,
        mode: Mode::Enforce,
        auto: Auto::Off,
        limit: Share { part: 2, of: 7 },
        pauses: vec![pause],
        opted_out: ["a".into(), "b".into()].into(),
    };
    assert_eq!(shared, expected);
    let least = given(json!({"pauses": null})).shared(clock());
    assert_eq!(
        (least.off, least.mode, least.auto, least.limit),
        (false, Mode::Observe, Auto::Observe, Share::default())
    );
    let off = given(json!({"mode": "off"})).shared(clock());
    assert_eq!((off.off, off.mode), (true, Mode::Observe));
    assert_eq!(read("other", json!({"mode": "enforce"})), Ok(None), "only one name counts");
}

#[test]
fn the_field_that_cannot_be_read_is_named() {
    for (spec, field) in [
        (json!({"mode": "on"}), "spec.mode: "),
        (json!({"automatic": 1}), "spec.automatic: "),
        (json!({"limit": "1/0"}), "spec.limit: `1/0`; expected a part of the nodes as in 1/3"),
        (json!({"limit": "half"}), "spec.limit: `half`; "),
        (json!({"pauses": [{"by": "ann"}]}), "spec.pauses: missing field `until`"),
        (json!({"optOuts": {"nodes": "a"}}), "spec.optOuts: "),
    ] {
        let why = read("default", spec).expect_err("it is wrong");
        assert!(why.starts_with(field), "{why}");
    }
}

#[test]
fn none_are_told_once_the_list_has_come() {
    let mut settings = Settings::default();
    let mut told = SettingsTold::default();
    assert_eq!(news(&mut told, &settings), None);
    settings.take(vec![SettingsChange::All(Vec::new())]);
    assert_eq!(news(&mut told, &settings), Some(None));
    assert_eq!(news(&mut told, &settings), None, "it is told once");
    settings.take(vec![SettingsChange::One(given(json!({"mode": "enforce"})))]);
    assert_eq!(news(&mut told, &settings).flatten().map(|shared| shared.mode), Some(Mode::Enforce));
    settings.take(vec![SettingsChange::Gone]);
    assert_eq!(news(&mut told, &settings), Some(None));
}

#[test]
fn the_last_good_settings_hold() {
    let mut settings = Settings::default();
    let mut told = SettingsTold::default();
    settings.take(vec![SettingsChange::All(vec![given(json!({"mode": "enforce"}))])]);
    assert!(news(&mut told, &settings).is_some());
    let unreadable = || SettingsChange::Unreadable("spec.mode: it is".to_owned());
    for changes in [vec![unreadable()], vec![SettingsChange::All(Vec::new()), unreadable()]] {
        settings.take(changes);
        assert_eq!((news(&mut told, &settings), settings.problem()), (None, Some("spec.mode: it is")));
    }
    settings.take(vec![SettingsChange::One(given(json!({"mode": "off"})))]);
    assert_eq!((settings.problem(), settings.off()), (None, Some(true)));
    assert!(news(&mut told, &settings).flatten().is_some_and(|shared| shared.off));
    // What was never readable changes nothing: what an earlier agent saved holds, and without that the agent observes.
    let mut never = Settings::default();
    let mut told = SettingsTold::default();
    never.take(vec![SettingsChange::All(Vec::new()), unreadable()]);
    assert_eq!(news(&mut told, &never), None);
    never.take(vec![SettingsChange::Gone]);
    assert_eq!(news(&mut told, &never), Some(None));
}

#[test]
fn only_what_was_read_turns_agents_off_and_on() {
    let good = |mode: &str| SettingsChange::One(given(json!({ "mode": mode })));
    let unreadable = || SettingsChange::Unreadable("spec.mode: it is".to_owned());
    let mut settings = Settings::default();
    assert_eq!(settings.off(), None, "nothing has come");
    settings.take(vec![SettingsChange::All(Vec::new()), unreadable()]);
    assert_eq!(settings.off(), None, "nothing could be read");
    settings.take(vec![good("off")]);
    assert_eq!(settings.off(), Some(true));
    settings.take(vec![unreadable()]);
    assert_eq!(settings.off(), Some(true), "the last good ones hold");
    settings.take(vec![SettingsChange::All(Vec::new()), unreadable()]);
    assert_eq!(settings.off(), Some(true), "in a new list too");
    for mode in ["observe", "enforce"] {
        settings.take(vec![good("off")]);
        settings.take(vec![good(mode)]);
        assert_eq!(settings.off(), Some(false));
    }
    settings.take(vec![good("off")]);
    settings.take(vec![SettingsChange::Gone]);
    assert_eq!(settings.off(), Some(false), "none are no word to be off");
    settings.take(vec![SettingsChange::All(Vec::new())]);
    assert_eq!(settings.off(), Some(false));
}
