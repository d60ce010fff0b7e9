//! Objects for tests.

use std::time::Duration;

use jiff::Timestamp;

use super::known::Known;
use crate::crds::{
    FlagCause, NodeFlag, NodeFlagSpec, NodeMember, NodeMemberSpec, NodefenceSettings, NodefenceSettingsSpec,
    Pause, SETTINGS_NAME, SettingsMode,
};

/// The time by the API server's clock.
pub(super) fn now() -> Timestamp {
    "2026-12-01T08:00:00Z".parse().unwrap()
}

/// A member. Its UID is `uid-` and its name.
pub(super) fn member(name: &str, zone: Option<&str>, pool: Option<&str>) -> NodeMember {
    let spec = NodeMemberSpec {
        uid: format!("uid-{name}"),
        addresses: vec!["10.2.0.12".to_owned(), "fd00::12".to_owned()],
        zone: zone.map(str::to_owned),
        pool: pool.map(str::to_owned),
    };
    NodeMember::new(name, spec)
}

/// A flag for half an hour.
pub(super) fn flag(node: &str, by: &str) -> NodeFlag {
    let spec = NodeFlagSpec {
        node: node.to_owned(),
        uid: format!("uid-{node}"),
        reason: "disk is gone".to_owned(),
        cause: FlagCause::Operator,
        by: Some(by.to_owned()),
        force: false,
        until: now() + Duration::from_secs(1_800),
        long: false,
    };
    let mut flag = NodeFlag::new(&format!("{node}-7xk2p"), spec);
    flag.metadata.creation_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now() - Duration::from_secs(600)));
    flag
}

/// Settings that have agents cut.
pub(super) fn settings() -> NodefenceSettings {
    let spec = NodefenceSettingsSpec { mode: SettingsMode::Enforce, ..NodefenceSettingsSpec::default() };
    NodefenceSettings::new(SETTINGS_NAME, spec)
}

/// A pause for an hour.
pub(super) fn pause(by: &str) -> Pause {
    let until = now() + Duration::from_secs(3_600);
    Pause { by: by.to_owned(), reason: "switch is replaced".to_owned(), until }
}

/// What is known, with settings that have agents cut.
pub(super) fn known<const M: usize, const F: usize>(members: [NodeMember; M], flags: [NodeFlag; F]) -> Known {
    Known::new(now(), members.into(), flags.into(), Some(settings()))
}
