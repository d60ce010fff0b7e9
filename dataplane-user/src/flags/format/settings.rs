//! The settings for all agents, as they stand in the flags file: an agent that begins while the API server does not answer goes on with them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    cluster::NodeName,
    enforce::{Auto, Share, SharedPause, SharedSettings},
    plan::Mode,
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredSettings {
    off: bool,
    mode: Mode,
    automatic: Auto,
    /// The part, and of how many.
    limit: (u32, u32),
    pauses: Vec<StoredPause>,
    opted_out: Vec<NodeName>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPause {
    by: String,
    reason: String,
    ends_boot_ns: u64,
}

/// A time in nanoseconds. 64 bits are enough for 584 years of uptime.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl StoredSettings {
    pub(super) fn of(settings: &SharedSettings) -> Self {
        let pause = |pause: &SharedPause| StoredPause {
            by: pause.by.to_string(),
            reason: pause.reason.to_string(),
            ends_boot_ns: nanoseconds(pause.ends),
        };
        Self {
            off: settings.off,
            mode: settings.mode,
            automatic: settings.auto,
            limit: (settings.limit.part, settings.limit.of),
            pauses: settings.pauses.iter().map(pause).collect(),
            opted_out: settings.opted_out.iter().cloned().collect(),
        }
    }

    pub(super) fn read(self) -> SharedSettings {
        let pause = |pause: StoredPause| SharedPause {
            by: pause.by.into(),
            reason: pause.reason.into(),
            ends: Duration::from_nanos(pause.ends_boot_ns),
        };
        SharedSettings {
            off: self.off,
            mode: self.mode,
            auto: self.automatic,
            limit: Share { part: self.limit.0, of: self.limit.1 },
            pauses: self.pauses.into_iter().map(pause).collect(),
            opted_out: self.opted_out.into_iter().collect(),
        }
    }
}
