//! NodeFlags: which claims follow from them. Pure.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::Deserialize as _;

use super::{date::ServerTime, machines::Machines, read::Read, wire};
use crate::{
    cluster::NodeName,
    crds::NodeFlagSpec,
    enforce::{Change, ClaimCause, ClaimSource, Input, NewClaim, Now},
    source::Texts,
};

/// A NodeFlag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flag {
    name: Arc<str>,
    node: NodeName,
    /// The UID of the node.
    uid: Arc<str>,
    by: Arc<str>,
    reason: Arc<str>,
    cause: ClaimCause,
    forced: bool,
    /// When it ends, by the API server's clock.
    ends: Timestamp,
}

impl Flag {
    fn source(&self) -> ClaimSource {
        ClaimSource::Object {
            name: Arc::clone(&self.name),
            cause: self.cause,
            forced: self.forced,
            uid: Some(Arc::clone(&self.uid)),
        }
    }
}

/// What is told of NodeFlags.
#[derive(Clone, Debug)]
pub(super) enum FlagChange {
    /// All of them.
    All(Vec<Flag>),
    /// One is new, or changed.
    One(Flag),
    /// The one of that name is gone.
    Gone(Arc<str>),
    /// The one of that name cannot be read, and why.
    LeftOut(Arc<str>, String),
}

impl wire::Flag {
    fn name(&self) -> Arc<str> {
        self.metadata.name.as_deref().unwrap_or_default().into()
    }
}

impl Read for wire::Flag {
    type Object = Flag;
    type Change = FlagChange;
    type Fault = (Arc<str>, String);

    fn read(&self, _: &mut Texts) -> Result<Option<Flag>, Self::Fault> {
        // Somebody deleted it, and a finalizer keeps the object: for as long as the garbage collector is slow, for example.
        if self.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let spec = NodeFlagSpec::deserialize(&self.spec)
            .map_err(|error| (self.name(), format!("its spec cannot be read: {error}")))?;
        let ends = spec.ends(self.metadata.creation_timestamp.as_ref().map(|created| created.0));
        Ok(Some(Flag {
            name: self.name(),
            node: spec.node.into(),
            uid: spec.uid.into(),
            by: spec.by.unwrap_or_default().into(),
            reason: spec.reason.into(),
            cause: spec.cause.into(),
            forced: spec.force,
            ends,
        }))
    }

    fn single(flag: Flag) -> FlagChange {
        FlagChange::One(flag)
    }

    fn list(flags: Vec<Flag>) -> FlagChange {
        FlagChange::All(flags)
    }

    fn gone(&self) -> FlagChange {
        FlagChange::Gone(self.name())
    }

    fn left_out((name, why): Self::Fault) -> FlagChange {
        FlagChange::LeftOut(name, why)
    }
}

/// Why a flag means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ignored {
    Unreadable(String),
    NoMember(NodeName),
    OtherMachine { node: NodeName, flagged: Arc<str>, there: Arc<str> },
}

impl Ignored {
    /// Whether the flag itself is wrong. Otherwise its machine is gone, or another one, as after any replacement of a node.
    pub(super) const fn is_unreadable(&self) -> bool {
        matches!(self, Self::Unreadable(_))
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => f.write_str(why),
            Self::NoMember(node) => write!(f, "spec.node: there is no NodeMember `{}` with a UID", &**node),
            Self::OtherMachine { node, flagged, there } => {
                write!(f, "spec.uid: the flag is for UID {flagged}, and `{}` has UID {there}", &**node)
            }
        }
    }
}

/// What was told of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claimed {
    flag: Flag,
    /// When it ends, by CLOCK_BOOTTIME.
    ends: Duration,
}

impl Claimed {
    fn claim(&self, now: Now) -> NewClaim {
        NewClaim {
            source: self.flag.source(),
            by: Arc::clone(&self.flag.by),
            reason: Arc::clone(&self.flag.reason),
            evidence: None,
            lasts: Some(self.ends.saturating_sub(now.boot)),
            // By the API server's clock, not by this node's.
            until: None,
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.flag.node == other.flag.node && self.flag.source() == other.flag.source()
    }
}

/// All flags, and what was told of them.
#[derive(Debug, Default)]
pub(super) struct Flags {
    known: BTreeMap<Arc<str>, Flag>,
    unreadable: BTreeMap<Arc<str>, String>,
    /// The first list has come to its end.
    are_listed: bool,
    /// `None`: nothing was told yet.
    told: Option<BTreeMap<Arc<str>, Claimed>>,
    ignored: BTreeMap<Arc<str>, Ignored>,
    /// Those that nobody was told of.
    unsaid: Vec<(Arc<str>, Ignored)>,
}

impl Flags {
    /// Takes what the API server tells.
    pub(super) fn take(&mut self, change: FlagChange) {
        match change {
            FlagChange::All(flags) => {
                self.known = flags.into_iter().map(|flag| (Arc::clone(&flag.name), flag)).collect();
                self.unreadable.clear();
                self.are_listed = true;
            }
            FlagChange::One(flag) => {
                self.unreadable.remove(&flag.name);
                self.known.insert(Arc::clone(&flag.name), flag);
            }
            FlagChange::Gone(name) => {
                self.known.remove(&name);
                self.unreadable.remove(&name);
            }
            FlagChange::LeftOut(name, why) => {
                self.known.remove(&name);
                self.unreadable.insert(name, why);
            }
        }
    }

    /// What the Enforcer is to be told now: at first all claims, and then each that changed. Until all flags and all members are listed, nothing: claims of
    /// an earlier agent must not be taken back for objects that have not come yet.
    pub(super) fn news(&mut self, machines: &Machines, clock: ServerTime, now: Now) -> Vec<Input> {
        if !(self.are_listed && machines.are_listed()) {
            return Vec::new();
        }
        let wanted = self.wanted(machines, clock, now);
        let inputs = match &self.told {
            None => {
                let all = wanted.values().map(|claimed| (claimed.flag.node.clone(), claimed.claim(now)));
                vec![Input::Objects(all.collect())]
            }
            Some(told) => changed(told, &wanted, now),
        };
        self.told = Some(wanted);
        inputs
    }

    fn wanted(&mut self, machines: &Machines, clock: ServerTime, now: Now) -> BTreeMap<Arc<str>, Claimed> {
        let unreadable = self.unreadable.iter();
        let mut ignored: BTreeMap<_, _> =
            unreadable.map(|(name, why)| (Arc::clone(name), Ignored::Unreadable(why.clone()))).collect();
        let mut wanted = BTreeMap::new();
        for (name, flag) in &self.known {
            let ends = clock.first_shows(flag.ends);
            if ends <= now.boot {
                continue;
            }
            match machines.uid(&flag.node) {
                Some(uid) if *uid == flag.uid => {
                    wanted.insert(Arc::clone(name), Claimed { flag: flag.clone(), ends });
                }
                Some(uid) => {
                    let node = flag.node.clone();
                    let why =
                        Ignored::OtherMachine { node, flagged: flag.uid.clone(), there: Arc::clone(uid) };
                    ignored.insert(Arc::clone(name), why);
                }
                None => drop(ignored.insert(Arc::clone(name), Ignored::NoMember(flag.node.clone()))),
            }
        }
        self.unsaid.extend(
            ignored
                .iter()
                .filter(|(name, why)| self.ignored.get(*name) != Some(*why))
                .map(|(name, why)| (Arc::clone(name), why.clone())),
        );
        self.ignored = ignored;
        wanted
    }

    /// Flags that newly mean nothing, and why. Each is given once.
    pub(super) fn newly_ignored(&mut self) -> Vec<(Arc<str>, Ignored)> {
        std::mem::take(&mut self.unsaid)
    }

    /// Whether the first list was told.
    pub(super) const fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Flags that mean nothing, and why.
    pub(super) fn ignored(&self) -> impl Iterator<Item = (&Arc<str>, &Ignored)> {
        self.ignored.iter()
    }
}

/// What changed between two states.
fn changed(told: &BTreeMap<Arc<str>, Claimed>, wanted: &BTreeMap<Arc<str>, Claimed>, now: Now) -> Vec<Input> {
    let input = |node: &NodeName, change| Input::Claim { node: node.clone(), change, ticket: None };
    // New claims come first, so that a flag that becomes a forced one leaves no gap.
    let gone =
        told.iter().filter(|(name, before)| !wanted.get(*name).is_some_and(|after| after.is_of(before)));
    let gone = gone.map(|(_, before)| input(&before.flag.node, Change::Withdraw(before.flag.source())));
    let new = wanted.iter().filter(|(name, after)| told.get(*name) != Some(*after));
    let new = new.map(|(_, after)| {
        input(&after.flag.node, Change::Raise { claim: after.claim(now), force: after.flag.forced })
    });
    new.chain(gone).collect()
}

#[cfg(test)]
mod tests;
