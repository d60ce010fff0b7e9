//! A claim: what somebody holds against a node, and until when.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{now::Now, scope::LimitScope, shared::SharedSettings};
use crate::cluster::{FileFlag, NodeName};

/// How long an automatic claim holds whose cause names no end, unless it is renewed.
pub(crate) const AUTOMATIC_LASTS: Duration = Duration::from_secs(30);

/// Who holds a claim. A node has at most one claim of each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimSource {
    /// `nodefence flag`.
    Cli,
    /// What the cluster's source flags.
    File,
    /// A NodeFlag object of the API server. Several may flag one node.
    Object {
        /// The object's name.
        name: Arc<str>,
        /// Why, as the object says: [`ClaimCause::Operator`] or [`ClaimCause::External`].
        cause: ClaimCause,
        /// Limits do not hold for it.
        forced: bool,
        /// The machine that it flags, where that is known: another one may get the same name later.
        uid: Option<Arc<str>>,
    },
    /// Another system, by its name.
    External(Arc<str>),
    /// Detection, of a node whose workloads owe answers.
    Hung,
    /// Detection, of a node that does not answer at all.
    Unreachable,
}

/// Why a node is claimed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimCause {
    /// A person flagged the node, by command or in the source of nodes.
    Operator,
    /// Another system reported the node.
    External,
    /// Workloads of the node owe answers and cannot give them.
    Hung,
    /// The node does not answer at all.
    Unreachable,
}

impl ClaimSource {
    /// The cause of this source's claims.
    pub const fn cause(&self) -> ClaimCause {
        match self {
            Self::Cli | Self::File => ClaimCause::Operator,
            Self::Object { cause, .. } => *cause,
            Self::External(_) => ClaimCause::External,
            Self::Hung => ClaimCause::Hung,
            Self::Unreachable => ClaimCause::Unreachable,
        }
    }

    /// Whether this source's claims are automatic, made by no person: `--auto` says what is done about them, and they always end.
    pub const fn automatic(&self) -> bool {
        matches!(self, Self::External(_) | Self::Hung | Self::Unreachable)
    }

    /// Whether limits hold for this source's claims: for automatic ones, and for objects that are not forced.
    pub const fn limited(&self) -> bool {
        match self {
            Self::Cli | Self::File => false,
            Self::Object { forced, .. } => !*forced,
            Self::External(_) | Self::Hung | Self::Unreachable => true,
        }
    }

    /// The machine that this source claims, where it says so.
    pub const fn uid(&self) -> Option<&Arc<str>> {
        match self {
            Self::Object { uid, .. } => uid.as_ref(),
            _ => None,
        }
    }

    /// Whether this is an object of the API server.
    pub const fn is_object(&self) -> bool {
        matches!(self, Self::Object { .. })
    }
}

/// A claim as it is handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    /// Who holds it.
    pub source: ClaimSource,
    /// Who wants it, in words: a user, a controller.
    pub by: Arc<str>,
    /// Why, in words; may be empty.
    pub reason: Arc<str>,
    /// What was seen, of a hung node.
    pub evidence: Option<Arc<str>>,
    /// How long it holds from now on; `None` where nothing but its withdrawal ends it. An automatic one then lasts
    /// 30 seconds.
    pub lasts: Option<Duration>,
    /// When it ends by the wall clock, where whoever wants it said so in those terms.
    pub until: Option<Timestamp>,
}

impl NewClaim {
    /// A flag of the cluster's source.
    pub fn of_file(flag: &FileFlag) -> Self {
        Self {
            source: ClaimSource::File,
            by: "".into(),
            reason: flag.reason.as_str().into(),
            evidence: None,
            lasts: None,
            until: flag.until,
        }
    }
}

/// A claim as it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who holds it.
    pub source: ClaimSource,
    /// Who wants it, in words.
    pub by: Arc<str>,
    /// Why, in words.
    pub reason: Arc<str>,
    /// What was seen, of a hung node.
    pub evidence: Option<Arc<str>>,
    /// When it was first raised, by the wall clock of that moment. A renewal leaves it.
    pub since: Timestamp,
    /// The same by CLOCK_BOOTTIME.
    pub raised: Duration,
    /// When it ends, by CLOCK_BOOTTIME.
    pub ends: Option<Duration>,
    /// When it ends by the wall clock, where that was said.
    pub until: Option<Timestamp>,
}

impl Claim {
    /// The claim as it is held from now on, in place of `before`, the claim of the same source.
    pub fn raise(new: NewClaim, before: Option<&Self>, now: Now) -> Self {
        let automatic = new.source.automatic();
        let goes_on = before.filter(|before| match before.source {
            // Reading the file again does not move a flag's end, even where the wall clock was set meanwhile.
            ClaimSource::File => before.until == new.until,
            _ => (automatic || before.source.is_object()) && !before.ended(now),
        });
        let (since, raised) = goes_on.map_or((now.wall, now.boot), |before| (before.since, before.raised));
        let lasts = new.lasts.or((automatic && new.until.is_none()).then_some(AUTOMATIC_LASTS));
        let by_boot = lasts.map(|lasts| now.boot.saturating_add(lasts));
        let by_wall = new.until.map(|until| now.boot.saturating_add(left(until, now)));
        let ends = match goes_on {
            Some(before) if before.source == ClaimSource::File => before.ends,
            _ => by_boot.into_iter().chain(by_wall).min(),
        };
        Self {
            source: new.source,
            by: new.by,
            reason: new.reason,
            evidence: new.evidence,
            since,
            raised,
            ends,
            until: new.until,
        }
    }

    /// Whether this claim only prolongs `before`, which it replaces: an automatic claim that ends no sooner. An agent that finds `before` saved instead ends the
    /// claim too soon, and cuts nobody for longer.
    pub(super) fn renews(&self, before: &Self, now: Now) -> bool {
        let goes_on = self.source == before.source && self.raised == before.raised && !before.ended(now);
        let sooner = match (self.remaining(now), before.remaining(now)) {
            (Some(left), Some(before)) => left < before,
            (left, _) => left.is_some(),
        };
        self.source.automatic() && goes_on && !sooner
    }

    /// Whether the claim is over. An end in wall time is compared with both clocks, and the first to pass it counts: a wall clock
    /// that is set back cannot prolong a claim, and one that is corrected ends it in time.
    pub fn ended(&self, now: Now) -> bool {
        self.ends.is_some_and(|ends| ends <= now.boot) || self.until.is_some_and(|until| until <= now.wall)
    }

    /// How long the claim still holds; `None` where nothing but its withdrawal ends it.
    pub fn remaining(&self, now: Now) -> Option<Duration> {
        let by_boot = self.ends.map(|ends| ends.saturating_sub(now.boot));
        let by_wall = self.until.map(|until| left(until, now));
        by_boot.into_iter().chain(by_wall).min()
    }
}

/// How long it is until the wall clock shows `until`.
fn left(until: Timestamp, now: Now) -> Duration {
    Duration::try_from(until.duration_since(now.wall)).unwrap_or(Duration::ZERO)
}

/// When a claim was first raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// By the wall clock of that moment.
    pub since: Timestamp,
    /// By CLOCK_BOOTTIME.
    pub raised: Duration,
}

/// The saved state, which outlives the agent: every claim, and what the limits remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Every claim and its node.
    pub claims: Vec<(NodeName, Claim)>,
    /// The scopes whose limited claims are withheld, and since when by CLOCK_BOOTTIME.
    pub withheld: Vec<(LimitScope, Duration)>,
    /// Claims that are gone and were withheld, and when each was first raised.
    pub gone: Vec<(NodeName, ClaimSource, First)>,
    /// The settings that held for all agents.
    pub shared: Option<Arc<SharedSettings>>,
}
