//! The agent from its start to its end: in which order things are checked, taken, started and given up.

use std::{path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use nix::sys::stat::{Mode as FileMode, umask};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    actors::{self, Others, Theirs},
    drain::Draining,
    inbox::Inbox,
    lock::{Lock, LockError},
    mode,
    notify::Notifier,
    preflight,
    rescue::Rescue,
    serve::Requests,
    settings::Settings,
    signals::Signals,
    source::{Followed, Source},
    stages::Stages,
    start::{Inherited, Known, Opened, open, take_over},
    store::Store,
    tables::TablesRow,
    threads::Crew,
    told::Rows,
    verdicts::Verdicts,
};
use crate::{
    dataplane::probe::{Findings, Present},
    enforce::Input,
    report::Server,
};

/// How often to look whether somebody removed the socket or the run folder.
const LOOK_FOR_FILES: Duration = Duration::from_secs(1);
/// How long the end waits at most until flags are saved whose folder was removed.
const LAST_SAVE: Duration = Duration::from_secs(1);
/// How long tasks may take to end in order.
const WIND_UP: Duration = Duration::from_secs(1);

/// How long the start waits at most for flags and settings of the API server.
const ORDERS: Duration = Duration::from_secs(1);

/// The advice where another agent runs.
const ADVICE: &str = "end it, or start this one with --take-over";

/// Runs the agent until a signal, until another agent takes over, or until a source of objects ends. The dataplane stays in the kernel.
///
/// # Errors
/// Whatever keeps the agent from starting or going on, with the file, field or flag it is about.
pub async fn run(settings: Settings, source: Source) -> anyhow::Result<()> {
    let mut stages = Stages::begin();
    // The agent's files and its socket are closed to other users from their first moment on.
    umask(FileMode::from_bits_truncate(0o077));
    let mut signals = Signals::new()?;
    let started = start(settings, source, &mut signals, &mut stages).await?;
    stages.over();
    match started {
        Started::Runs(agent) => agent.run(&mut signals).await,
        Started::Not(why) => {
            tracing::info!(
                event = "ended-before-start",
                why,
                "the agent was told to end before it ran; verdicts that it renewed lapse in 3 s"
            );
            Ok(())
        }
    }
}

/// The outcome of a start.
enum Started {
    Runs(Box<Agent>),
    /// The start was told to end.
    Not(&'static str),
}

/// An agent that runs.
struct Agent {
    crew: Crew,
    settings: Arc<Settings>,
    lock: Lock,
    server: Arc<Server>,
    verdicts: Verdicts,
    store: Store,
    draining: Draining,
    rescuing: Rescue,
    notifier: Option<Notifier>,
    handed_over: CancellationToken,
}

async fn start(
    settings: Settings,
    source: Source,
    signals: &mut Signals,
    stages: &mut Stages,
) -> anyhow::Result<Started> {
    let crew = Crew::default();
    preflight::check(&settings)?;
    stages.enter("lock");
    let held = match Lock::take(&settings.run_dir, ADVICE) {
        Err(LockError::Busy { .. }) if settings.take_over => None,
        taken => Some(taken?),
    };
    // A running agent goes on renewing its verdicts until this one is ready. Without a running agent, this one renews from now on what an
    // earlier one left.
    let bridge = match &held {
        Some(_) => {
            stages.enter("bridge");
            Some(Inherited::take(&settings, &crew)?)
        }
        None => None,
    };
    stages.enter("view");
    let source = tokio::select! {
        biased;
        fallen = crew.falls() => return Err(fallen.into()),
        source = source.first(&settings, &crew) => source?,
        why = signals.come() => return Ok(Started::Not(why)),
    };
    let seen = Seen::look(source, &settings, &crew).await?;
    if let Some(inherited) = &bridge {
        inherited.know_flags(&seen.known.view);
    }
    if let Some(why) = signals.came().await {
        return Ok(Started::Not(why));
    }
    let lock = match held {
        Some(lock) => lock,
        None => {
            stages.enter("lock");
            let with = settings.clone();
            let taking = crew.blocking("lock", move || take_over(&with));
            tokio::select! {
                biased;
                taken = taking => taken??,
                fallen = crew.falls() => return Err(fallen.into()),
                // The other agent may have been asked to hand over already: it learns that nobody waits any more.
                why = signals.come() => return Ok(Started::Not(why)),
            }
        }
    };
    let server = Arc::new(Server::bind(settings.socket.clone())?);
    let inherited = match bridge {
        Some(inherited) => inherited,
        None => {
            stages.enter("bridge");
            let inherited = Inherited::take(&settings, &crew)?;
            inherited.know_flags(&seen.known.view);
            inherited
        }
    };
    stages.enter("dataplane");
    let Seen { mut source, present, look, known } = seen;
    let mut orders = source.begin_orders(&inherited.verdicts.inbox);
    if let Some(orders) = &mut orders {
        // Whoever sees that the agent runs may count on flags and settings of the API server. The start does not depend on them.
        let _late = tokio::time::timeout(ORDERS, orders.wait_for(|row| row.is_known)).await.is_err();
    }
    let Opened { shared, tables, devices, switches, events, rescues, cut_log } =
        open(settings, known, &inherited, &crew)?;
    let started = Timestamp::now();
    let Inherited { verdicts, store } = inherited;
    tokio::select! {
        biased;
        () = tables_written(&tables, &verdicts.inbox) => {}
        fallen = crew.falls() => return Err(fallen.into()),
        why = signals.come() => return Ok(Started::Not(why)),
    }
    stages.enter("routes");
    // The drain begins after the tables: what an earlier agent drained from IPVS is taken up only once it is known again which nodes
    // are cut.
    let draining = actors::begin_drain(&shared)?;
    let rescuing = actors::rescuing(&shared, rescues)?;
    let routes = tokio::select! {
        biased;
        routes = actors::routes(&shared, devices) => routes?,
        fallen = crew.falls() => return Err(fallen.into()),
        why = signals.come() => return Ok(Started::Not(why)),
    };
    stages.enter("actors");
    let theirs = Theirs { source, present, look, switches, events, cut_log };
    let Others { source, neighbours, audit } = actors::others(&shared, theirs)?;
    stages.enter("serving");
    let settings = Arc::clone(&shared.sight.settings);
    let sight = shared.sight.clone();
    tracing::info!(
        event = "started",
        node = shared.sight.own_node.as_str(),
        socket = %settings.socket.display(),
        mode = %settings.mode,
        version = env!("CARGO_PKG_VERSION"),
        "the agent runs"
    );
    let flags_problem = store.problem.clone();
    let writing = Arc::clone(&store.writing);
    let rows = Rows { source, orders, tables, flags_problem, writing, routes, neighbours };
    let handed_over = CancellationToken::new();
    let requests = actors::requests(shared, rows, audit, started, handed_over.clone());
    // Only the port's first state matters so far: nobody closes it before the agent ends.
    drop(super::http::start(&requests, &crew));
    crew.task("api", serve(Arc::clone(&server), requests, crew.clone()));
    let notifier = Notifier::start(sight, Arc::clone(&verdicts.beat), &crew)?;
    let agent =
        Agent { crew, settings, lock, server, verdicts, store, draining, rescuing, notifier, handed_over };
    Ok(Started::Runs(Box::new(agent)))
}

/// The facts that are found out before anything is opened, and the parts that go on to follow them.
struct Seen {
    source: Followed,
    present: Present,
    look: mode::Look,
    known: Known,
}

impl Seen {
    async fn look(source: Followed, settings: &Settings, crew: &Crew) -> anyhow::Result<Self> {
        let view = source.view();
        let own_node = source.own_node();
        let present = Present::now();
        let findings = crew.blocking("findings", Findings::gather).await?;
        tracing::info!(
            event = "kernel-probed",
            milliseconds = findings.milliseconds,
            "the kernel was probed: {findings}"
        );
        let wanted = settings.proxy;
        let services = view.services.is_some();
        let looking = crew.blocking("kube-proxy", move || {
            let mut look = mode::Look::default();
            let proxy = look.look(wanted, services).clone();
            (look, proxy)
        });
        let (look, proxy) = looking.await?;
        let known = Known { own_node, view, findings, proxy };
        Ok(Self { source, present, look, known })
    }
}

impl Agent {
    /// Runs until the agent is told to end, or until a thread or task has fallen.
    async fn run(self, signals: &mut Signals) -> anyhow::Result<()> {
        let Self {
            crew,
            settings,
            mut lock,
            server,
            verdicts,
            store,
            draining,
            rescuing,
            notifier,
            handed_over,
        } = self;
        let ended = tokio::select! {
            // The order matters: a thread that ends once the agent was told to end is no fault.
            biased;
            why = signals.come() => Ok(why),
            () = handed_over.cancelled() => Ok("another agent takes over"),
            () = lost(&server, &lock, &settings.run_dir) => Err(write_down(&settings, &verdicts.inbox, &mut lock).await),
            fallen = crew.falls() => match is_lost(&server, &lock, &settings.run_dir) {
                // A thread or task noticed first that files are gone.
                true => Err(write_down(&settings, &verdicts.inbox, &mut lock).await),
                false => Err(fallen.into()),
            },
        };
        crew.end();
        // A service manager counts the time of the end from now on.
        drop(notifier);
        drop(draining);
        drop(rescuing);
        // This comes before the lock is given up: whoever takes over has the verdicts' whole lifetime to do so.
        drop(verdicts);
        store.end(WIND_UP);
        crew.wind_up(WIND_UP).await;
        // The socket goes before the lock: whoever has the lock may take what lies there for stale.
        server.remove();
        // This also covers a thread or task that fell on the way to the end: its work was not done.
        let ended = match crew.fallen() {
            Some(fallen) if ended.is_ok() => Err(fallen.into()),
            _ => ended,
        };
        drop(lock);
        match &ended {
            Ok(why) => tracing::info!(
                event = "ended",
                why,
                "the agent ends; the dataplane stays, verdicts lapse in 3 s"
            ),
            Err(error) => {
                tracing::error!(
                    event = "ended-by-error",
                    %error,
                    "the agent ends; the dataplane stays, verdicts lapse in 3 s"
                );
            }
        }
        ended.map(drop)
    }
}

/// Serves until the agent ends. A request that panics ends the agent, as each panic does: the agent's state may be half changed. Bytes
/// that are no request are answered, and panic nowhere.
async fn serve(server: Arc<Server>, requests: Requests, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let serving = server.serve(Arc::new(requests), |talk| crew.errand("api", talk));
    tokio::select! {
        () = stop.cancelled() => {}
        () = serving => {}
    }
    Ok(())
}

/// Waits until the first tables were written, or could not be, and until all that follows from them is in the maps.
async fn tables_written(tables: &watch::Receiver<TablesRow>, verdicts: &Inbox) {
    let mut tables = tables.clone();
    // The channel is closed where the thread ended: then the agent ends too.
    let _ended = tables.wait_for(|row| row.tries > 0).await.is_err();
    let _ended = verdicts.settled().await.is_err();
}

/// Whether somebody removed the socket, or the run folder with the lock.
fn is_lost(server: &Server, lock: &Lock, run_dir: &Path) -> bool {
    !(server.is_there() && lock.is_in(run_dir))
}

/// Returns once somebody removed the socket or the run folder.
async fn lost(server: &Server, lock: &Lock, run_dir: &Path) {
    while !is_lost(server, lock, run_dir) {
        tokio::time::sleep(LOOK_FOR_FILES).await;
    }
}

/// Writes the flags where somebody removed the run folder, or the socket: nobody can withdraw a flag any more, and the next agent must know
/// of it. Returns why the agent ends.
async fn write_down(settings: &Settings, verdicts: &Inbox, lock: &mut Lock) -> anyhow::Error {
    let Settings { run_dir, socket, .. } = settings;
    // The folder may be another agent's by now. What that agent knows is not written over.
    if !lock.is_in(run_dir) {
        match Lock::take(run_dir, ADVICE) {
            Ok(again) => *lock = again,
            Err(error) => {
                return anyhow::Error::new(error).context("the run folder is gone, and cannot be made anew");
            }
        }
    }
    verdicts.tell(Input::SaveAnew);
    // A save that is under way may lie in the folder that is gone. A disk that hangs does not hold the end up.
    let _late = tokio::time::timeout(LAST_SAVE, verdicts.saved()).await.is_err();
    anyhow::anyhow!("the socket {} was removed, or all of its folder; start the agent anew", socket.display())
}
