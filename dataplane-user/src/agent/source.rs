//! The source of views: what is known at the start, and how it is followed from then on.

mod file;
mod objects;
mod sink;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(super) use sink::SourceSink;
use tokio::{runtime::Handle, sync::watch};

use super::{
    builder::Builds, inbox::Inbox, off, settings::Settings, threads::Crew, told::SourceRow,
    view_store::ViewStore,
};
use crate::{
    causes::causes,
    cluster::{ClusterView, NodeName},
    enforce::Now,
    source::{Kubernetes, Objects, OrdersEnd, OrdersRow, SettingsEnd, Tell},
};

/// Over how long agents that the settings turn on at the same time spread their starts. Each lists all objects of the API server, and thousands at once would
/// be more than it answers.
const SPREAD: Duration = Duration::from_secs(30);

/// The source that says which nodes, backends and Services exist.
#[derive(Debug)]
pub enum Source {
    /// The cluster file at this path. It is taken as a whole or not at all.
    File(PathBuf),
    /// Objects that come one by one. Objects that conflict are left out and reported.
    Objects(Objects),
    /// The objects of a Kubernetes API server.
    Kubernetes(Kubernetes),
}

/// A source whose settings are followed, where it has any.
pub(super) enum Begun {
    File(PathBuf),
    Objects(Objects),
    Kubernetes(Kubernetes, SettingsEnd),
    /// It cannot be read how the API server is reached.
    Unreachable(anyhow::Error),
}

/// A source whose first view is known.
pub(super) struct Followed {
    kind: Kind,
    orders: Option<Orders>,
}

/// Where flags and settings come from that do not come with views.
enum Orders {
    /// Nobody is told yet.
    Waits(OrdersEnd),
    /// `verdicts` is told. What the source says of them.
    Told(watch::Receiver<OrdersRow>),
}

impl Orders {
    /// Has them told to `verdicts` from now on.
    fn begin(self, verdicts: &Arc<Inbox>) -> watch::Receiver<OrdersRow> {
        match self {
            Self::Waits(OrdersEnd { begins, row }) => {
                let verdicts = Arc::clone(verdicts);
                let tell: Tell = Box::new(move |input| verdicts.tell(input));
                // Where the work that tells has ended, the agent ends.
                let _ended = begins.send(tell);
                row
            }
            Self::Told(row) => row,
        }
    }
}

enum Kind {
    File(file::Followed),
    Objects(objects::Followed),
}

impl Source {
    /// Over how long agents spread their starts that the settings turn on at the same time.
    pub(super) fn spread(&self) -> Duration {
        match self {
            Self::File(_) | Self::Objects(_) => Duration::ZERO,
            Self::Kubernetes(kubernetes) => kubernetes.pace.of(SPREAD),
        }
    }

    /// Begins to follow the settings. Returns whether they turn the agent off. `crew`: goes on while the agent is off. `held`: whether this process has the
    /// lock of the run folder.
    pub(super) async fn begin(
        self,
        run_dir: &Path,
        crew: &Crew,
        held: watch::Receiver<bool>,
    ) -> (Begun, watch::Receiver<bool>) {
        let nobody = || watch::channel(false).1;
        match self {
            Self::File(path) => (Begun::File(path), nobody()),
            Self::Objects(objects) => (Begun::Objects(objects), nobody()),
            Self::Kubernetes(kubernetes) => match off::follow(&kubernetes, run_dir, crew, held.clone()).await
            {
                Ok((off, end)) => (Begun::Kubernetes(kubernetes, end), off),
                Err(error) => (Begun::Unreachable(error), off::kept(kubernetes, run_dir, crew, held)),
            },
        }
    }
}

impl Begun {
    /// Logs why the settings are not followed, if they are not. An agent that is off stays so, and does not end because of that.
    pub(super) fn say_unfollowed(&self) {
        if let Self::Unreachable(error) = self {
            tracing::warn!(
                event = "settings-unfollowed",
                error = causes(error),
                "the agent is off, and does not learn yet what the settings in the API server say; it tries again"
            );
        }
    }

    /// Waits for all that the source lists at first. `bridging`: who renews verdicts of an earlier agent meanwhile. Flags that are taken back must end
    /// these, however long the first view takes.
    ///
    /// # Errors
    /// Where the first lists are wrong, or where they do not say which node this is. Where the source ended, its thread has fallen.
    pub(super) async fn first(
        self,
        settings: &Settings,
        crew: &Crew,
        bridging: Option<&Arc<Inbox>>,
    ) -> anyhow::Result<Followed> {
        let mut orders = None;
        let kind = match self {
            Self::File(path) => Kind::File(file::Followed::first(path, settings)?),
            Self::Objects(objects) => {
                Kind::Objects(objects::Followed::first(objects, None, settings, crew).await?)
            }
            Self::Unreachable(error) => return Err(error),
            Self::Kubernetes(kubernetes, settings_end) => {
                let here = Handle::current();
                // kube waits for programs and files that have credentials on the calling thread.
                let with = kubernetes.clone();
                let opening =
                    crew.blocking("kubernetes", move || here.block_on(kubernetes.watch(settings_end)));
                let (objects, ends, watches) = off::in_time(&with, opening).await???;
                let waits = Orders::Waits(ends);
                orders = Some(match bridging {
                    Some(verdicts) => Orders::Told(waits.begin(verdicts)),
                    None => waits,
                });
                let stop = crew.stop();
                crew.task("kubernetes", async move {
                    stop.run_until_cancelled(watches).await;
                    Ok(())
                });
                let store = ViewStore::start(&settings.run_dir, settings.view_store_every, crew)?;
                Kind::Objects(objects::Followed::first(objects, Some(store), settings, crew).await?)
            }
        };
        Ok(Followed { kind, orders })
    }
}

impl Followed {
    /// The first view.
    pub(super) fn view(&self) -> Arc<ClusterView> {
        Arc::clone(match &self.kind {
            Kind::File(file) => &file.view,
            Kind::Objects(objects) => &objects.view,
        })
    }

    /// When the source last confirmed the first view, where that was before it was read.
    pub(super) fn read(&self) -> Option<Now> {
        match &self.kind {
            Kind::File(_) => None,
            Kind::Objects(objects) => objects.read,
        }
    }

    /// The node of the view that this agent runs on.
    pub(super) fn own_node(&self) -> NodeName {
        match &self.kind {
            Kind::File(file) => file.own_node.clone(),
            Kind::Objects(objects) => objects.own_node.clone(),
        }
    }

    /// Has the source's flags and settings told to `verdicts` from now on. Returns what the source says of them; `None` where they come with views alone.
    pub(super) fn begin_orders(&mut self, verdicts: &Arc<Inbox>) -> Option<watch::Receiver<OrdersRow>> {
        Some(self.orders.take()?.begin(verdicts))
    }

    /// Follows the source until the agent ends. Returns its row of `status`.
    pub(super) fn follow(self, builds: Arc<Builds>, crew: &Crew) -> watch::Receiver<SourceRow> {
        match self.kind {
            Kind::File(file) => {
                let (row, told) = watch::channel(file.row());
                crew.task("source", file::follow(file, SourceSink { builds, row }, crew.clone()));
                told
            }
            Kind::Objects(objects) => {
                let (row, told) = watch::channel(SourceRow::default());
                objects.follow(SourceSink { builds, row });
                told
            }
        }
    }
}
