//! Follows the cluster file: reads it again where it may have changed, and hands it to the builder.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    builder::Builds,
    own_node::{local_addresses, refuse_local},
    threads::{Crew, Nice},
    told::SourceRow,
};
use crate::{
    cluster::{ClusterView, NodeName},
    flags::monotonic_ns,
    source::{FileSource, Watch},
};

/// Who reads it, and whom it tells.
pub(super) struct Following {
    pub(super) source: FileSource,
    /// What was read of it before.
    pub(super) view: Arc<ClusterView>,
    pub(super) watch: Watch,
    pub(super) own_node: NodeName,
    pub(super) builds: Arc<Builds>,
    pub(super) row: watch::Sender<SourceRow>,
}

/// Follows it until the agent ends. What is wrong with it is kept for `status`; the last good view stays then.
pub(super) async fn follow(following: Following, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let Following { source, mut view, mut watch, own_node, builds, row } = following;
    let reader = reader(source, &crew)?;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = watch.changed() => {}
        }
        let (answer, read) = oneshot::channel();
        let _fallen = reader.send((Arc::clone(&view), answer));
        let Ok((loaded, took)) = read.await else {
            // It fell, and says so itself: the agent ends.
            stop.cancelled().await;
            return Ok(());
        };
        row.send_modify(|row| {
            row.reading.times += 1;
            row.reading.processor_micros += took.as_micros() as u64;
            row.reading.ended_ns = monotonic_ns();
        });
        let taken = match loaded {
            Ok((loaded, backends)) => {
                view = loaded;
                take(&builds, &own_node, Arc::clone(&view), backends, &stop).await
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok(()) => row.send_modify(|row| row.error = None),
            Err(error) => {
                tracing::error!(error, "the last good view stays");
                row.send_modify(|row| row.error = Some(error));
            }
        }
    }
}

/// What was read, with how many backends all nodes have, and how long the thread had a processor for it.
type Read = (Result<(Arc<ClusterView>, usize), String>, Duration);

/// Starts the thread that reads whenever it is given what was read before. Always the same one: what stays of each reading lies in memory of the thread that read,
/// between what went, and only that thread fills the gaps by its next reading.
fn reader(
    source: FileSource,
    crew: &Crew,
) -> std::io::Result<mpsc::Sender<(Arc<ClusterView>, oneshot::Sender<Read>)>> {
    let (asks, asked) = mpsc::channel::<(Arc<ClusterView>, oneshot::Sender<Read>)>();
    crew.hand("source", Nice::Usual, move || {
        for (before, answer) in asked {
            // Whoever asked may have ended with the agent.
            let _gone = answer.send(timed(|| load(&source, &before)));
        }
    })?;
    Ok(asks)
}

/// Does something, and tells how long this thread had a processor for it.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    // The clock exists on every kernel that can run this.
    let used = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    let before = used();
    let done = work();
    (done, used().saturating_sub(before))
}

/// What did not change since `before` is shared with that. Gives how many backends all nodes have beside it.
fn load(source: &FileSource, before: &ClusterView) -> Result<(Arc<ClusterView>, usize), String> {
    // Where the addresses cannot be listed, there is nothing to hold the file against.
    let local = local_addresses().unwrap_or_default();
    let view = source.load().map_err(|error| error.to_string())?;
    refuse_local(&view, &local).map_err(|error| format!("{}: {error}", source.path().display()))?;
    let backends = view.backends();
    Ok((Arc::new(view.sharing(before)), backends))
}

/// Hands a view on, and waits until what follows from it is worked out.
async fn take(
    builds: &Builds,
    own_node: &NodeName,
    view: Arc<ClusterView>,
    backends: usize,
    stop: &CancellationToken,
) -> Result<(), String> {
    let nodes = view.nodes.len();
    let source = view.source;
    let is_there = view.node(own_node).is_some();
    let taken = builds.deliver(view);
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        // Nobody else delivers, so none takes its place; and where the builder ended, so does the agent.
        taken = taken => taken.unwrap_or(Ok(())).map_err(|full| full.to_string())?,
    }
    if !is_there && nodes != 0 {
        tracing::warn!(node = own_node.as_str(), "this node is not in {source} any more");
    }
    tracing::info!(nodes, backends, "took {source}");
    Ok(())
}
