//! One watch: its list, its changes, and the other way to list where the API server does not stream lists.

use std::{fmt::Debug, pin::pin, time::Duration};

use futures::{Stream, StreamExt as _};
use kube::{
    Api,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    news::{Kind, Told, listed},
    read::{Read, Texts},
};
use crate::{
    causes::causes,
    cluster::{Change, Conflict},
};

/// How long a streamed list may stand still before its end. Servers that know no streamed lists take the request for a plain watch, and
/// never send the bookmark that ends the list.
const NO_END: Duration = Duration::from_secs(15);
/// How many objects a page of a list has.
const PAGE: u32 = 500;
/// HTTP's 410: the changes since the last known one are no longer kept. A new list follows, which is no failure.
const GONE: u16 = 410;
/// HTTP's 400 and 422, by which servers refuse streamed lists (feature gate `WatchList`).
const REFUSED: [u16; 2] = [400, 422];

/// The API server streams no lists, so that they are to be read page by page.
struct UsePages;

/// Follows all objects of a kind for ever.
pub(super) async fn follow<K>(
    kind: Kind,
    api: Api<K>,
    filter: watcher::Config,
    to: mpsc::Sender<(Kind, Told)>,
) where
    K: Read + kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let streamed = watcher(api.clone(), filter.clone().streaming_lists()).default_backoff();
    let UsePages = drive(streamed, kind, true, &to).await;
    let paged = watcher(api, filter.page_size(PAGE)).default_backoff();
    drive(paged, kind, false, &to).await;
}

/// Takes the events of a watch. Ends only where a streamed list is refused, or has no end.
async fn drive<K: Read>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    kind: Kind,
    is_streamed: bool,
    to: &mpsc::Sender<(Kind, Told)>,
) -> UsePages {
    let mut events = pin!(events);
    let mut list = List::<K>::default();
    let mut texts = Texts::default();
    loop {
        let next = match list.stands_still_since.filter(|_| is_streamed) {
            None => events.next().await,
            Some(since) => match timeout_at(since + NO_END, events.next()).await {
                Ok(next) => next,
                Err(_) => return UsePages,
            },
        };
        let told = match next {
            Some(Ok(Event::Init)) => {
                // Texts of objects that are gone are forgotten with each new list.
                texts = Texts::default();
                list = List { stands_still_since: Some(Instant::now()), ..List::default() };
                continue;
            }
            Some(Ok(Event::InitApply(object))) => {
                list.take(&object, &mut texts);
                continue;
            }
            Some(Ok(Event::InitDone)) => std::mem::take(&mut list).done(),
            Some(Ok(Event::Apply(object))) => Told::Changes(vec![match object.read(&mut texts) {
                Ok(Some(read)) => K::single(read),
                Ok(None) => Change::Gone(object.name()),
                Err(conflict) => Change::LeftOut(conflict),
            }]),
            Some(Ok(Event::Delete(object))) => Told::Changes(vec![Change::Gone(object.name())]),
            Some(Err(error)) if is_streamed && refuses(&error) => return UsePages,
            Some(Err(error)) if is_gone(&error) => continue,
            Some(Err(error)) => Told::Failed(causes(&error.into())),
            // A watcher has no end.
            None => return UsePages,
        };
        if to.send((kind, told)).await.is_err() {
            return UsePages;
        }
    }
}

/// A list that has not come to its end.
struct List<K: Read> {
    objects: Vec<K::Object>,
    left_out: Vec<Conflict>,
    /// When its last object came. `None` while there is no list.
    stands_still_since: Option<Instant>,
}

impl<K: Read> Default for List<K> {
    fn default() -> Self {
        Self { objects: Vec::new(), left_out: Vec::new(), stands_still_since: None }
    }
}

impl<K: Read> List<K> {
    fn take(&mut self, object: &K, texts: &mut Texts) {
        self.stands_still_since = Some(Instant::now());
        match object.read(texts) {
            Ok(read) => self.objects.extend(read),
            Err(conflict) => self.left_out.push(conflict),
        }
    }

    fn done(self) -> Told {
        listed(K::list(self.objects), self.left_out)
    }
}

/// Whether the API server refuses to stream lists.
fn refuses(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => REFUSED.contains(&status.code),
        _ => false,
    }
}

/// Whether changes were missed, so that a new list follows at once.
fn is_gone(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == GONE,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == GONE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use kube::core::{Status, response::StatusSummary};
    use serde_json::json;

    use super::*;
    use crate::{cluster::ObjectName, crds::NodeMember};

    fn member(name: &str, address: &str) -> NodeMember {
        serde_json::from_value(json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeMember", "metadata": {"name": name},
            "spec": {"uid": "5f", "addresses": [address]},
        }))
        .expect("a member")
    }

    fn refused(code: u16) -> watcher::Error {
        let status =
            Status { status: Some(StatusSummary::Failure), code, ..Status::failure("told so", "Invalid") };
        watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
    }

    /// Drives these events, and then nothing for ever. Returns what was told within a minute, and whether pages are to be used.
    async fn driven(
        events: Vec<watcher::Result<Event<NodeMember>>>,
        is_streamed: bool,
    ) -> (Vec<String>, bool) {
        let (to, mut told) = mpsc::channel(64);
        let events = stream::iter(events).chain(stream::pending());
        let driving = drive(events, Kind::Members, is_streamed, &to);
        let uses_pages = tokio::time::timeout(Duration::from_secs(60), driving).await.is_ok();
        drop(to);
        let mut texts = Vec::new();
        while let Some((_, told)) = told.recv().await {
            texts.push(match told {
                Told::Changes(changes) => changes.iter().map(change).collect::<Vec<_>>().join(", "),
                Told::Failed(why) => format!("failed: {why}"),
            });
        }
        (texts, uses_pages)
    }

    fn change(change: &Change) -> String {
        match change {
            Change::Nodes(nodes) => {
                format!(
                    "list of {}",
                    nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join("+")
                )
            }
            Change::Node(node) => format!("node {}", node.name),
            Change::Gone(ObjectName::Node(name)) => format!("gone {name}"),
            Change::LeftOut(conflict) => format!("left out {}", conflict.object),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_told_at_its_end_and_changes_at_once() {
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(member("a", "10.0.0.1"))),
            Ok(Event::InitApply(member("b", "none"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(member("c", "10.0.0.3"))),
            Ok(Event::Apply(member("a", "none"))),
            Ok(Event::Delete(member("c", "10.0.0.3"))),
        ];
        let told = ["list of a, left out node `b`", "node c", "left out node `a`", "gone c"];
        let (texts, uses_pages) = driven(events, true).await;
        assert_eq!((texts, uses_pages), (told.map(str::to_owned).to_vec(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_list_is_never_told() {
        let events = || {
            vec![
                Ok(Event::Init),
                Ok(Event::InitApply(member("a", "10.0.0.1"))),
                Err(refused(500)),
                Ok(Event::Init),
                Ok(Event::InitApply(member("b", "10.0.0.2"))),
                Ok(Event::InitDone),
            ]
        };
        let (texts, _) = driven(events(), false).await;
        assert!(texts[0].starts_with("failed: "), "{texts:?}");
        assert_eq!(texts[1..], ["list of b"]);
        let (texts, _) = driven(events().into_iter().take(2).collect(), false).await;
        assert!(texts.is_empty(), "{texts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_used_where_lists_are_not_streamed() {
        for code in REFUSED {
            assert_eq!(driven(vec![Err(refused(code))], true).await, (Vec::new(), true), "{code}");
        }
        // No bookmark ends the list.
        let events = || vec![Ok(Event::Init), Ok(Event::InitApply(member("a", "10.0.0.1")))];
        assert_eq!(driven(events(), true).await, (Vec::new(), true));
        assert_eq!(driven(events(), false).await, (Vec::new(), false));
        // A refusal for another reason, or while pages are used already, is a failure.
        for (code, is_streamed) in [(403, true), (422, false)] {
            let (texts, uses_pages) = driven(vec![Err(refused(code))], is_streamed).await;
            assert!(texts.len() == 1 && !uses_pages, "{code}: {texts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn missed_changes_are_no_failure() {
        assert_eq!(driven(vec![Err(refused(GONE))], true).await, (Vec::new(), false));
    }
}
