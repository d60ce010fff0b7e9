//! How an agent begins. What an earlier agent left is renewed first. All else is opened meanwhile.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use nodefence_common::NodeEntry;
use tokio::sync::watch;

use super::{
    actors::Shared,
    builder::{Builder, Builds, flags_of},
    compare::Comparing,
    inbox, lines,
    lock::{Lock, LockError},
    outlets::{Bells, Outlets},
    pods,
    reader::Reader,
    records,
    settings::Settings,
    sight::Sight,
    slot::Slot,
    store::Store,
    tables::{Tables, TablesRow},
    threads::Crew,
    verdicts::{Beginning, Verdicts},
    world::{Published, World},
    writer::{Nowhere, Writer},
};
use crate::{
    cluster::{ClusterView, NodeName},
    dataplane::{Attach, CutLog, Dataplane, EventStream, NodeWriter, Rescues, Switches, probe::Findings},
    enforce::{ClaimSource, Enforcer, Epoch, InMaps, Input, Now},
    flags::{FlagStore, now},
    plan::Indices,
    proxy::{self, Judgement},
    report::{Client, ClientError, Request},
};

/// How long an agent that was asked to hand over may take to answer, or to end where it does not answer.
const HAND_OVER: Duration = Duration::from_secs(10);
/// How long an agent that handed over may take to end. It ends in any case, and renews its verdicts until its drain is through with what
/// it reads. Large IPVS tables are read for longer than a minute where others want the processor.
const ENDS: Duration = Duration::from_secs(180);

/// The threads that hold what an earlier agent left: `verdicts` renews it from the first moment on, `store` saves it.
pub(super) struct Inherited {
    pub(super) verdicts: Verdicts,
    pub(super) store: Store,
}

impl Inherited {
    /// Begins to renew the verdicts of an agent that ended. All that follows may take seconds, for example to read a large view, and an
    /// upgrade must not let verdicts lapse.
    pub(super) fn take(settings: &Settings, crew: &Crew) -> anyhow::Result<Self> {
        let adopted = FlagStore::new(&settings.run_dir).adopt(now())?;
        records::adopted(&adopted);
        let (writer, pinned) = pinned(settings);
        // The own node is not known before the view.
        let enforcer_settings = settings.enforcer_settings(NodeName::default());
        // This must be known before anything is renewed: verdicts that an earlier agent wrote by `--force` may be left.
        let replacement = proxy::replacement();
        let enforcer = Enforcer::bridge(pinned, adopted.saved, enforcer_settings, replacement, now());
        let work = Arc::new(Slot::default());
        let lines = lines::start(crew)?;
        let store = Arc::clone(&work);
        let verdicts =
            Verdicts::start(Beginning { enforcer, writer, store, lines, crew: crew.clone() })?.watched()?;
        let inbox = Arc::clone(&verdicts.inbox);
        let store = Store::start(&settings.run_dir, &work, inbox, adopted.problem, crew)?;
        Ok(Self { verdicts, store })
    }

    /// Tells what the source flags, once the source was read: these claims are renewed too.
    pub(super) fn know_flags(&self, view: &ClusterView) {
        let claims = flags_of(view);
        self.verdicts.inbox.tell(Input::Replace { source: ClaimSource::File, claims });
    }
}

/// The writer that renews pinned entries, and these entries.
fn pinned(settings: &Settings) -> (Box<dyn Writer>, Vec<(u32, NodeEntry)>) {
    match NodeWriter::pinned(&settings.options.pin_dir) {
        Some((writer, pinned)) => (Box::new(writer), pinned),
        None => (Box::new(Nowhere), Vec::new()),
    }
}

/// Has the agent that runs end, and takes its lock.
pub(super) fn take_over(settings: &Settings) -> anyhow::Result<Lock> {
    const STANDS_STILL: &str = "end it by its process id, or let it go on (SIGCONT)";
    // An agent of another pod may have had the lock since this one began, and may have lost it again.
    if let Some(pod) = pods::taken_from(settings) {
        anyhow::bail!(
            "cannot take over; another agent took over from this pod ({pod}), which never takes over again"
        );
    }
    // The other agent may have ended by itself meanwhile.
    match Lock::take(&settings.run_dir, STANDS_STILL) {
        Err(LockError::Busy { .. }) => {}
        taken => return Ok(taken?),
    }
    let asked = Client::connect(&settings.socket).and_then(|mut other| {
        other.set_patience(HAND_OVER)?;
        other.ask::<i32>(&Request::HandOver)
    });
    let before = match asked {
        Ok(pid) => Some(pid),
        // The other agent may have been ending anyway: its lock decides.
        Err(error @ ClientError::Failure(_)) => {
            return Err(error).context("cannot take over; the agent that runs goes on");
        }
        Err(error) => {
            tracing::warn!(event = "predecessor-silent", %error, "the other agent does not answer");
            None
        }
    };
    let patience = if before.is_some() { ENDS } else { HAND_OVER };
    let lock = Lock::wait(&settings.run_dir, STANDS_STILL, patience, before).map_err(|error| {
        let trouble = match (&error, before) {
            (LockError::Busy { pid: Some(pid), .. }, Some(before)) if *pid != before => {
                "cannot take over; another agent took over first"
            }
            (_, Some(_)) => "cannot take over yet; the other agent handed over, and has not ended",
            (_, None) => "cannot take over; the other agent did not end, and goes on unless it stands still",
        };
        anyhow::Error::new(error).context(trouble)
    })?;
    tracing::info!(event = "took-over", before, "this agent took over from another");
    Ok(lock)
}

/// The facts that were found out before anything was opened.
pub(super) struct Known {
    pub(super) own_node: NodeName,
    pub(super) view: Arc<ClusterView>,
    /// When the source last confirmed the view, where that was before it was read.
    pub(super) read: Option<Now>,
    pub(super) findings: Findings,
    pub(super) proxy: Judgement,
}

/// All that was opened, for the actors that are to have it.
pub(super) struct Opened {
    pub(super) shared: Shared,
    /// How far the thread that writes tables is.
    pub(super) tables: watch::Receiver<TablesRow>,
    pub(super) devices: Attach,
    pub(super) switches: Switches,
    pub(super) events: EventStream,
    pub(super) rescues: Rescues,
    /// The log of the programs, where it is wanted.
    pub(super) cut_log: Option<CutLog>,
}

/// Opens the dataplane, and gives `verdicts`, which has only renewed so far, all that there is to do.
pub(super) fn open(
    mut settings: Settings,
    known: Known,
    inherited: &Inherited,
    crew: &Crew,
) -> anyhow::Result<Opened> {
    let Known { own_node, view, read, findings, proxy } = known;
    settings.options.config = settings.config(&findings);
    let Dataplane { mut devices, tables: maps, counters, switches } = Dataplane::open(&settings.options)?;
    let nodes = maps.owned()?;
    let indices = Indices::adopt(&nodes, maps.backends()?.into_iter().map(|(_, entry)| entry));
    let mut builder = Builder::new(&settings.policy(&own_node), proxy.mode, indices);
    // Nothing was written yet.
    let first = builder.take_of(view, read.unwrap_or_else(now), Epoch(0))?;
    let exempt = maps.exempt()?;
    // The writer is made before anything is attached: it writes the maps that devices still read.
    let writer = Box::new(NodeWriter::new(&devices)?);
    let injector = devices.injector()?;
    let events = devices.events()?;
    let rescues = devices.rescues()?;
    let cut_log = if settings.options.log_cuts { Some(devices.cut_log()?) } else { None };
    let published = Arc::new(Published::new(World::first(&first, proxy, findings)));
    let bells = Bells::default();
    let builds = Arc::new(Builds::default());
    let Verdicts { inbox, beat, .. } = &inherited.verdicts;
    let outlets =
        Outlets { world: Arc::clone(&published), tables: Arc::new(Slot::default()), bells: bells.clone() };
    let (row, tables) = watch::channel(TablesRow::default());
    let writes = Tables {
        maps,
        in_maps: InMaps::default(),
        comparing: Comparing::new(
            settings.compare_every,
            Arc::clone(inbox),
            Arc::clone(beat),
            Arc::clone(&published),
        ),
        work: Arc::clone(&outlets.tables),
        inbox: Arc::clone(inbox),
        row,
        max_backends: settings.options.max_backends,
    };
    writes.start(crew)?;
    builder.start(Arc::clone(&builds), Arc::clone(inbox), Arc::clone(beat), crew)?;
    inbox.open(inbox::Opened { own: own_node.clone(), writer, outlets });
    // The map that was renewed so far may be one that devices are about to leave.
    inbox.tell(Input::Found { nodes, exempt, whole: true });
    // The replacement is looked up once more: the first view may have been waited for.
    inbox.tell(Input::Replacement(proxy::replacement()));
    let flags = flags_of(&first.view);
    inbox.view(first, Some(flags));
    let reader = Reader::new(settings.conntrack_zone);
    let shared = Shared {
        sight: Sight { settings: Arc::new(settings), own_node, world: published.reader() },
        crew: crew.clone(),
        verdicts: Arc::clone(inbox),
        beat: Arc::clone(beat),
        published,
        builds,
        bells,
        injector,
        follow_up: Arc::default(),
        rescue: Arc::default(),
        reader,
        counters: Arc::new(counters),
    };
    Ok(Opened { shared, tables, devices, switches, events, rescues, cut_log })
}
