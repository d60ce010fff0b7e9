//! The agent from its start to its end: in which order things are checked, taken, started and given up.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use nix::sys::stat::{Mode as FileMode, umask};
use tokio::sync::watch;

use super::{
    actors::{self, Others, Theirs},
    ending::{ADVICE, Ended, Reason, WIND_UP, is_lost, lost},
    inbox::Inbox,
    lock::{Lock, LockError},
    mode,
    newcomer::Announcement,
    notify::Notifier,
    off::{self, Ends, House, OffAgent, Stand, Switch, Turns, Why},
    phase::Phase,
    pods, preflight,
    settings::Settings,
    signals::Signals,
    source::{Followed, Source},
    stages::Stages,
    stand_by::StandBy,
    start::{Inherited, Known, Opened, open, take_over},
    tables::TablesRow,
    threads::{Crew, Fallen},
    told::Rows,
};
use crate::{
    dataplane::probe::{Findings, Present},
    enforce::Input,
    off::{OffFile, Owner},
    report::{OffRow, PodRow, Server},
};

/// How long the end waits at most until flags are saved whose folder was removed.
const LAST_SAVE: Duration = Duration::from_secs(1);
/// How long a start waits for a lock that a command may have.
const BRIEFLY: Duration = Duration::from_millis(500);

/// How long the start waits at most for flags and settings of the API server.
const ORDERS: Duration = Duration::from_secs(1);

/// Runs the agent until a signal, until another agent takes over, or until a source of objects ends. The dataplane stays in the kernel. While
/// the agent is off, nothing of it is in the kernel.
///
/// # Errors
/// Whatever keeps the agent from starting or going on, with the file, field or flag it is about.
pub async fn run(settings: Settings, source: Source) -> anyhow::Result<Ended> {
    // It goes on while the agent is off.
    let crew = Crew::default();
    let ended = live(settings, source, &crew).await;
    crew.end();
    ended
}

async fn live(settings: Settings, source: Source, house: &Crew) -> anyhow::Result<Ended> {
    let mut stages = Stages::begin();
    // The agent's files and its socket are closed to other users from their first moment on.
    umask(FileMode::from_bits_truncate(0o077));
    let mut signals = Signals::new()?;
    let stand_by = StandBy::of(&settings);
    if let Some(stand_by) = &stand_by
        && pods::taken_from(&settings).is_some()
    {
        return Ok(stand_by.wait(house, &mut signals).await);
    }
    let pod = pods::row(&settings);
    let mut ends = Ends::new(&mut signals, OffFile::new(&settings.run_dir));
    let started = start(settings, pod, source, &mut ends, house, &mut stages).await?;
    stages.over();
    let ended = match started {
        Started::Runs(agent) => agent.run(&mut signals).await?,
        Started::Off { lock, settings, row, turns, switch } => {
            let server = Server::bind(settings.socket.clone())?;
            let mut agent =
                OffAgent::begin(House::new(house.clone(), settings, lock, server), turns, switch, row);
            agent.undo(Owner::Other).await;
            agent.notify()?;
            agent.run(&mut signals).await?
        }
        Started::Not(why) => {
            tracing::info!(
                event = "ended-before-start",
                why = why.text(),
                "the agent was told to end before it ran; verdicts that it renewed lapse in 3 s"
            );
            why.then()
        }
    };
    Ok(match (ended, stand_by) {
        (Ended::HandedOver, Some(stand_by)) => stand_by.wait(house, &mut signals).await,
        (ended, _) => ended,
    })
}

/// The outcome of a start.
enum Started {
    Runs(Box<Agent>),
    /// The agent is off.
    Off {
        lock: Lock,
        settings: Arc<Settings>,
        row: OffRow,
        turns: Turns,
        switch: Switch,
    },
    /// The start was told to end.
    Not(Reason),
}

/// An agent that runs.
struct Agent {
    phase: Phase,
    house: House,
    turns: Turns,
    switch: Switch,
}

async fn start(
    settings: Settings,
    pod: Option<PodRow>,
    source: Source,
    ends: &mut Ends<'_>,
    house: &Crew,
    stages: &mut Stages,
) -> anyhow::Result<Started> {
    let crew = Crew::default();
    preflight::check(&settings)?;
    stages.enter("lock");
    let taken = match Lock::take(&settings.run_dir, ADVICE) {
        // A command that found no agent may have the lock for a moment.
        Err(LockError::Busy { .. }) if !settings.take_over => {
            let run_dir = settings.run_dir.clone();
            crew.blocking("lock", move || Lock::wait(&run_dir, ADVICE, BRIEFLY, None)).await?
        }
        taken => taken,
    };
    let has_lock = watch::Sender::new(false);
    let held = match taken {
        Err(LockError::Busy { .. }) if settings.take_over => None,
        taken => Some(holds(taken?, &settings, &crew, &has_lock)),
    };
    let announced = if held.is_none() { Announcement::of(&settings) } else { None };
    // A running agent goes on renewing its verdicts until this one is ready. Without a running agent, this one renews from now on what an
    // earlier one left: the settings may take longer than that lasts. Where the last word was `off`, nothing is renewed before they say otherwise.
    let bridges_now = held.is_some() && !was_off(&settings);
    let bridged = bridges_now.then(|| bridge(&settings, &crew, stages));
    stages.enter("settings");
    let spread = source.spread();
    let (source, off) = tokio::select! {
        biased;
        fallen = crew.falls() => return Err(fallen.into()),
        begun = source.begin(&settings.run_dir, house, has_lock.subscribe()) => begun,
        why = ends.signal() => return Ok(Started::Not(why)),
    };
    let (switch, turns) = Turns::new(off.clone(), spread);
    if let Some(row) = off::standing(&settings.run_dir, &turns) {
        // What failed is no reason not to be off.
        if let Some(Ok(Inherited { verdicts, store })) = bridged {
            // Nothing is renewed any more once this returns.
            drop(verdicts);
            store.end(WIND_UP);
        }
        source.say_unfollowed();
        let lock = match held {
            Some(lock) => lock,
            None => {
                let with = settings.clone();
                let taking = crew.blocking("lock", move || take_over(&with));
                tokio::select! {
                    biased;
                    taken = taking => holds(taken??, &settings, &crew, &has_lock),
                    why = ends.signal() => return Ok(Started::Not(why)),
                }
            }
        };
        return Ok(Started::Off { lock, settings: Arc::new(settings), row, turns, switch });
    }
    ends.follow(off);
    let bridged = match (bridged, &held) {
        (None, Some(_)) => Some(bridge(&settings, &crew, stages)),
        (bridged, _) => bridged,
    };
    let bridged = bridged.transpose()?;
    stages.enter("view");
    let bridging = bridged.as_ref().map(|inherited| &inherited.verdicts.inbox);
    let source = tokio::select! {
        biased;
        fallen = crew.falls() => return Err(fallen.into()),
        source = source.first(&settings, &crew, bridging) => source?,
        why = ends.come() => return Ok(Started::Not(why)),
    };
    let seen = Seen::look(source, &settings, &crew).await?;
    if let Some(inherited) = &bridged {
        inherited.know_flags(&seen.known.view);
    }
    if let Some(why) = ends.came().await {
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
                taken = taking => holds(taken??, &settings, &crew, &has_lock),
                fallen = crew.falls() => return Err(fallen.into()),
                // The other agent may have been asked to hand over already: it learns that nobody waits any more.
                why = ends.come() => return Ok(Started::Not(why)),
            }
        }
    };
    drop(announced);
    // The other agent may have been turned off meanwhile.
    if OffFile::new(&settings.run_dir).is_there() {
        return Ok(Started::Not(Reason::TurnedOff));
    }
    let server = Server::bind(settings.socket.clone())?;
    let mut house = House::new(house.clone(), Arc::new(settings.clone()), lock, server);
    let inherited = match bridged {
        Some(inherited) => inherited,
        None => {
            let inherited = bridge(&settings, &crew, stages)?;
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
    // Nothing is attached before.
    if let Some(why) = ends.came().await {
        return Ok(Started::Not(why));
    }
    let Opened { shared, tables, devices, switches, events, rescues, cut_log } =
        open(settings, known, &inherited, &crew)?;
    let started = Timestamp::now();
    let Inherited { verdicts, store } = inherited;
    tokio::select! {
        biased;
        () = tables_written(&tables, &verdicts.inbox) => {}
        fallen = crew.falls() => return Err(fallen.into()),
        why = ends.come() => return Ok(Started::Not(why)),
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
        why = ends.come() => return Ok(Started::Not(why)),
    };
    stages.enter("actors");
    let theirs = Theirs { source, present, look, switches, events, cut_log };
    let Others { source, neighbours, audit } = actors::others(&shared, theirs)?;
    stages.enter("serving");
    let settings = Arc::clone(&house.settings);
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
    let rows = Rows { source, pod, orders, tables, flags_problem, writing, routes, neighbours };
    let builds = Arc::clone(&shared.builds);
    let handed_over = house.handed_over.clone();
    let requests = actors::requests(shared, rows, audit, started, switch.clone(), handed_over);
    house.serve(Stand::Runs(Arc::new(requests)));
    let notifier = Notifier::start(sight, Arc::clone(&verdicts.beat), &crew)?;
    let phase = Phase { crew, verdicts, store, builds, draining, rescuing, notifier };
    Ok(Started::Runs(Box::new(Agent { phase, house, turns, switch })))
}

/// Notes that this agent has the lock.
fn holds(lock: Lock, settings: &Settings, crew: &Crew, has_lock: &watch::Sender<bool>) -> Lock {
    pods::note(settings, crew);
    has_lock.send_replace(true);
    lock
}

/// Whether the last agent was off, or was told to be, as far as files say so.
fn was_off(settings: &Settings) -> bool {
    let run_dir = &settings.run_dir;
    [OffFile::new(run_dir), OffFile::of_settings(run_dir)].iter().any(OffFile::is_there)
}

/// Renews from now on what an earlier agent left.
fn bridge(settings: &Settings, crew: &Crew, stages: &mut Stages) -> anyhow::Result<Inherited> {
    stages.enter("bridge");
    Inherited::take(settings, crew)
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
        let read = source.read();
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
        let known = Known { own_node, view, read, findings, proxy };
        Ok(Self { source, present, look, known })
    }
}

/// Why an agent that runs does not go on.
enum Next {
    End(Reason),
    Off(Why),
}

impl Agent {
    /// Runs until the agent is told to end or to be off, or until a thread or task has fallen.
    async fn run(self, signals: &mut Signals) -> anyhow::Result<Ended> {
        let Self { phase, mut house, mut turns, switch } = self;
        let settings = Arc::clone(&house.settings);
        let run_dir = &settings.run_dir;
        let inbox = Arc::clone(&phase.verdicts.inbox);
        let next = tokio::select! {
            // The order matters: a thread that ends once the agent was told to end is no fault.
            biased;
            name = signals.come() => Ok(Next::End(Reason::Signal(name))),
            () = house.handed_over.cancelled() => Ok(Next::End(Reason::TakenOver)),
            () = lost(&house.server, &house.lock, run_dir) => Err(write_down(&settings, &inbox, &mut house.lock).await),
            fallen = fallen(&phase.crew, &house.crew) => match is_lost(&house.server, &house.lock, run_dir) {
                // A thread or task noticed first that files are gone.
                true => Err(write_down(&settings, &inbox, &mut house.lock).await),
                false => Err(fallen.into()),
            },
            why = turns.off() => Ok(Next::Off(why)),
        };
        let ended = match next {
            Ok(Next::Off(why)) => return phase.off(house, turns, switch, why, signals).await,
            Ok(Next::End(why)) => Ok(why),
            Err(error) => Err(error),
        };
        let crew = phase.crew.clone();
        // From now on no client is answered: its request could not be carried out.
        house.crew.end();
        phase.end().await;
        let House { crew: house, server, lock, .. } = house;
        house.end();
        house.wind_up(WIND_UP).await;
        // The socket goes before the lock: whoever has the lock may take what lies there for stale.
        server.remove();
        // This also covers a thread or task that fell on the way to the end: its work was not done.
        let ended = match crew.fallen().or(house.fallen()) {
            Some(fallen) if ended.is_ok() => Err(fallen.into()),
            _ => ended,
        };
        drop(lock);
        match &ended {
            Ok(why) => tracing::info!(
                event = "ended",
                why = why.text(),
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
        ended.map(Reason::then)
    }
}

/// Returns once a thread or task of either has fallen.
async fn fallen(phase: &Crew, house: &Crew) -> Fallen {
    tokio::select! {
        fallen = phase.falls() => fallen,
        fallen = house.falls() => fallen,
    }
}

/// Waits until the first tables were written, or could not be, and until all that follows from them is in the maps.
async fn tables_written(tables: &watch::Receiver<TablesRow>, verdicts: &Inbox) {
    let mut tables = tables.clone();
    // The channel is closed where the thread ended: then the agent ends too.
    let _ended = tables.wait_for(|row| row.tries > 0).await.is_err();
    let _ended = verdicts.settled().await.is_err();
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
