//! Follows devices and routes: attaches, and looks up which backends the cut reaches.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nodefence_kernel::sriov;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    auto::{Auto, Lately},
    coverage::Coverage,
    follow_up::FollowUp,
    inbox::Inbox,
    looks::Looks,
    outlets::Bells,
    reach::{Needed, Uncovered},
    routing::Routing,
    rows,
    settings::InterfaceChoice,
    sight::Sight,
    threads::Crew,
    told::RoutesRow,
    world::{Published, World},
};
use crate::{
    cluster::{ClusterView, NodeName},
    dataplane::{self, Attach, InterfaceStatus, interfaces, route},
    enforce::Input,
    flags::now,
    report::{InterfaceRow, ProgramRow},
    routes::Blocks,
};

/// How often devices are looked at without any event: other programs come and go without one.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Quiet time after an event: many come at once.
const SETTLE: Duration = Duration::from_millis(100);
/// A look costs in proportion to devices, routes and a view that changed. At most one part in this many of the time goes into looks, except
/// in clusters so large that devices would be followed too late.
const SHARE: u32 = 20;
/// Longest pause.
const LATEST: Duration = Duration::from_secs(5);

/// When this is dropped, whoever waits for a look learns that there will be none.
struct Ends(Arc<Looks>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The parts of the agent that the task `routes` gets.
pub(super) struct Routes {
    pub(super) devices: Attach,
    pub(super) sight: Sight,
    /// Where the task makes known which device leads to which backend.
    pub(super) published: Arc<Published>,
    /// Told where the cut reaches more than before.
    pub(super) follow_up: Arc<FollowUp>,
    /// Told whether the devices of the own node's pods are attached.
    pub(super) verdicts: Arc<Inbox>,
    pub(super) bells: Bells,
    pub(super) row: watch::Sender<RoutesRow>,
}

/// Follows devices and routes until the agent ends.
pub(super) async fn follow(routes: Routes, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let bells = routes.bells.clone();
    let looks = Arc::clone(&bells.looks);
    let _ends = Ends(Arc::clone(&looks));
    let mut changes = route::Changes::open()?;
    let mut looking = Looking::new(routes);
    loop {
        drain(&mut changes, &looking.routing.blocks()).await;
        let begun = Instant::now();
        if changes.take_routes() {
            looking.routing.changed();
        }
        let look = crew.blocking("routes", move || {
            looking.look();
            looking
        });
        looking = look.await?;
        let blocks = looking.routing.blocks();
        let pause = (begun.elapsed() * SHARE).clamp(SETTLE, LATEST);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = looks.asked() => continue,
            () = sleep(pause) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = looks.asked() => continue,
            change = changes.next(&blocks) => change?,
            () = bells.view_changed.notified() => {}
            () = sleep(looking.at_the_latest()) => {}
        }
    }
}

/// Takes the events that came meanwhile: one look serves them all. Does not wait for further events.
async fn drain(changes: &mut route::Changes, blocks: &Blocks) {
    let end = tokio::time::Instant::now() + SETTLE;
    while tokio::time::Instant::now() < end {
        let Ok(Ok(())) = timeout(Duration::from_millis(1), changes.next(blocks)).await else { return };
    }
}

/// The subject of the last look.
struct Looked {
    view: Arc<ClusterView>,
    /// Whether it was with the own node's pods.
    own: bool,
    coverage: Arc<Coverage>,
}

/// The state of the task `routes`.
struct Looking {
    ours: Routes,
    auto: Auto,
    lately: Lately,
    routing: Routing,
    last: Option<Looked>,
    needed: Needed,
    uncovered: Uncovered,
    /// Devices as they were found last, and how many backends none of them covered.
    before: RoutesRow,
    /// Whether `verdicts` was last told that the devices of the own node's pods are attached.
    own_attached: bool,
    /// Devices may still read maps of another size.
    staged: bool,
    /// Routes were read once at least.
    routes_read: bool,
    /// The names of the devices that were last attached to; `None` where that failed.
    wanted: Option<Vec<String>>,
}

impl Looking {
    fn new(ours: Routes) -> Self {
        Self {
            staged: ours.devices.is_staged(),
            ours,
            auto: Auto::default(),
            lately: Lately::default(),
            routing: Routing::default(),
            last: None,
            needed: Needed::default(),
            uncovered: Uncovered::default(),
            before: RoutesRow::default(),
            own_attached: false,
            routes_read: false,
            wanted: None,
        }
    }

    /// How long until the next look, where no event comes.
    fn at_the_latest(&self) -> Duration {
        // A reading that failed is not repeated any sooner.
        let change = self.routing.wait().filter(|_| self.before.error.is_none());
        change.map_or(LOOK_EVERY, |wait| wait.min(LOOK_EVERY))
    }

    /// Attaches to the devices that are wanted now, and looks up where backends' packets leave. Blocking.
    fn look(&mut self) {
        let (number, own) = self.ours.bells.looks.begin();
        let error = self.try_look(own).err();
        if error != self.before.error {
            if let Some(error) = &error {
                tracing::error!(event = "devices-unreadable", error, "devices and routes could not be read");
            }
            self.before.error = error;
            self.ours.row.send_replace(self.before.clone());
        }
        self.ours.bells.looks.over(number);
    }

    fn try_look(&mut self, own: bool) -> Result<(), String> {
        let world = self.ours.sight.world();
        let own = own || world.is_claimed(&self.ours.sight.own_node);
        let devices = interfaces::list().map_err(text)?;
        // Devices of the own node's pods see all traffic of these pods: they are attached only while the node bears a flag.
        let skipped = world.view.index(&self.ours.sight.own_node).filter(|_| !own);
        let routes = match self.routing.look(&world.view, &devices) {
            Ok(routes) => routes,
            Err(error) => {
                // A device that was made anew is attached to even where routes cannot be read.
                if !self.routes_read {
                    self.ours.devices.routes_leave_by(None);
                }
                let before = self.before.interfaces.iter().map(|row| row.name.clone()).collect();
                let statuses = self.attach(before, &devices)?;
                let interfaces = statuses.into_iter().map(row).collect();
                self.make_known(RoutesRow { interfaces, ..self.before.clone() });
                return Err(text(error));
            }
        };
        self.routes_read = true;
        let mut coverage = Coverage::new(routes, &devices);
        let last = self.last.take();
        let same_view =
            last.as_ref().is_some_and(|last| Arc::ptr_eq(&last.view, &world.view) && last.own == own);
        let same_routes = last.as_ref().is_some_and(|last| coverage.has_same_routes(&last.coverage));
        let needed = self.needed.look(&coverage, same_routes, &world.view, skipped);
        let names = coverage.names(&needed);
        self.ours.devices.routes_leave_by(Some(self.lately.look(needed, Instant::now())));
        let statuses = self.attach(names, &devices)?;
        coverage.set_attached(&statuses);
        let interfaces: Vec<InterfaceRow> = statuses.into_iter().map(row).collect();
        let same = coverage.is_same(&world.coverage);
        let coverage = if same { Arc::clone(&world.coverage) } else { Arc::new(coverage) };
        if !same {
            let reached = reached(&world, &coverage);
            self.ours.published.change(|world| world.coverage = Arc::clone(&coverage));
            self.ours.follow_up.reached(reached);
        }
        self.ours.bells.flagged.notify_one();
        if own != self.own_attached {
            self.own_attached = own;
            self.ours.verdicts.tell(Input::Routes { own_attached: own });
        }
        let before = self.before.uncovered;
        let uncovered = if same && same_view {
            before
        } else {
            let same = last.is_some_and(|last| coverage.is_same(&last.coverage));
            let flagged = world.holds(&self.ours.sight.own_node, now());
            let count = self.uncovered.look(&coverage, same, &world.view, &self.ours.sight.own_node, flagged);
            tell_uncovered(&self.ours.sight, before, count);
            count
        };
        self.last = Some(Looked { view: Arc::clone(&world.view), own, coverage });
        self.make_known(RoutesRow { interfaces, uncovered, error: None });
        Ok(())
    }

    /// Puts what was found into `status`, and what is new about devices into the log.
    fn make_known(&mut self, row: RoutesRow) {
        self.ours.row.send_replace(row.clone());
        let before = std::mem::replace(&mut self.before, row);
        for row in &self.before.interfaces {
            tell(row, before.interfaces.iter().find(|before| before.name == row.name));
        }
    }

    /// Attaches to the devices that are wanted now.
    fn attach(
        &mut self,
        needed: Vec<String>,
        devices: &[interfaces::Interface],
    ) -> Result<Vec<InterfaceStatus>, String> {
        let Routes { devices: attach, sight, verdicts, .. } = &mut self.ours;
        let InterfaceChoice { names: named, auto } = &sight.settings.interfaces;
        if attach.is_staged() {
            // Devices are about to be switched to maps that were just filled: verdicts must be in the maps by then. The thread `verdicts`
            // does not wait for the tables.
            let _ending = verdicts.settled().blocking_recv();
        }
        let mut wanted = named.clone();
        if *auto {
            let attached = attach.attached().map_err(text)?;
            let names = |ifindex: &u32| devices.iter().find(|device| device.ifindex == *ifindex);
            let attached: Vec<String> =
                attached.iter().filter_map(names).map(|device| device.name.clone()).collect();
            let exists = |name: &str| devices.iter().any(|device| device.name == name);
            let found = self.auto.wanted(needed, &attached, exists, Instant::now());
            wanted.extend(found.into_iter().filter(|name| !named.contains(name)));
        }
        let same = self.wanted.take().is_some_and(|before| before == wanted);
        let statuses = if same && !wanted.is_empty() { attach.interfaces() } else { attach.attach(&wanted) };
        let statuses = statuses.map_err(text)?;
        self.wanted = Some(wanted);
        if self.staged && !attach.is_staged() {
            self.staged = false;
            verdicts.forget_old();
        }
        Ok(statuses)
    }
}

fn text(error: dataplane::Error) -> String {
    error.to_string()
}

/// Cut nodes with backends that the cut did not reach until now. Clients of these backends are not challenged yet.
fn reached(world: &World, coverage: &Coverage) -> Vec<NodeName> {
    let more = |name: &&NodeName| {
        world.view.node(name).is_some_and(|node| coverage.reaches_more_of(node, &world.coverage))
    };
    world.enforced().map(|(name, _)| name).filter(more).cloned().collect()
}

/// Logs when backends, or more of them than before, cease to be covered, and when all are covered again.
fn tell_uncovered(sight: &Sight, before: usize, count: usize) {
    if count > before {
        let found = rows::Covered::of(&sight.world(), &sight.own_node);
        let first = found.examples.first();
        let backend = first.map(|row| row.address);
        let why = first.and_then(|row| row.uncovered.as_deref());
        tracing::warn!(
            event = "backends-uncovered",
            count,
            first = backend.map(tracing::field::display),
            why,
            "traffic to these backends is not cut: no attached device covers them"
        );
    } else if count == 0 && before != 0 {
        tracing::info!(event = "backends-covered", "attached devices cover all backends");
    }
}

/// Logs what changed about a device.
fn tell(row: &InterfaceRow, before: Option<&InterfaceRow>) {
    if before == Some(row) {
        return;
    }
    let interface = &row.name;
    let ifindex = row.ifindex;
    match (&row.error, &row.tc) {
        (Some(error), _) => tracing::error!(
            event = "attach-failed",
            interface,
            error,
            "the programs could not be attached to the device"
        ),
        (None, tc) => {
            let tc = tc.map(tracing::field::display);
            tracing::info!(event = "attached", interface, ifindex, tc, xdp = %row.xdp, "the programs are attached to the device");
        }
    }
    for ahead in &row.programs_ahead {
        tracing::warn!(
            event = "program-ahead",
            interface,
            id = ahead.id,
            name = ahead.name,
            place = ahead.place,
            "another program runs ahead of ours on the device"
        );
    }
}

fn row(status: InterfaceStatus) -> InterfaceRow {
    let virtual_functions = sriov::functions(Path::new("/sys"), &status.name);
    let InterfaceStatus { name, ifindex, link_layer, bridge, tc, xdp, programs_ahead, error } = status;
    InterfaceRow {
        name,
        ifindex,
        link_layer,
        tc,
        xdp,
        programs_ahead: programs_ahead
            .into_iter()
            .map(|ahead| ProgramRow { id: ahead.id, name: ahead.name, place: ahead.r#where })
            .collect(),
        virtual_functions,
        bridge,
        error,
    }
}
