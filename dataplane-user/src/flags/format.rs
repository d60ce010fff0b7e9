//! The text of the flags file. The agent writes version 2. It reads version 1 too, which had only the CLI's flags, since an upgrade must
//! not lose a node's flag.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cluster::{self, NodeName},
    enforce::{Claim, ClaimCause, ClaimSource, First, LimitScope, Now, Saved},
};

mod settings;

use settings::{StoredSettings, nanoseconds};

const VERSION: u32 = 2;

/// The field that every version has.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

/// Version 1.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flags {
    #[serde(rename = "version")]
    _version: u32,
    boot_id: String,
    flags: Vec<Flag>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flag {
    node: NodeName,
    reason: String,
    since: Timestamp,
    ends_boot_ms: Option<u64>,
}

/// Version 2. Times are exact to the nanosecond, since limits tell claims apart by when they were raised.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    /// The boot to which the times belong: CLOCK_BOOTTIME means nothing after another boot.
    boot_id: String,
    claims: Vec<StoredClaim>,
    released: Vec<Released>,
    /// Claims that were withheld and are gone. Where there are none the field is left out, so that an agent that does not know it can
    /// still read the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<StoredGone>,
    /// The settings that hold for all agents. An agent with a cluster file has none, and leaves the field out for the same reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<StoredSettings>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredClaim {
    node: NodeName,
    source: StoredSource,
    by: String,
    reason: String,
    evidence: Option<String>,
    since: Timestamp,
    raised_boot_ns: u64,
    ends_boot_ns: Option<u64>,
    until: Option<Timestamp>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Word", into = "Word")]
struct StoredSource(ClaimSource);

/// The source of a claim as it stands in the file: a word, or the name of another system or of an object.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Word {
    Known(String),
    Other {
        external: String,
    },
    Object {
        object: String,
        cause: ClaimCause,
        forced: bool,
        /// An agent of an earlier version has not stored it, and takes no notice of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<String>,
    },
}

const CLI: &str = "cli";
/// The word for the source of nodes, whichever it is. It is the word of the first such source, the cluster file, which agents of all
/// versions can read.
const OF_SOURCE: &str = cluster::FILE.key();
const HUNG: &str = "hung";
const UNREACHABLE: &str = "unreachable";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredGone {
    node: NodeName,
    source: StoredSource,
    since: Timestamp,
    raised_boot_ns: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Released {
    scope: StoredScope,
    since_boot_ns: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StoredScope {
    Whole,
    Zone(String),
    Pool(String),
}

/// Reads the claims from the file's text, where that is of this boot.
///
/// # Errors
/// The reason why the file is not accepted, as a text that follows the file's name.
pub(super) fn read(text: &str, boot_id: &str, now: Now) -> Result<Saved, String> {
    let stored = match parse::<Header>(text)?.version {
        1 => parse::<Flags>(text)?.upgraded(now),
        VERSION => parse::<Stored>(text)?,
        other => return Err(format!("is of version {other}, expected {VERSION}")),
    };
    if stored.boot_id != boot_id {
        return Err("is from before the machine booted".into());
    }
    // Only the CLI's claims are dropped once they are over. A claim of the source stays, as it does in memory: the source may still have
    // it, and a wall clock that was set back must not extend it. An automatic claim stays too: where a limit withheld it, its cause must
    // not raise it as a new one.
    let holds = |claim: &Claim| claim.source != ClaimSource::Cli || !claim.ended(now);
    let claims = stored.claims.into_iter().map(StoredClaim::read).filter(|(_, claim)| holds(claim));
    let released = stored
        .released
        .into_iter()
        .map(|released| (released.scope.read(), Duration::from_nanos(released.since_boot_ns)));
    let gone = stored.gone.into_iter().map(StoredGone::read);
    Ok(Saved {
        claims: claims.collect(),
        withheld: released.collect(),
        gone: gone.collect(),
        shared: stored.settings.map(|settings| settings.read().into()),
    })
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("is damaged: {error}"))
}

/// Makes the file's text, with a line feed at its end.
///
/// # Errors
/// Where the claims cannot be written as JSON.
pub(super) fn write(saved: &Saved, boot_id: &str) -> serde_json::Result<Vec<u8>> {
    let released = saved
        .withheld
        .iter()
        .map(|(scope, since)| Released { scope: StoredScope::of(scope), since_boot_ns: nanoseconds(*since) });
    let stored = Stored {
        version: VERSION,
        boot_id: boot_id.to_owned(),
        claims: saved.claims.iter().map(|(node, claim)| StoredClaim::of(node, claim)).collect(),
        released: released.collect(),
        gone: saved.gone.iter().map(|(node, source, first)| StoredGone::of(node, source, *first)).collect(),
        settings: saved.shared.as_deref().map(StoredSettings::of),
    };
    let mut text = serde_json::to_vec_pretty(&stored)?;
    text.push(b'\n');
    Ok(text)
}

impl Flags {
    /// The same flags in version 2.
    fn upgraded(self, now: Now) -> Stored {
        let claim = |flag: Flag| StoredClaim {
            node: flag.node,
            source: StoredSource(ClaimSource::Cli),
            by: String::new(),
            reason: flag.reason,
            evidence: None,
            since: flag.since,
            // Version 1 did not store this time. Only the limits use it, and they do not apply to flags that a person set.
            raised_boot_ns: nanoseconds(now.boot),
            ends_boot_ns: flag.ends_boot_ms.map(|ends| ends.saturating_mul(1_000_000)),
            until: None,
        };
        Stored {
            version: VERSION,
            boot_id: self.boot_id,
            claims: self.flags.into_iter().map(claim).collect(),
            released: Vec::new(),
            gone: Vec::new(),
            settings: None,
        }
    }
}

impl StoredClaim {
    fn of(node: &NodeName, claim: &Claim) -> Self {
        Self {
            node: node.clone(),
            source: StoredSource(claim.source.clone()),
            by: claim.by.to_string(),
            reason: claim.reason.to_string(),
            evidence: claim.evidence.as_ref().map(ToString::to_string),
            since: claim.since,
            raised_boot_ns: nanoseconds(claim.raised),
            ends_boot_ns: claim.ends.map(nanoseconds),
            until: claim.until,
        }
    }

    fn read(self) -> (NodeName, Claim) {
        let claim = Claim {
            source: self.source.0,
            by: self.by.into(),
            reason: self.reason.into(),
            evidence: self.evidence.map(Into::into),
            since: self.since,
            raised: Duration::from_nanos(self.raised_boot_ns),
            ends: self.ends_boot_ns.map(Duration::from_nanos),
            until: self.until,
        };
        (self.node, claim)
    }
}

impl StoredGone {
    fn of(node: &NodeName, source: &ClaimSource, first: First) -> Self {
        Self {
            node: node.clone(),
            source: StoredSource(source.clone()),
            since: first.since,
            raised_boot_ns: nanoseconds(first.raised),
        }
    }

    fn read(self) -> (NodeName, ClaimSource, First) {
        let first = First { since: self.since, raised: Duration::from_nanos(self.raised_boot_ns) };
        (self.node, self.source.0, first)
    }
}

impl From<StoredSource> for Word {
    fn from(source: StoredSource) -> Self {
        let word = match source.0 {
            ClaimSource::Cli => CLI,
            ClaimSource::File => OF_SOURCE,
            ClaimSource::External(name) => return Self::Other { external: name.to_string() },
            ClaimSource::Object { name, cause, forced, uid } => {
                let uid = uid.map(|uid| uid.to_string());
                return Self::Object { object: name.to_string(), cause, forced, uid };
            }
            ClaimSource::Hung => HUNG,
            ClaimSource::Unreachable => UNREACHABLE,
        };
        Self::Known(word.to_owned())
    }
}

impl TryFrom<Word> for StoredSource {
    type Error = String;

    fn try_from(word: Word) -> Result<Self, String> {
        Ok(Self(match word {
            Word::Known(word) if word == CLI => ClaimSource::Cli,
            Word::Known(word) if word == OF_SOURCE => ClaimSource::File,
            Word::Known(word) if word == HUNG => ClaimSource::Hung,
            Word::Known(word) if word == UNREACHABLE => ClaimSource::Unreachable,
            Word::Known(word) => return Err(format!("unknown source `{word}`")),
            Word::Other { external } => ClaimSource::External(external.into()),
            Word::Object { object, cause, forced, uid } => {
                ClaimSource::Object { name: object.into(), cause, forced, uid: uid.map(Into::into) }
            }
        }))
    }
}

impl StoredScope {
    fn of(scope: &LimitScope) -> Self {
        match scope {
            LimitScope::Whole => Self::Whole,
            LimitScope::Zone(zone) => Self::Zone(zone.to_string()),
            LimitScope::Pool(pool) => Self::Pool(pool.to_string()),
        }
    }

    fn read(self) -> LimitScope {
        match self {
            Self::Whole => LimitScope::Whole,
            Self::Zone(zone) => LimitScope::Zone(zone.into()),
            Self::Pool(pool) => LimitScope::Pool(pool.into()),
        }
    }
}
