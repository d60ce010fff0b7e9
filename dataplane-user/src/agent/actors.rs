//! The last stages of a start: each actor begins, and gets the things that it owns.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{
    again::{self, Again},
    answers, audit,
    beat::Beat,
    builder::Builds,
    drain::{self, Draining},
    findings,
    follow_up::FollowUp,
    idle::{self, Challenger},
    inbox::Inbox,
    mode, neighbours, network,
    off::Switch,
    outlets::Bells,
    reader::{self, Reader},
    rescue::{self, Rescue},
    rescue_state,
    rows::Shown,
    serve::{Requests, WAITERS},
    sight::Sight,
    source::Followed,
    stale::StaleFlows,
    threads::{Crew, Priority},
    told::{RoutesRow, Rows, SourceRow},
    world::Published,
};
use crate::{
    dataplane::{Attach, Counters, CutLog, EventStream, Injector, Rescues, Switches, probe::Present},
    report::NeighbourRow,
};

/// Things that more than one actor gets. The start alone has them all.
pub(super) struct Shared {
    pub(super) sight: Sight,
    pub(super) crew: Crew,
    /// The inbox of `verdicts`.
    pub(super) verdicts: Arc<Inbox>,
    pub(super) beat: Arc<Beat>,
    pub(super) published: Arc<Published>,
    pub(super) builds: Arc<Builds>,
    pub(super) bells: Bells,
    pub(super) injector: Injector,
    /// Whose clients to challenge, and the outcome.
    pub(super) follow_up: Arc<FollowUp>,
    /// State that the threads that rescue share with others.
    pub(super) rescue: Arc<rescue_state::RescueState>,
    /// Lists conntrack.
    pub(super) reader: Reader,
    /// The counters of the kernel programs.
    pub(super) counters: Arc<Counters>,
}

/// Begins the task that looks at devices, and waits for its first look. Returns what `status` says of devices.
///
/// # Errors
/// Where the wait fails.
pub(super) async fn routes(shared: &Shared, devices: Attach) -> anyhow::Result<watch::Receiver<RoutesRow>> {
    let first = shared.bells.looks.ask();
    let (row, told) = watch::channel(RoutesRow::default());
    let given = network::Routes {
        devices,
        sight: shared.sight.clone(),
        published: Arc::clone(&shared.published),
        follow_up: Arc::clone(&shared.follow_up),
        verdicts: Arc::clone(&shared.verdicts),
        bells: shared.bells.clone(),
        row,
    };
    shared.crew.task("routes", network::follow(given, shared.crew.clone()));
    let looks = Arc::clone(&shared.bells.looks);
    shared.crew.blocking("start", move || looks.wait(first)).await?;
    Ok(told)
}

/// Begins the task that lists conntrack for all others, and the thread that drains from IPVS.
///
/// # Errors
/// Where the kernel has no room for the thread.
pub(super) fn begin_drain(shared: &Shared) -> std::io::Result<Draining> {
    shared.crew.task("conntrack", reader::follow(shared.reader.clone(), shared.crew.clone()));
    let given = drain::Given {
        sight: shared.sight.clone(),
        beat: Arc::clone(&shared.beat),
        bell: Arc::clone(&shared.bells.drain),
        rescue: Arc::clone(&shared.rescue),
        reader: shared.reader.clone(),
    };
    Draining::start(given, &shared.crew)
}

/// Begins the threads that rescue.
///
/// # Errors
/// As of [`begin_drain`].
pub(super) fn rescuing(shared: &Shared, rescues: Rescues) -> std::io::Result<Rescue> {
    let context = rescue::RescueContext {
        sight: shared.sight.clone(),
        state: Arc::clone(&shared.rescue),
        drain: Arc::clone(&shared.bells.drain),
        injector: shared.injector.clone(),
    };
    Rescue::start(context, rescues, &shared.crew)
}

/// Things that one of the other actors gets, and no second one.
pub(super) struct Theirs {
    pub(super) source: Followed,
    pub(super) present: Present,
    pub(super) look: mode::Look,
    pub(super) switches: Switches,
    pub(super) events: EventStream,
    pub(super) cut_log: Option<CutLog>,
}

/// The rows that the other actors write, and the inbox of `audit`.
pub(super) struct Others {
    pub(super) source: watch::Receiver<SourceRow>,
    pub(super) neighbours: watch::Receiver<Vec<NeighbourRow>>,
    pub(super) audit: audit::Inbox,
}

/// Begins all other actors.
///
/// # Errors
/// As of [`begin_drain`].
pub(super) fn others(shared: &Shared, theirs: Theirs) -> std::io::Result<Others> {
    let Shared { sight, crew, published, builds, bells, injector, follow_up, rescue, reader, .. } = shared;
    let Theirs { source, present, look, switches, events, cut_log } = theirs;
    let source_row = source.follow(Arc::clone(builds), crew);
    let answering = answers::follow(events, injector.clone(), crew.stop());
    let runtime = tokio::runtime::Handle::current();
    // Senders of packets decide how much work this thread has. At the usual priority it holds no request up.
    crew.thread("answers", Priority::Usual, move || runtime.block_on(answering))?;
    let facts = findings::follow(sight.clone(), Arc::clone(published), switches, present, crew.clone());
    crew.task("findings", facts);
    let following = mode::Following {
        look,
        sight: sight.clone(),
        verdicts: Arc::clone(&shared.verdicts),
        published: Arc::clone(published),
        builds: Arc::clone(builds),
        bells: bells.clone(),
    };
    crew.task("kube-proxy", mode::follow(following, crew.clone()));
    let stale_flows = StaleFlows {
        sight: sight.clone(),
        rescue: Arc::clone(rescue),
        follow_up: Arc::clone(follow_up),
        reader: reader.clone(),
    };
    let (row, neighbours) = watch::channel(Vec::new());
    crew.task("neighbours", neighbours::follow(sight.clone(), row, crew.clone()));
    let again = Again::new(stale_flows.clone(), Arc::clone(&shared.counters), neighbours.clone());
    crew.task("stale-flows", again::follow(again, crew.clone()));
    let challenger = Challenger {
        sight: sight.clone(),
        beat: Arc::clone(&shared.beat),
        injector: injector.clone(),
        follow_up: Arc::clone(follow_up),
        bells: bells.clone(),
        stale_flows,
        reader: reader.clone(),
    };
    crew.task("follow-up", idle::follow(challenger, crew.clone()));
    let context = audit::AuditContext { sight: sight.clone(), source: source_row.clone() };
    let audit = audit::start(context, crew)?;
    if let Some(mut log) = cut_log {
        let stop = crew.stop();
        crew.task("cut-log", async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = log.follow() => Ok(ended?),
            }
        });
    }
    Ok(Others { source: source_row, neighbours, audit })
}

/// Makes the handler of requests from the socket. `switch` turns the agent off. `handed_over` is cancelled once another agent takes over.
pub(super) fn requests(
    shared: Shared,
    rows: Rows,
    audit: audit::Inbox,
    started: Timestamp,
    switch: Switch,
    handed_over: CancellationToken,
) -> Requests {
    let shown = Shown {
        sight: shared.sight,
        started,
        beat: shared.beat,
        counters: shared.counters,
        injector: shared.injector,
        rescue: shared.rescue,
        drain: shared.bells.drain,
        follow_up: shared.follow_up,
        reader: shared.reader,
        rows,
    };
    Requests {
        waiters: Semaphore::new(WAITERS),
        shown: Arc::new(shown),
        verdicts: shared.verdicts,
        looks: shared.bells.looks,
        audit,
        crew: shared.crew,
        switch,
        handed_over,
    }
}
