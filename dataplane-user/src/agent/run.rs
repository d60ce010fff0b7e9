//! The agent from its start to its end: in which order things are checked, taken, started and given up.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use nix::sys::stat::{Mode as FileMode, umask};
use nodefence_common::EventKind;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    audit,
    bridge::{Bridge, alive},
    core::Core,
    file_flags, findings, idle,
    lock::{Lock, LockError},
    mode, neighbours, network,
    own_node::{local_addresses, own_node, refuse_local},
    pinned, preflight,
    rescue::Rescue,
    serve::Desk,
    settings::Settings,
    state::State,
    takeout::TakingOut,
    threads::precedence,
};
use crate::{
    cluster::{ClusterView, FileFlag, FileSource, NodeName, Watch},
    dataplane::{
        Dataplane, EventStream, Injector,
        probe::{Findings, Present},
    },
    flags::{Adopted, Clocks, FlagStore, Flags, monotonic_ns},
    plan::{Indices, Slot},
    report::{Client, ClientError, Request, Server},
};

/// How long an agent that was asked to hand over may take to end.
const HAND_OVER: Duration = Duration::from_secs(10);

/// How long tasks may take to end in order.
const WIND_UP: Duration = Duration::from_secs(1);

/// What to do about another agent.
const ADVICE: &str = "end it, or start this one with --take-over";

/// Runs the agent until a signal, or until another agent takes over. The dataplane stays in the kernel.
///
/// # Errors
/// Whatever keeps the agent from starting or going on, with the file, field or flag it is about.
pub async fn run(mut settings: Settings) -> anyhow::Result<()> {
    // Files and the socket of the agent are its own from their first moment on.
    umask(FileMode::from_bits_truncate(0o077));
    let mut signals = Signals::new()?;
    preflight::check(&settings)?;
    let held = match Lock::take(&settings.run_dir, ADVICE) {
        Err(LockError::Busy { .. }) if settings.take_over => None,
        taken => Some(taken?),
    };
    // Where an agent runs, it goes on to renew its verdicts until all is ready; where none does, the bridge renews what an
    // earlier one left. All that follows may take seconds, a large cluster file for one.
    let inherited = match &held {
        Some(_) => Some(inherit(&settings, &[])?),
        None => None,
    };
    let source = FileSource::new(settings.cluster_file.clone(), settings.allow_empty);
    // Watched before it is read: a change in between is seen.
    let watch = Watch::new(source.path());
    let view = source.load()?;
    let local = local_addresses().context("list this machine's addresses")?;
    refuse_local(&view, &local).with_context(|| source.path().display().to_string())?;
    let own_node = own_node(&view, settings.node.as_deref(), &local)?;
    if let Some((adopted, Some(bridge))) = &inherited {
        bridge.set_flags(all_flags(adopted, &view.flags));
    }
    let present = Present::now();
    let findings = tokio::task::spawn_blocking(Findings::gather).await?;
    tracing::info!(milliseconds = findings.milliseconds, "{findings}");
    settings.options.config = settings.config(&findings);
    if let Some(why) = signals.came().await {
        tracing::info!(why, "told to end before the agent ran; nothing was changed");
        return Ok(());
    }
    let mut lock = match held {
        Some(lock) => lock,
        None => take_over(&settings)?,
    };
    let mut server = Server::bind(settings.socket.clone())?;
    let (adopted, bridge) = match inherited {
        Some(inherited) => inherited,
        None => inherit(&settings, &view.flags)?,
    };
    let (core, events) = start(settings, own_node, findings, view, &watch, adopted)?;
    let core = Arc::new(core);
    let stop = CancellationToken::new();
    drop(bridge);
    let renewal = Renewal::start(Arc::clone(&core))?;
    {
        // Before what an earlier agent took out of IPVS is gone on with, or put back.
        let core = Arc::clone(&core);
        tokio::task::spawn_blocking(move || mode::look(&core)).await?;
    }
    let taking_out = TakingOut::start(&core)?;
    let rescue = Rescue::start(&core)?;
    let mut tasks = JoinSet::new();
    {
        let core = Arc::clone(&core);
        tokio::task::spawn_blocking(move || {
            core.write_tables(&mut core.dataplane());
            network::refresh(&core);
        })
        .await?;
    }
    tasks.spawn(network::follow(Arc::clone(&core), stop.clone()));
    tasks.spawn(follow_file(Arc::clone(&core), source, watch, stop.clone()));
    tasks.spawn(follow_events(events, core.injector.clone(), stop.clone()));
    tasks.spawn(findings::follow(Arc::clone(&core), present, stop.clone()));
    tasks.spawn(mode::follow(Arc::clone(&core), stop.clone()));
    tasks.spawn(pinned::follow(Arc::clone(&core), stop.clone()));
    tasks.spawn(audit::follow(Arc::clone(&core), stop.clone()));
    tasks.spawn(expire(Arc::clone(&core), stop.clone()));
    tasks.spawn(neighbours::follow(Arc::clone(&core), stop.clone()));
    if core.settings.options.log_cuts {
        let (mut log, stop) = (core.dataplane().cut_log()?, stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = log.follow() => Ok(ended?),
            }
        });
    }
    let asking = idle::follow(Arc::clone(&core), stop.clone());
    tasks.spawn(async {
        asking.await;
        Ok(())
    });
    tracing::info!(
        node = core.own_node.as_str(),
        socket = %core.settings.socket.display(),
        mode = ?core.settings.mode,
        version = env!("CARGO_PKG_VERSION"),
        "the agent runs"
    );
    let desk = Arc::new(Desk::new(Arc::clone(&core), stop.clone()));
    let panicked = core.panicked.clone();
    let ended = loop {
        let ended = tokio::select! {
            // In this order: once the end was asked for, tasks end too.
            biased;
            why = signals.come() => Ok(why),
            () = stop.cancelled() => Ok("another agent takes over"),
            () = server.serve(Arc::clone(&desk)) => Ok("the socket is gone"),
            () = server.lost() => match again_in_place(&core, &mut server, &mut lock) {
                Ok(()) => continue,
                Err(error) => Err(error),
            },
            () = panicked.cancelled() => Err(anyhow::anyhow!("a thread panicked; see above")),
            () = renewal.ended() => Err(anyhow::anyhow!("the thread that renews verdicts ended; they lapse in 3 s")),
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ok(())) => Ok("a task ended"),
                Ok(Err(error)) => Err(error),
                Err(panic) => Err(panic.into()),
            },
        };
        break ended;
    };
    stop.cancel();
    taking_out.end();
    rescue.end();
    // Before the lock is given up: whoever takes over has the verdicts' whole lifetime to do so.
    renewal.end();
    let _late = timeout(WIND_UP, async { while tasks.join_next().await.is_some() {} }).await;
    // The socket goes before the lock: whoever has the lock may take what lies there for stale.
    drop(server);
    match &ended {
        Ok(why) => tracing::info!(why, "the agent ends; the dataplane stays, verdicts lapse in 3 s"),
        Err(error) => tracing::error!(%error, "the agent ends; the dataplane stays, verdicts lapse in 3 s"),
    }
    drop(lock);
    ended.map(drop)
}

/// Makes lock, socket and flags file anew where somebody removed the run folder, or the socket: without them nobody could take a flag back.
fn again_in_place(core: &Core, server: &mut Server, lock: &mut Lock) -> anyhow::Result<()> {
    let Settings { run_dir, socket, .. } = &core.settings;
    tracing::error!(socket = %socket.display(), "the socket's file is gone; the run folder is made anew");
    if !lock.is_in(run_dir) {
        *lock = Lock::take(run_dir, ADVICE).context("the run folder is gone, and cannot be made anew")?;
    }
    server.bind_again()?;
    core.state().unsaved = true;
    Ok(())
}

/// Has the agent that runs end, and takes its lock.
fn take_over(settings: &Settings) -> anyhow::Result<Lock> {
    const STANDS_STILL: &str = "end it by its process id, or let it go on (SIGCONT)";
    // It may have ended by itself meanwhile.
    match Lock::take(&settings.run_dir, STANDS_STILL) {
        Err(LockError::Busy { .. }) => {}
        taken => return Ok(taken?),
    }
    let asked = Client::connect(&settings.socket).and_then(|mut other| {
        other.set_patience(HAND_OVER)?;
        other.ask::<i32>(&Request::HandOver)
    });
    match asked {
        Ok(pid) => tracing::info!(pid, "took over"),
        // It may have been ending anyway: its lock decides.
        Err(error @ ClientError::Failure(_)) => return Err(error.into()),
        Err(error) => tracing::warn!(%error, "the other agent does not answer"),
    }
    Lock::wait(&settings.run_dir, STANDS_STILL, HAND_OVER)
        .context("take over: the other agent did not end; it goes on, if it does not stand still")
}

/// The flags that an earlier agent left, and what renews their verdicts until this one does.
fn inherit(settings: &Settings, of_the_file: &[FileFlag]) -> anyhow::Result<(Adopted, Option<Bridge>)> {
    let adopted = FlagStore::new(&settings.run_dir).adopt(Clocks::now())?;
    if let Some(problem) = &adopted.problem {
        tracing::error!(problem, "flags were lost");
    }
    for (node, flag) in &adopted.flags {
        tracing::info!(node = node.as_str(), reason = flag.reason, "adopted a flag");
    }
    let bridge =
        Bridge::start(&settings.options.pin_dir, &settings.run_dir, &all_flags(&adopted, of_the_file))?;
    Ok((adopted, bridge))
}

fn all_flags(adopted: &Adopted, of_the_file: &[FileFlag]) -> Flags {
    let mut flags = Flags::with_cli(adopted.flags.clone());
    flags.set_file(of_the_file, Clocks::now());
    flags
}

/// Opens the dataplane and takes over what lies in it and in the flags file.
fn start(
    settings: Settings,
    own_node: NodeName,
    findings: Findings,
    view: ClusterView,
    watch: &Watch,
    adopted: Adopted,
) -> anyhow::Result<(Core, EventStream)> {
    let store = FlagStore::new(&settings.run_dir);
    let flags = all_flags(&adopted, &view.flags);
    let mut dataplane = Dataplane::open(&settings.options)?;
    let pinned = dataplane.nodes()?;
    let mut indices = Indices::adopt(&pinned, dataplane.backends()?.into_iter().map(|(_, entry)| entry));
    indices.reconcile(view.nodes.iter().map(|node| &node.name))?;
    // Who is cut at this moment: those without a flag are let go at once.
    let alive = alive(&pinned, monotonic_ns());
    let cut = |index: u32, generation: u32| {
        alive.iter().any(|(at, entry)| *at == index && entry.generation == generation)
    };
    let armed: BTreeMap<NodeName, Slot> = indices
        .iter()
        .filter(|(_, slot)| cut(slot.index, slot.generation))
        .map(|(name, slot)| (name.clone(), slot))
        .collect();
    file_flags::tell(&[], &view, &own_node);
    let kept = dataplane.kept()?;
    let writer = Box::new(dataplane.node_writer()?);
    let mut state = State::new(view, flags, indices, armed, kept, writer, findings);
    state.watch_error = watch.degraded.clone();
    state.flags_problem = adopted.problem;
    let events = dataplane.events()?;
    let injector = dataplane.injector()?;
    Ok((Core::new(settings, own_node, state, dataplane, injector, store), events))
}

/// The thread that renews verdicts.
struct Renewal {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
    /// Cancelled when the thread ends, in whatever way.
    ended: CancellationToken,
}

impl Renewal {
    fn start(core: Arc<Core>) -> anyhow::Result<Self> {
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let thread = {
            let (core, stop, end) = (Arc::clone(&core), Arc::clone(&stop), ended.clone().drop_guard());
            std::thread::Builder::new().name("renew".into()).spawn(move || {
                let _end = end;
                // Those that rescue and take out have it: on one processor they would hold up what they follow.
                precedence();
                core.renew(&stop);
            })?
        };
        Ok(Self { core, stop, thread, ended })
    }

    async fn ended(&self) {
        self.ended.cancelled().await;
    }

    fn end(self) {
        {
            // Under the lock the thread either has not looked yet or waits already: it cannot miss the wake.
            let _state = self.core.state();
            self.stop.store(true, Ordering::Relaxed);
        }
        self.core.wake();
        let _panicked = self.thread.join();
    }
}

/// The signals that ask for the end. Taken from the first moment on: the first process of a container does not get those that it has no handler for
/// (pid_namespaces(7)), and one that comes while the agent starts is not lost.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let of = |kind| signal(kind).context("take signals");
        Ok(Self { term: of(SignalKind::terminate())?, int: of(SignalKind::interrupt())? })
    }

    async fn come(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }

    /// Whether one came already.
    async fn came(&mut self) -> Option<&'static str> {
        tokio::select! {
            biased;
            why = self.come() => Some(why),
            () = std::future::ready(()) => None,
        }
    }
}

async fn follow_file(
    core: Arc<Core>,
    source: FileSource,
    mut watch: Watch,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let source = Arc::new(source);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = watch.changed() => {}
        }
        let (reloaded, source) = (Arc::clone(&core), Arc::clone(&source));
        if tokio::task::spawn_blocking(move || reloaded.reload(&source)).await? {
            core.view_changed.notify_one();
            core.flagged.notify_one();
        }
    }
}

/// Answers what the kernel handed over, until `stop`. Of packets only samples are logged, which the kernel limits, and these
/// only with RUST_LOG=debug.
async fn follow_events(
    mut events: EventStream,
    injector: Injector,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            event = events.next() => event?,
        };
        if EventKind::from_raw(event.kind) != Some(EventKind::Answer) {
            tracing::debug!(
                node = event.node,
                ifindex = event.ifindex,
                reason = event.reason,
                "cut (a sample)"
            );
            continue;
        }
        injector.answer(&event);
    }
}

/// Once a second: drops flags that are over, and writes the flags file and the tables again where that failed.
async fn expire(core: Arc<Core>, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        let core = Arc::clone(&core);
        tokio::task::spawn_blocking(move || {
            core.tell_failed();
            core.expire_flags();
            core.save_again();
            if core.state().write_error.is_some() {
                core.write_tables(&mut core.dataplane());
            }
        })
        .await?;
    }
}
