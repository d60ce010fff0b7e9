//! What the API server knows of nodefence at one moment. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;

use crate::{
    crds::{
        FlagState, NodeFlag, NodeMember, NodefenceSettings, NodefenceSettingsSpec, Pause, Raw, SettingsMode,
    },
    enforce::{LimitScope, Share},
};

/// Members, flags and settings.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The time by the API server's clock.
    pub(super) now: Timestamp,
    /// The members, by name.
    pub(super) members: BTreeMap<String, NodeMember>,
    /// All flags, by name.
    pub(super) flags: Vec<NodeFlag>,
    /// What the settings say. `None` where there are none, or where they cannot be read.
    pub(super) settings: Option<NodefenceSettingsSpec>,
    /// The objects that cannot be read.
    pub(super) unread: Vec<Unread>,
}

/// An object that cannot be read. Agents leave it out too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// Its kind.
    pub(super) kind: &'static str,
    /// Its name.
    pub(super) name: String,
    /// The node that a flag names, where at least that can be read.
    pub(super) node: Option<String>,
    /// Why it cannot be read.
    pub(super) why: String,
}

impl Unread {
    /// The object and the reason in words.
    pub(super) fn text(&self) -> String {
        let Self { kind, name, why, .. } = self;
        let agents = match *kind {
            SETTINGS => "each agent goes by the last that it could read",
            _ => "agents leave it out",
        };
        format!("{kind}/{name} cannot be read, and {agents}: {why}")
    }
}

const FLAG: &str = "NodeFlag";
const SETTINGS: &str = "NodefenceSettings";

/// Reads objects. Those that cannot be read are put aside.
fn read<K: DeserializeOwned>(kind: &'static str, raw: Vec<Raw<K>>, unread: &mut Vec<Unread>) -> Vec<K> {
    let mut objects = Vec::new();
    for object in raw {
        match object.read() {
            Ok(object) => objects.push(object),
            Err(error) => unread.push(Unread {
                kind,
                name: object.metadata.name.clone().unwrap_or_default(),
                node: object.spec()["node"].as_str().map(str::to_owned),
                why: error.to_string(),
            }),
        }
    }
    objects
}

/// What agents do about a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// They cut.
    Cut,
    /// They count what they would cut.
    Observe,
    /// Nothing, or nobody knows.
    Nothing,
}

impl Known {
    /// Sorts what was read.
    pub(super) fn new(
        now: Timestamp,
        members: Vec<NodeMember>,
        mut flags: Vec<NodeFlag>,
        settings: Option<NodefenceSettings>,
    ) -> Self {
        flags.sort_by_key(|flag| (flag.spec.node.clone(), flag.name_any()));
        let members = members.into_iter().map(|member| (member.name_any(), member)).collect();
        let settings = settings.map(|settings| settings.spec);
        Self { now, members, flags, settings, unread: Vec::new() }
    }

    /// Reads and sorts what the API server sent.
    pub(super) fn read(
        now: Timestamp,
        members: Vec<Raw<NodeMember>>,
        flags: Vec<Raw<NodeFlag>>,
        settings: Option<Raw<NodefenceSettings>>,
    ) -> Self {
        let mut unread = Vec::new();
        let members = read("NodeMember", members, &mut unread);
        let flags = read(FLAG, flags, &mut unread);
        let settings = read(SETTINGS, settings.into_iter().collect(), &mut unread).pop();
        Self { unread, ..Self::new(now, members, flags, settings) }
    }

    /// The flags that cannot be read.
    pub(super) fn unread_flags(&self) -> impl Iterator<Item = &Unread> {
        self.unread.iter().filter(|unread| unread.kind == FLAG)
    }

    /// The settings, where they cannot be read.
    pub(super) fn unread_settings(&self) -> Option<&Unread> {
        self.unread.iter().find(|unread| unread.kind == SETTINGS)
    }

    /// Which objects cannot be read, and why, in words.
    pub(super) fn unread_texts(&self) -> Vec<String> {
        self.unread.iter().map(Unread::text).collect()
    }

    /// Why a flag does not hold now. `None` where it holds, as far as modes and limits let it.
    pub(super) fn idle(&self, flag: &NodeFlag) -> Option<FlagState> {
        let created = flag.metadata.creation_timestamp.as_ref().map(|created| created.0);
        if flag.spec.ends(created) <= self.now || flag.metadata.deletion_timestamp.is_some() {
            return Some(FlagState::Over);
        }
        let member = self.members.get(&flag.spec.node);
        match member {
            Some(member) if member.spec.uid == flag.spec.uid => None,
            _ => Some(FlagState::NodeUnknown),
        }
    }

    /// The flags that hold now.
    pub(super) fn held(&self) -> impl Iterator<Item = &NodeFlag> {
        self.flags.iter().filter(|flag| self.idle(flag).is_none())
    }

    /// The flags of a node, those that are over too.
    pub(super) fn of_node<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a NodeFlag> {
        self.flags.iter().filter(move |flag| flag.spec.node == node)
    }

    /// How many nodes of a set may be claimed.
    pub(super) fn limit(&self) -> Share {
        let share = self.settings.as_ref().and_then(NodefenceSettingsSpec::share);
        // No agent takes one that cannot be read.
        share.unwrap_or_default()
    }

    /// The pauses that hold now.
    pub(super) fn pauses(&self) -> impl Iterator<Item = &Pause> {
        let all = self.settings.iter().flat_map(|settings| &settings.pauses);
        all.filter(|pause| pause.until > self.now)
    }

    /// What agents do about flags by these settings, and why.
    pub(super) fn does(&self) -> (Does, String) {
        if let Some(unread) = self.unread_settings() {
            return (Does::Nothing, unread.text());
        }
        let Some(settings) = &self.settings else {
            let why = "there is no NodefenceSettings/default: agents only observe";
            return (Does::Observe, why.to_owned());
        };
        match settings.mode {
            SettingsMode::Off => (Does::Nothing, "the mode is off: agents cut nothing".to_owned()),
            SettingsMode::Observe => {
                (Does::Observe, "the mode is observe: agents only count what they would cut".to_owned())
            }
            SettingsMode::Enforce => match self.pauses().max_by_key(|pause| pause.until) {
                Some(pause) => (Does::Observe, format!("{}: agents only observe", paused(pause))),
                None => (Does::Cut, "the mode is enforce: agents cut".to_owned()),
            },
        }
    }

    /// Whether the settings leave a node out.
    pub(super) fn is_opted_out(&self, node: &str) -> bool {
        let opted_out = self.settings.as_ref().map(|settings| &settings.opt_outs.nodes);
        opted_out.is_some_and(|nodes| nodes.iter().any(|name| name == node))
    }
}

/// A pause in words.
pub(super) fn paused(pause: &Pause) -> String {
    let reason = if pause.reason.is_empty() { String::new() } else { format!(" ({})", pause.reason) };
    format!("paused by {} until {:.0}{reason}", pause.by, pause.until)
}

/// The sets of nodes in which a node counts.
pub(super) fn scopes(member: &NodeMember) -> Vec<LimitScope> {
    let zone = member.spec.zone.as_deref().map(|zone| LimitScope::Zone(zone.into()));
    let pool = member.spec.pool.as_deref().map(|pool| LimitScope::Pool(pool.into()));
    [Some(LimitScope::Whole), zone, pool].into_iter().flatten().collect()
}
