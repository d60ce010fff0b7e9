//! Follows a source of single objects: takes all changes that wait, and hands the view on where it is another one.

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        builder::APART,
        own_node::{local_addresses, own_node},
        settings::Settings,
        threads::{Crew, Priority},
        timed::timed,
        view_store::{PATIENCE, ViewStore},
    },
    sink::SourceSink,
};
use crate::{
    cluster::{ClusterView, Conflict, NodeName},
    enforce::Now,
    flags::now,
    report::ConflictRow,
    source::{API_SERVER, Gathered, Objects},
};

/// How often a start says again what it waits for.
const REMIND: Duration = Duration::from_secs(30);
/// How often at most this machine's addresses are listed anew with a change. Where kube-proxy forwards by IPVS there are as many as
/// Services.
const LOCAL: Duration = Duration::from_secs(1);
/// How many conflicts `status` and a line of the log name at most.
const EXAMPLES: usize = 10;

/// A source whose first lists have come.
pub(super) struct Followed {
    pub(super) view: Arc<ClusterView>,
    pub(super) own_node: NodeName,
    /// When the source last confirmed the view, where that is known.
    pub(super) read: Option<Now>,
    /// Tells the thread to go on, and where its views go.
    goes_on: oneshot::Sender<SourceSink>,
}

impl Followed {
    /// Starts the thread that takes the objects, and waits until all lists have come. `store`: stores the view, and has what an earlier agent stored.
    pub(super) async fn first(
        objects: Objects,
        store: Option<ViewStore>,
        settings: &Settings,
        crew: &Crew,
    ) -> anyhow::Result<Self> {
        let (named, allow_empty) = (settings.node.clone(), settings.allow_empty);
        let (begun, _thread) = Begun::start(objects, store, named, allow_empty, crew)?;
        let Ok((own_node, view, read)) = begun.told.await else {
            // The thread says itself why it ended.
            return Err(crew.falls().await.into());
        };
        Ok(Self { view, own_node, read, goes_on: begun.goes_on })
    }

    /// Has the thread follow the source until the agent ends.
    pub(super) fn follow(self, sink: SourceSink) {
        // Where the thread has fallen, the agent ends.
        let _fallen = self.goes_on.send(sink);
    }
}

/// A source whose first lists are awaited.
struct Begun {
    /// This node, the first view, and when the source last confirmed it.
    told: oneshot::Receiver<(NodeName, Arc<ClusterView>, Option<Now>)>,
    /// As in [`Followed`].
    goes_on: oneshot::Sender<SourceSink>,
}

impl Begun {
    /// Starts the thread. `named`: the name of this node, where it is given. `allow_empty`: a view without nodes is taken too.
    fn start(
        objects: Objects,
        store: Option<ViewStore>,
        named: Option<String>,
        allow_empty: bool,
        crew: &Crew,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (tell, told) = oneshot::channel();
        let (goes_on, begins) = oneshot::channel();
        let stop = crew.stop();
        let thread = crew.thread("source", Priority::Batch, move || {
            let mut taking = Taking::new(objects, store, allow_empty);
            let (own_node, view) = match taking.first(named.as_deref()) {
                Ok(first) => first,
                // The source may end with the agent, or with an agent that is turned off.
                Err(_) if stop.is_cancelled() => return Ok(()),
                Err(error) => return Err(error),
            };
            let read = taking.objects.stored().map(|stored| stored.confirmed);
            let _gone = tell.send((own_node.clone(), view, read));
            // Where the start failed, the agent ends.
            let Ok(sink) = begins.blocking_recv() else { return Ok(()) };
            taking.follow(&own_node, &sink, &stop)
        })?;
        Ok((Self { told, goes_on }, thread))
    }
}

/// The state of the thread that takes the objects.
struct Taking {
    objects: Gathered,
    allow_empty: bool,
    /// When this machine's addresses were last listed.
    listed: Option<Instant>,
    store: Option<ViewStore>,
}

impl Taking {
    fn new(objects: Objects, store: Option<ViewStore>, allow_empty: bool) -> Self {
        Self { objects: Gathered::new(objects), allow_empty, listed: None, store }
    }

    /// Waits for all lists, and finds out which node this is. Objects that have not come yet must not pass for missing: nodes would lose
    /// their places in the maps, and verdicts of cut nodes would be deleted.
    fn first(&mut self, named: Option<&str>) -> anyhow::Result<(NodeName, Arc<ClusterView>)> {
        let mut said = None;
        // From then on what an earlier agent stored is waited for, too.
        let mut recall = self.store.is_some().then(|| Instant::now() + PATIENCE);
        let (own, local) = loop {
            let waits = match self.objects.missing().filter(|_| self.objects.stored().is_none()) {
                Some(missing) => format!("the first list of {missing}"),
                None => {
                    let view = self.objects.view();
                    let local = local_addresses().context("cannot list this machine's addresses")?;
                    match self.believed(&view).map(|()| own_node(&view, named, &local)) {
                        Ok(Ok(own)) => break (own, local),
                        // The controller may not have made this node's member yet, and lists that have not come may have it.
                        Ok(Err(error)) if self.store.is_some() => error.to_string(),
                        Ok(Err(error)) => return Err(error.into()),
                        Err(why) => why,
                    }
                }
            };
            if said.as_ref() != Some(&waits) {
                tracing::info!(
                    event = "view-awaited",
                    "the start waits for {}: {waits}",
                    self.objects.name()
                );
            }
            // After a while the log says again what the start waits for.
            let longest = recall.map_or(REMIND, |at| at.saturating_duration_since(Instant::now()));
            said = match self.objects.wait(Some(longest))? {
                false if recall.take().is_some() => {
                    if let Some(store) = &self.store {
                        store.load(self.objects.name(), self.objects.recaller());
                    }
                    Some(waits)
                }
                false => None,
                true => {
                    self.objects.take();
                    self.recalled();
                    Some(waits)
                }
            };
        };
        self.set_machine(&own, local);
        let view = Arc::new(self.objects.view());
        self.log(self.objects.conflicts());
        if let Some(stored) = self.objects.stored() {
            let age = now().boot.saturating_sub(stored.confirmed.boot) + stored.before_boot;
            tracing::warn!(
                event = "view-from-disk",
                age_seconds = age.as_secs(),
                "{} has not listed all objects; the view that an earlier agent stored holds until it has",
                view.source
            );
        }
        tracing::info!(
            event = "view-taken",
            nodes = view.nodes.len(),
            backends = view.backends(),
            "{} was read, and its view is in force",
            view.source
        );
        Ok((own, view))
    }

    /// Takes what an earlier agent stored, once that has come.
    fn recalled(&mut self) {
        match self.objects.recalled() {
            Some(Ok(stored)) => drop(self.objects.take_stored(*stored)),
            Some(Err(why)) => {
                tracing::warn!(event = "no-view-on-disk", why, "no earlier view can be taken from the disk");
            }
            None => {}
        }
    }

    /// Hands the view over to be stored, where it is whole and good.
    fn store(&mut self, confirmed: Now) {
        if self.objects.missing().is_none()
            && let Some(store) = &mut self.store
        {
            store.store(self.objects.revision(), confirmed, || self.objects.kept());
        }
    }

    /// Whether a view is believed.
    fn believed(&self, view: &ClusterView) -> Result<(), String> {
        if view.nodes.is_empty() && !self.allow_empty {
            let why = match self.objects.name() {
                API_SERVER => "there are no NodeMembers: does the controller run? (kubectl get nodemembers)",
                _ => "there are no nodes; if that is meant, start the agent with --allow-empty",
            };
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Follows the objects until the agent ends.
    fn follow(&mut self, own: &NodeName, sink: &SourceSink, stop: &CancellationToken) -> anyhow::Result<()> {
        self.tell_conflicts(sink);
        sink.is_away(self.objects.away());
        sink.is_stored(self.objects.stored());
        let mut is_there = true;
        let mut is_taken = true;
        let mut last = Instant::now();
        let mut read = self.objects.confirmed(now());
        loop {
            if is_taken {
                self.store(read);
            }
            let due = self.store.as_ref().filter(|_| is_taken && self.objects.missing().is_none());
            match self.objects.wait(due.and_then(|store| store.due(self.objects.revision()))) {
                Ok(true) => {}
                // Something is to be stored.
                Ok(false) => continue,
                // The source may end with the agent.
                Err(_) if stop.is_cancelled() => return Ok(()),
                Err(ended) => return Err(ended.into()),
            }
            // No view would be taken sooner. Changes that come meanwhile are taken together.
            std::thread::sleep(APART.saturating_sub(last.elapsed()));
            let before = now();
            let (view, took) = timed(|| self.take(own));
            read = self.objects.confirmed(before);
            sink.has_read(took);
            sink.is_away(self.objects.away());
            sink.is_stored(self.objects.stored());
            self.tell_conflicts(sink);
            let Some(view) = view else {
                // The source lives, and nothing that it says alters the view.
                if is_taken {
                    sink.has_confirmed(read);
                }
                continue;
            };
            last = Instant::now();
            let taken = self.believed(&view).and_then(|()| {
                let was_there = std::mem::replace(&mut is_there, view.node(own).is_some());
                if was_there && !is_there {
                    tracing::warn!(
                        event = "own-node-gone",
                        node = own.as_str(),
                        "this node is not in {} any more",
                        view.source
                    );
                }
                // Where the builder ended, so does the agent.
                let taken = sink.builds.deliver(view, read).blocking_recv().unwrap_or(Ok(()));
                taken.map_err(|full| full.to_string())
            });
            is_taken = taken.is_ok();
            sink.has_taken(taken);
        }
    }

    /// Takes the changes that wait. Returns the view where it is another one.
    fn take(&mut self, own: &NodeName) -> Option<Arc<ClusterView>> {
        // It comes too late where all lists have come.
        drop(self.objects.recalled());
        let mut brought = self.objects.take();
        if self.listed.is_none_or(|listed| listed.elapsed() >= LOCAL)
            && let Ok(local) = local_addresses()
        {
            brought.extend(self.set_machine(own, local));
        }
        self.log(brought.iter());
        self.objects.is_changed().then(|| Arc::new(self.objects.view()))
    }

    fn set_machine(&mut self, own: &NodeName, local: Vec<IpAddr>) -> Vec<Conflict> {
        self.listed = Some(Instant::now());
        let local: BTreeSet<IpAddr> = local.iter().map(IpAddr::to_canonical).collect();
        self.objects.set_machine(own, local)
    }

    /// Logs conflicts, each once, when it comes.
    fn log<'a>(&self, brought: impl Iterator<Item = &'a Conflict>) {
        let is_wrong = |conflict: &&Conflict| {
            if conflict.is_usual {
                tracing::debug!(event = "endpoint-skipped", "{}: {conflict}", self.objects.name());
            }
            !conflict.is_usual
        };
        let mut brought = brought.filter(is_wrong).peekable();
        for conflict in brought.by_ref().take(EXAMPLES) {
            tracing::warn!(event = "objects-conflict", "{}: {conflict}", self.objects.name());
        }
        if brought.peek().is_some() {
            tracing::warn!(
                event = "objects-conflict-more",
                "{}: and {} more conflicts (see `nodefence status`)",
                self.objects.name(),
                brought.count()
            );
        }
    }

    fn tell_conflicts(&self, sink: &SourceSink) {
        let told = |is_usual| {
            let those = || self.objects.conflicts().filter(move |conflict| conflict.is_usual == is_usual);
            (those().count(), those().take(EXAMPLES).map(ConflictRow::new).collect())
        };
        let (conflicts, conflict_examples) = told(false);
        let (skipped, skipped_examples) = told(true);
        sink.row.send_modify(|row| {
            row.conflicts = conflicts;
            row.conflict_examples = conflict_examples;
            row.skipped = skipped;
            row.skipped_examples = skipped_examples;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::SourceName, source::changes};

    /// A generous limit, since the machine may be busy.
    const LIMIT: Duration = Duration::from_secs(30);

    /// An agent that is turned off while it waits for its first view goes on as a process, and nothing may stay behind.
    #[test]
    fn a_start_that_is_given_up_ends_its_thread_without_a_fault() {
        let (teller, changes) = changes();
        let name = SourceName::new("the test", "test");
        let objects = Objects { name, services: true, confirms: true, changes };
        // Whoever was to read what an earlier agent stored hangs.
        let _hangs = objects.changes.recaller();
        let crew = Crew::default();
        let (mut begun, thread) = Begun::start(objects, None, None, false, &crew).unwrap();
        crew.end();
        drop(teller);
        let given_up = Instant::now();
        while !thread.is_finished() {
            assert!(given_up.elapsed() < LIMIT, "the thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(crew.fallen().is_none(), "{:?}", crew.fallen());
        assert!(begun.told.try_recv().is_err(), "it told of a view");
    }
}
