//! Follows the cluster file: reads it again where it may have changed, and hands it to the builder.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        builder::Builds,
        own_node::{local_addresses, own_node, refuse_local},
        settings::Settings,
        threads::{Crew, Priority},
        timed::timed,
        told::SourceRow,
    },
    sink::SourceSink,
};
use crate::{
    cluster::{ClusterView, NodeName},
    enforce::Now,
    flags::now,
    source::{FileSource, FileWatch},
};

/// A cluster file that was read once.
pub(super) struct Followed {
    source: FileSource,
    watch: FileWatch,
    /// The view that was read.
    pub(super) view: Arc<ClusterView>,
    pub(super) own_node: NodeName,
}

impl Followed {
    /// Reads the file for the first time.
    pub(super) fn first(path: PathBuf, settings: &Settings) -> anyhow::Result<Self> {
        let source = FileSource::new(path, settings.allow_empty);
        // The file is watched before it is read: a change in between is seen.
        let watch = FileWatch::new(source.path());
        let view = Arc::new(source.load()?);
        let local = local_addresses().context("cannot list this machine's addresses")?;
        refuse_local(&view, &local).with_context(|| source.path().display().to_string())?;
        let own_node = own_node(&view, settings.node.as_deref(), &local)?;
        Ok(Self { source, watch, view, own_node })
    }

    /// The first row of `status` for the file.
    pub(super) fn row(&self) -> SourceRow {
        let file = Some(self.source.path().to_owned());
        SourceRow { file, unwatched: self.watch.degraded.clone(), ..SourceRow::default() }
    }
}

/// Follows the file until the agent ends. `status` shows what is wrong with the file; the last good view stays then.
pub(super) async fn follow(followed: Followed, sink: SourceSink, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let Followed { source, mut view, mut watch, own_node } = followed;
    let reader = reader(source, &crew)?;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = watch.changed() => {}
        }
        // The time is taken before the reading: the file may be written while it is read.
        let since = now();
        let (answer, read) = oneshot::channel();
        let _fallen = reader.send((Arc::clone(&view), answer));
        let Ok((loaded, took)) = read.await else {
            // The thread fell, and says so itself: the agent ends.
            stop.cancelled().await;
            return Ok(());
        };
        sink.has_read(took);
        let taken = match loaded {
            Ok((loaded, backends)) => {
                view = loaded;
                take(&sink.builds, &own_node, (Arc::clone(&view), since), backends, &stop).await
            }
            Err(error) => Err(error),
        };
        if taken.is_err() {
            watch.again(took);
        }
        sink.has_taken(taken);
    }
}

/// The view that was read, how many backends all its nodes have, and how much processor time the reading took.
type Read = (Result<(Arc<ClusterView>, usize), String>, Duration);

/// Starts the thread that reads whenever it is given the view that was read before. One thread does all readings: what stays of each
/// reading lies in memory of the thread that read, between gaps where the rest was, and only that thread fills these gaps.
fn reader(
    source: FileSource,
    crew: &Crew,
) -> std::io::Result<mpsc::Sender<(Arc<ClusterView>, oneshot::Sender<Read>)>> {
    let (asks, asked) = mpsc::channel::<(Arc<ClusterView>, oneshot::Sender<Read>)>();
    crew.hand("source", Priority::Batch, move || {
        for (before, answer) in asked {
            // The waiting task may have ended with the agent.
            let _gone = answer.send(timed(|| load(&source, &before)));
        }
    })?;
    Ok(asks)
}

/// Reads the file into a view that shares with `before` what did not change. Also returns how many backends all nodes have.
fn load(source: &FileSource, before: &ClusterView) -> Result<(Arc<ClusterView>, usize), String> {
    let local = local_addresses().map_err(|error| format!("list this machine's addresses: {error}"))?;
    let view = source.load().map_err(|error| error.to_string())?;
    refuse_local(&view, &local).map_err(|error| format!("{}: {error}", source.path().display()))?;
    let backends = view.backends();
    Ok((Arc::new(view.sharing(before)), backends))
}

/// Hands a view on, and waits until what follows from it is worked out.
async fn take(
    builds: &Builds,
    own_node: &NodeName,
    (view, read): (Arc<ClusterView>, Now),
    backends: usize,
    stop: &CancellationToken,
) -> Result<(), String> {
    let nodes = view.nodes.len();
    let source = view.source;
    let is_there = view.node(own_node).is_some();
    let taken = builds.deliver(view, read);
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        // Only this task delivers, so no other view takes this one's place; and where the builder ended, so does the agent.
        taken = taken => taken.unwrap_or(Ok(())).map_err(|full| full.to_string())?,
    }
    if !is_there && nodes != 0 {
        tracing::warn!(
            event = "own-node-gone",
            node = own_node.as_str(),
            "this node is not in {source} any more"
        );
    }
    tracing::info!(event = "view-taken", nodes, backends, "{source} was read, and its view is in force");
    Ok(())
}
