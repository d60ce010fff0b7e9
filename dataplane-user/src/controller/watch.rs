//! A watch of one kind of objects, for as long as the controller leads.

use std::{fmt::Debug, pin::pin};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, DefaultBackoff, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::sleep};

use crate::{causes::causes, source::kubernetes::has_missed_something};

/// How many objects a page of a list has.
const PAGE: u32 = 500;

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Heard<K> {
    /// A whole list.
    Listed(Vec<K>),
    /// An object that is new or changed.
    Changed(K),
    /// An object that is gone.
    Gone(K),
}

/// Watches all objects of a kind for ever, and tells what it hears. A list is told once it is complete. `kind`: the kind's name in the log.
pub(super) async fn watch<K, T>(
    kind: &'static str,
    api: Api<K>,
    filter: watcher::Config,
    tell: impl Fn(Heard<K>) -> T,
    to: mpsc::Sender<T>,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut pauses = DefaultBackoff::default();
    let mut has_failed = false;
    loop {
        let mut list = Vec::new();
        let mut events = pin!(watcher(api.clone(), filter.clone().page_size(PAGE)).default_backoff());
        while let Some(event) = events.next().await {
            let heard = match event {
                Ok(Event::Init) => {
                    list.clear();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    list.push(lean(object));
                    continue;
                }
                Ok(Event::InitDone) => Heard::Listed(std::mem::take(&mut list)),
                Ok(Event::Apply(object)) => Heard::Changed(lean(object)),
                Ok(Event::Delete(object)) => Heard::Gone(lean(object)),
                Err(error) => {
                    let begins_anew = has_missed_something(&error);
                    // Each failure is logged once, however often the watch is begun in vain.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(
                            event = "controller-watch-failed",
                            kind,
                            error = causes(&error.into()),
                            "a watch failed, and is begun anew"
                        );
                    }
                    if begins_anew {
                        break;
                    }
                    continue;
                }
            };
            if std::mem::take(&mut has_failed) {
                tracing::info!(event = "controller-watch-goes-on", kind, "a watch that had failed goes on");
            }
            if to.send(tell(heard)).await.is_err() {
                return;
            }
        }
        sleep(pauses.next().unwrap_or_default()).await;
    }
}

/// Without the list of who owns which field, which is often larger than the rest.
fn lean<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}
