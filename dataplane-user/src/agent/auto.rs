//! Which devices `--interface auto` wants now, and which for a while longer.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

/// A device is detached from once two looks at least this far apart found that no route needs it.
const UNNEEDED_FOR: Duration = Duration::from_secs(60);

/// Decides which devices `--interface auto` attaches to. Pure.
///
/// A device that no route needs for a moment (a flap, a routing daemon that starts beside the agent) stays attached. Otherwise
/// packets would pass uncut when the route comes back.
#[derive(Debug, Default)]
pub(super) struct Auto {
    /// Attached devices that no route needs, and when that was first seen.
    unneeded: HashMap<String, Instant>,
}

impl Auto {
    /// Returns the devices to attach to now: the `needed` ones, and those of `attached` that exist and were needed not long ago. A
    /// device that an earlier agent attached counts as needed until now.
    pub(super) fn wanted(
        &mut self,
        needed: Vec<String>,
        attached: &[String],
        exists: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<String> {
        self.unneeded.retain(|name, _| !needed.contains(name) && attached.contains(name) && exists(name));
        let mut wanted = needed;
        for name in attached {
            if wanted.contains(name) || !exists(name) {
                continue;
            }
            let since = *self.unneeded.entry(name.clone()).or_insert(now);
            if now.saturating_duration_since(since) < UNNEEDED_FOR {
                wanted.push(name.clone());
            }
        }
        wanted
    }
}

/// The devices by which routes leave, or left not long ago: as with [`Auto`], packets are cut as soon as a route comes back. Pure.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// When a route was last seen to leave by a device, by the device's index.
    seen: HashMap<u32, Instant>,
}

impl Lately {
    /// Notes the devices by which routes leave now. Returns these, and those by which routes left lately.
    pub(super) fn look(&mut self, now_by: BTreeSet<u32>, now: Instant) -> BTreeSet<u32> {
        self.seen.extend(now_by.into_iter().map(|ifindex| (ifindex, now)));
        self.seen.retain(|_, seen| now.saturating_duration_since(*seen) < UNNEEDED_FOR);
        self.seen.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_by_which_a_route_left_lately_is_known_for_a_while() {
        let mut lately = Lately::default();
        let start = Instant::now();
        let mut look = |by: &[u32], seconds| {
            let known = lately.look(by.iter().copied().collect(), start + Duration::from_secs(seconds));
            known.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(look(&[2, 5], 0), [2, 5]);
        assert_eq!(look(&[2], 59), [2, 5]);
        assert_eq!(look(&[2], 60), [2]);
        assert_eq!(look(&[], 100), [2]);
        assert_eq!(look(&[5], 121), [5]);
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_device_is_left_only_after_a_while() {
        let mut auto = Auto::default();
        let start = Instant::now();
        let mut look = |needed: &[&str], attached: &[&str], seconds| {
            let now = start + Duration::from_secs(seconds);
            auto.wanted(names(needed), &names(attached), |name| name != "gone0", now)
        };
        // A device of an earlier agent counts as needed, unless it does not exist any more.
        assert_eq!(look(&["eth0"], &["eth0", "eth1", "gone0"], 0), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0"], &["eth0", "eth1"], 59), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0"], &["eth0", "eth1"], 60), ["eth0"]);
        // Needed in between: the time begins anew.
        assert_eq!(look(&["eth0", "eth1"], &["eth0"], 65), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0"], &["eth0", "eth1"], 70), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0", "eth1"], &["eth0", "eth1"], 100), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0"], &["eth0", "eth1"], 129), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0"], &["eth0", "eth1"], 188), ["eth0", "eth1"]);
        assert_eq!(look(&["eth0"], &["eth0", "eth1"], 189), ["eth0"]);
        // A single look never detaches from a device, however late it comes.
        assert_eq!(look(&[], &["eth0"], 10_000), ["eth0"]);
    }
}
