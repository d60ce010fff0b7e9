//! The kernel's routing and IPsec policies as they were last read, and when they are to be read anew.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::timed::timed;
use crate::{
    cluster::{ClusterView, Node},
    dataplane::{self, Interface, policies, route_table},
    routes::{Blocks, Policies, RouteMap},
};

/// Reading anew takes at most one part in this many of the time, however often routes change: a full table has a million.
const SHARE: u32 = 20;
/// How often routing is read anew without any change, in case the kernel did not tell of one.
const AGAIN: Duration = Duration::from_secs(60);
/// Reading anew without any change takes at most one part in this many of the time.
const AT_REST: u32 = 2000;
/// IPsec policies are read anew this often, and up to [`AGAIN`] where that takes long. The kernel tells of changes, but also of a policy that
/// is set again as it was, and not of one that expires.
const POLICIES_AGAIN: Duration = Duration::from_secs(5);

/// The routing as last read, for the task that reads it.
#[derive(Default)]
pub(super) struct Routing {
    /// The view whose addresses are in `blocks`.
    view: Option<Arc<ClusterView>>,
    blocks: Arc<Blocks>,
    map: Option<Arc<RouteMap>>,
    policies: Policies,
    /// When policies were read, and how much processor time that took.
    policies_read: Option<(Instant, Duration)>,
    /// Something changed since routing was read.
    stale: bool,
    /// When routing was read, and how much processor time that took.
    read: Option<(Instant, Duration)>,
}

impl Routing {
    /// The part of the address space that matters.
    pub(super) fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    /// Notes that what was read may not be true any more.
    pub(super) fn changed(&mut self) {
        self.stale = true;
    }

    /// Where packets to the addresses of this view go: read anew where that is due. Blocking.
    ///
    /// # Errors
    /// Where the kernel cannot be asked.
    pub(super) fn look(
        &mut self,
        view: &Arc<ClusterView>,
        devices: &[Interface],
    ) -> Result<Arc<RouteMap>, dataplane::Error> {
        if !self.view.as_ref().is_some_and(|known| Arc::ptr_eq(known, view)) {
            let changed = self.view.as_ref().and_then(|known| view.changed_since(known).nodes);
            let known = changed.is_some_and(|changed| {
                self.blocks.have(&blocks_of(changed.into_iter().filter_map(|at| view.at(at))))
            });
            if !known {
                let blocks = blocks_of(view.indexed().map(|(_, node)| node));
                if !self.blocks.have(&blocks) {
                    self.blocks = Arc::new(blocks);
                    self.stale = true;
                }
            }
            self.view = Some(Arc::clone(view));
        }
        self.look_at_policies();
        match &self.map {
            Some(map) if !self.is_due() => Ok(Arc::clone(map)),
            _ => {
                let (read, took) = timed(|| route_table::read(&self.blocks, devices, self.policies.clone()));
                let map = Arc::new(read?);
                tracing::debug!(event = "routes-read", routes = map.routes(), ?took, "routes were read");
                self.read = Some((Instant::now(), took));
                self.stale = false;
                self.map = Some(Arc::clone(&map));
                Ok(map)
            }
        }
    }

    fn look_at_policies(&mut self) {
        let pause = |took: Duration| (took * AT_REST).clamp(POLICIES_AGAIN, AGAIN);
        if self.policies_read.is_some_and(|(at, took)| at.elapsed() < pause(took)) {
            return;
        }
        let (read, took) = timed(policies::read);
        self.policies_read = Some((Instant::now(), took));
        if read != self.policies {
            tracing::debug!(
                event = "ipsec-policies-changed",
                policies = read.list.len(),
                unread = read.unread,
                "IPsec policies changed"
            );
            self.policies = read;
            self.stale = true;
        }
    }

    fn is_due(&self) -> bool {
        self.rest().is_zero()
    }

    /// How long until routing is read anew.
    fn rest(&self) -> Duration {
        let Some((at, took)) = self.read else { return Duration::ZERO };
        let pause = if self.stale { took * SHARE } else { AGAIN.max(took * AT_REST) };
        pause.saturating_sub(at.elapsed())
    }

    /// How long until a change is read that came too soon after the last reading.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.stale.then(|| self.rest())
    }
}

fn blocks_of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Blocks {
    let mut blocks = Blocks::default();
    for node in nodes {
        for address in node.all_addresses() {
            blocks.add(address);
        }
    }
    blocks
}
