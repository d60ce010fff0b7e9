//! Follows devices and routes: attaches, and looks up which backends the cut reaches.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{core::Core, coverage::Coverage, rows, settings::Wanted};
use crate::{
    cluster::NodeName,
    dataplane::{InterfaceStatus, TcMode, XdpState, XdpStatus, interfaces, route},
    report::{InterfaceRow, ProgramRow},
};

/// How often devices are looked at without any event: programs of others come and go without one.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Quiet time after an event: many come at once.
const SETTLE: Duration = Duration::from_millis(100);
/// A look costs a route lookup for each backend: at most one part in this many of the time goes into it, but for
/// clusters so large that devices would be followed too late.
const SHARE: u32 = 20;
/// Longest pause.
const LATEST: Duration = Duration::from_secs(5);

/// Follows devices and routes until `stop`.
pub(super) async fn follow(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut changes = route::Changes::open()?;
    loop {
        let begun = Instant::now();
        let refreshed = Arc::clone(&core);
        tokio::task::spawn_blocking(move || refresh(&refreshed)).await?;
        let pause = (begun.elapsed() * SHARE).clamp(SETTLE, LATEST);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep(pause) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            change = changes.next() => change?,
            () = core.view_changed.notified() => {}
            () = sleep(LOOK_EVERY) => {}
        }
        drain(&mut changes).await;
    }
}

/// What came meanwhile is one look's matter.
async fn drain(changes: &mut route::Changes) {
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(1), changes.next()).await {}
}

/// Attaches to the devices that are wanted now, and looks up where backends' packets leave. Blocking.
pub(super) fn refresh(core: &Core) {
    if let Err(error) = try_refresh(core) {
        tracing::error!(%error, "devices and routes could not be looked at");
    }
}

fn try_refresh(core: &Core) -> Result<(), crate::dataplane::Error> {
    let world = core.world();
    let own_flagged = core.state().covers_own || world.enforces(&core.own_node);
    let devices = interfaces::list()?;
    // Devices of this node's own pods see all that goes in and out there: only while it bears a flag.
    let skipped = world.view.index(&core.own_node).filter(|_| !own_flagged);
    let mut coverage = Coverage::look_up(&world.view, skipped, &devices)?;
    let Wanted { names: named, auto } = &core.settings.interfaces;
    let mut dataplane = core.dataplane();
    let mut wanted = named.clone();
    if *auto {
        let attached = dataplane.attached()?;
        let names = |ifindex: &u32| devices.iter().find(|device| device.ifindex == *ifindex);
        let attached: Vec<String> =
            attached.iter().filter_map(names).map(|device| device.name.clone()).collect();
        let exists = |name: &str| devices.iter().any(|device| device.name == name);
        let found = core.auto().wanted(coverage.devices(), &attached, exists, Instant::now());
        wanted.extend(found.into_iter().filter(|name| !named.contains(name)));
    }
    let same = core.state().interfaces.iter().map(|row| &row.name).eq(&wanted);
    let statuses =
        if same && !wanted.is_empty() { dataplane.interfaces() } else { dataplane.attach(&wanted) };
    drop(dataplane);
    coverage.set_attached(&statuses);
    let rows: Vec<InterfaceRow> = statuses.into_iter().map(row).collect();
    let reached = reached(core, &coverage);
    let mut state = core.state();
    let before = std::mem::replace(&mut state.interfaces, rows.clone());
    state.set_coverage(coverage);
    state.ask_again(reached);
    drop(state);
    core.flagged.notify_one();
    tell_uncovered(core);
    // Told without the lock: whoever reads the log may stand still.
    for row in &rows {
        tell(row, before.iter().find(|before| before.name == row.name));
    }
    Ok(())
}

/// Armed nodes with backends that the cut did not reach until now: their clients have not been asked.
fn reached(core: &Core, coverage: &Coverage) -> Vec<NodeName> {
    let world = core.world();
    let more = |name: &&NodeName| {
        world.view.node(name).is_some_and(|node| coverage.reaches_more_of(node, &world.coverage))
    };
    world.enforced.keys().filter(more).cloned().collect()
}

/// Tells the log when backends cease to be covered, or more of them than before, and when all are again.
fn tell_uncovered(core: &Core) {
    let (count, examples) = rows::uncovered(core);
    let before = std::mem::replace(&mut core.state().uncovered, count);
    if count > before {
        let first = examples.first();
        let (backend, why) = (first.map(|row| row.address), first.and_then(|row| row.uncovered.as_deref()));
        tracing::warn!(count, first = ?backend, why, "traffic to these backends is not cut: no attached device covers them");
    } else if count == 0 && before != 0 {
        tracing::info!("attached devices cover all backends");
    }
}

/// Logs what changed about a device.
fn tell(row: &InterfaceRow, before: Option<&InterfaceRow>) {
    if before == Some(row) {
        return;
    }
    let (interface, ifindex) = (&row.name, row.ifindex);
    match (&row.error, &row.tc) {
        (Some(error), _) => tracing::error!(interface, error, "not attached"),
        (None, tc) => tracing::info!(interface, ifindex, tc, xdp = row.xdp, "attached"),
    }
    for ahead in &row.programs_ahead {
        tracing::warn!(
            interface,
            id = ahead.id,
            name = ahead.name,
            place = ahead.place,
            "a program runs ahead of ours"
        );
    }
}

fn row(status: InterfaceStatus) -> InterfaceRow {
    let InterfaceStatus { name, ifindex, link_layer, tc, xdp, programs_ahead, error } = status;
    InterfaceRow {
        name,
        ifindex,
        link_layer: link_layer.map(|layer| format!("{layer:?}").to_lowercase()),
        tc: tc.map(|mode| match mode {
            TcMode::Tcx => "tcx".to_owned(),
            TcMode::Clsact => "clsact".to_owned(),
        }),
        xdp: xdp_text(&xdp),
        programs_ahead: programs_ahead
            .into_iter()
            .map(|ahead| ProgramRow { id: ahead.id, name: ahead.name, place: ahead.r#where })
            .collect(),
        error,
    }
}

fn xdp_text(xdp: &XdpStatus) -> String {
    let state = match xdp.state {
        XdpState::Off => "off",
        XdpState::Native => "native",
        XdpState::Generic => "generic",
    };
    match &xdp.reason {
        None => state.to_owned(),
        Some(reason) => format!("{state} ({reason})"),
    }
}
