//! Finds out how this kernel treats answers and challenges. The probes try it, since the kernel's version does not tell: distributions
//! backport.
//!
//! Each probe runs on a thread of its own in a network namespace of its own, which ends with the thread. The host's namespace is never
//! touched. If a probe fails, the choice that works on every kernel is taken, and the finding says why the probe failed.
use std::{
    fmt,
    path::Path,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};
use nodefence_common::ANSWERS_PER_SECOND;
use serde::{Deserialize, Serialize};

use super::challenge::Manner;
use crate::conntrack::{ByFilter, by_filter};

mod far;
mod ipvs;
mod nft;

pub use far::Conntrack;

/// A probe that takes longer has failed. A probe takes milliseconds on an idle machine, and may take a second on a crowded or emulated one.
/// A failed probe costs every idle client a second challenge.
const LIMIT: Duration = Duration::from_secs(5);
/// The limit of the probe that loads the programs. Loading takes as long as the verifier does: fractions of a second on hardware, many
/// seconds in an emulator. The agent loads the same programs right afterwards, so waiting costs no more than that.
const LOADING_LIMIT: Duration = Duration::from_secs(60);

/// This file exists if conntrack is loaded.
const CONNTRACK: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// The result of a probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Finding_of_{T}")]
pub enum Finding<T> {
    /// The probe ran and found this.
    Found(T),
    /// The probe was not needed on this node, for this reason.
    NotNeeded(String),
    /// The probe failed, for this reason.
    Failed(String),
}

/// What the findings depend on, and what may be loaded long after the agent started: at boot kube-proxy loads ip_vs when it first syncs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Present {
    /// IPVS is loaded.
    pub ipvs: bool,
    /// conntrack is loaded.
    pub conntrack: bool,
}

impl Present {
    /// Looks for files of both. This is cheap, and loads nothing: the kernel loads a module only if a request names it.
    pub fn now() -> Self {
        Self { ipvs: ipvs::is_loaded(), conntrack: Path::new(CONNTRACK).exists() }
    }
}

/// The results of the probes of this kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Findings {
    /// Which challenges conntrack translates.
    pub conntrack: Finding<Conntrack>,
    /// Whether IPVS translates a RST back that was made from the client's own segment and redirected. A kernel without de2c211868b9 does not
    /// ("ipvs: Always clear ipvs_property flag in skb_scrub_packet()", 6.14 and stable branches).
    pub ipvs_translates: Finding<bool>,
    /// Where the kernel deletes conntrack entries by filter, exactly those that the filter names.
    pub deletes_by_filter: Finding<ByFilter>,
    /// Duration of all probes, in milliseconds.
    pub milliseconds: u64,
}

impl Findings {
    /// Runs the probes one after the other, each within a limit. Blocks.
    pub fn gather() -> Self {
        let start = Instant::now();
        let conntrack = in_own_namespace("probe-conntrack", LIMIT, CloneFlags::empty(), far::probe);
        let ipvs_translates = match ipvs::is_loaded() {
            true => in_own_namespace("probe-ipvs", LOADING_LIMIT, CloneFlags::CLONE_NEWNS, ipvs::probe),
            false => Finding::NotNeeded("IPVS is not in use (no /proc/net/ip_vs)".to_owned()),
        };
        let deletes_by_filter = in_own_namespace("probe-delete", LIMIT, CloneFlags::empty(), by_filter);
        let milliseconds = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Self { conntrack, ipvs_translates, deletes_by_filter, milliseconds }
    }

    /// Whether to gather again: what was missing `then`, when the probes ran, is there `now`. A module that is unloaded needs no new probe:
    /// the choice that was made with it works without it too.
    pub fn outdated(&self, then: Present, now: Present) -> bool {
        let ipvs = now.ipvs && matches!(self.ipvs_translates, Finding::NotNeeded(_));
        let conntrack = now.conntrack && !then.conntrack && !matches!(self.conntrack, Finding::Found(_));
        ipvs || conntrack
    }

    /// How to challenge idle clients on this kernel.
    pub fn manner(&self) -> Manner {
        let mut manner = Manner::default();
        // Without a finding the default tries both ways, one after the other.
        if let Finding::Found(conntrack) = self.conntrack {
            manner.syn_ack = conntrack.syn_ack;
            manner.far_is_invalid = !conntrack.far_past;
        }
        if self.inject() {
            // The answers to the clients' replies are taken from this budget, and each challenged client replies once.
            manner.per_second = ANSWERS_PER_SECOND * 4 / 5;
        }
        manner
    }

    /// How to delete the conntrack entries of backends on this kernel.
    pub fn by_filter(&self) -> ByFilter {
        match self.deletes_by_filter {
            Finding::Found(by_filter) => by_filter,
            Finding::NotNeeded(_) | Finding::Failed(_) => ByFilter::default(),
        }
    }

    /// Whether answers must be injected instead of made in place ([`nodefence_common::config_flags::INJECT`]).
    pub fn inject(&self) -> bool {
        match self.ipvs_translates {
            Finding::Found(translates) => !translates,
            Finding::NotNeeded(_) => false,
            Finding::Failed(_) => true,
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.conntrack {
            Finding::Found(Conntrack { syn_ack, far_past, liberal }) => write!(
                f,
                "idle clients are challenged by {}, then by {}",
                if *syn_ack { "SYN|ACK" } else { "ACK" },
                match (far_past, liberal) {
                    (true, _) => "ACK",
                    (false, true) => "ACK on flows made liberal",
                    (false, false) => "ACK, which conntrack is not known to translate",
                }
            )?,
            Finding::NotNeeded(reason) | Finding::Failed(reason) => {
                write!(f, "how conntrack treats challenges is unknown, so all ways are tried ({reason})")?;
            }
        }
        match &self.deletes_by_filter {
            Finding::Found(by_filter) => write!(f, "; conntrack entries are deleted {by_filter}")?,
            Finding::NotNeeded(reason) | Finding::Failed(reason) => {
                write!(f, "; conntrack entries are deleted one by one ({reason})")?;
            }
        }
        match &self.ipvs_translates {
            Finding::Found(true) => write!(f, "; RSTs are made in place"),
            Finding::Found(false) => {
                write!(f, "; RSTs are injected, since IPVS does not translate one made in place")
            }
            Finding::NotNeeded(reason) => write!(f, "; RSTs are made in place: {reason}"),
            Finding::Failed(reason) => write!(f, "; RSTs are injected: {reason}"),
        }
    }
}

/// Runs a probe on a thread of its own, in a network namespace of its own. `more` are other kinds of namespaces that the probe needs.
fn in_own_namespace<T: Send + 'static>(
    name: &str,
    limit: Duration,
    more: CloneFlags,
    probe: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Finding<T> {
    let (send, receive) = channel();
    let run = move || {
        let result = unshare(CloneFlags::CLONE_NEWNET | more)
            .map_err(|errno| format!("cannot make a network namespace: {errno}"))
            .and_then(|()| probe());
        let _ = send.send(result);
    };
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(run) {
        return Finding::Failed(format!("cannot start a thread: {error}"));
    }
    match receive.recv_timeout(limit) {
        Ok(Ok(found)) => Finding::Found(found),
        Ok(Err(reason)) => Finding::Failed(reason),
        Err(RecvTimeoutError::Timeout) => Finding::Failed(format!("not done within {limit:?}")),
        Err(RecvTimeoutError::Disconnected) => {
            Finding::Failed("the probe ended without an answer".to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
