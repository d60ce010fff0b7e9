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
    time::{Instant, sleep, timeout_at},
};

use super::{
    news::{Kind, Told, listed},
    pace::Pace,
    read::Read,
};
use crate::{causes::causes, source::Texts};

/// How long a streamed list may stand still before its end. Servers that know no streamed lists take the request for a plain watch, and
/// never send the bookmark that ends the list.
const NO_END: Duration = Duration::from_secs(15);
/// How many objects a page of a list has.
const PAGE: u32 = 500;
/// HTTP's 410: the changes since the last known one are no longer kept. As an event of a watch it is no failure: a new list follows.
const GONE: u16 = 410;
/// HTTP's 404: the API server does not know the kind. One that starts says 503 until it knows all of its kinds.
const UNKNOWN: u16 = 404;
const CUT_OFF: &str = "the list was cut off before its end";
/// HTTP's 400 and 422, by which servers refuse streamed lists (feature gate `WatchList`).
const REFUSED: [u16; 2] = [400, 422];

/// How a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The API server streams no lists: they are to be read page by page.
    UsePages,
    /// The library would go on without something that it has missed: the watch is to begin with a new list.
    Anew,
    /// Nobody takes what is told.
    Unheard,
}

/// Follows all objects of a kind for ever.
pub(super) async fn follow<K>(
    kind: Kind,
    api: Api<K>,
    (filter, pace): (watcher::Config, Pace),
    to: mpsc::Sender<(Kind, Told<K::Change>)>,
) where
    K: Read + kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut is_streamed = true;
    let mut was_listed = false;
    let mut pauses = pace.pauses();
    loop {
        let config = match is_streamed {
            true => filter.clone().streaming_lists(),
            false => filter.clone().page_size(PAGE),
        };
        let events = watcher(api.clone(), config).backoff(pace.pauses());
        match drive(events, kind, is_streamed.then(|| pace.of(NO_END)), &mut was_listed, &to).await {
            Ended::UsePages => is_streamed = false,
            Ended::Anew => sleep(pauses.next().unwrap_or_default()).await,
            Ended::Unheard => return,
        }
    }
}

/// Takes the events of a watch until it is to end. `no_end`: how long a streamed list may stand still; `None` where lists are not streamed. `was_listed`: a list
/// came to its end once, in this watch or an earlier one, so the API server has the kind. If it were removed, its objects would be deleted one by one before.
async fn drive<K: Read>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    kind: Kind,
    no_end: Option<Duration>,
    was_listed: &mut bool,
    to: &mpsc::Sender<(Kind, Told<K::Change>)>,
) -> Ended {
    let is_streamed = no_end.is_some();
    let mut events = pin!(events);
    let mut list = List::<K>::default();
    let mut texts = Texts::default();
    loop {
        let next = match list.stands_still_since.zip(no_end) {
            None => events.next().await,
            Some((since, no_end)) => match timeout_at(since + no_end, events.next()).await {
                Ok(next) => next,
                Err(_) => return Ended::UsePages,
            },
        };
        let told = match next {
            Some(Ok(Event::Init)) => {
                // Texts of objects that are gone are forgotten with each new list.
                texts = Texts::default();
                let was_cut_off = list.stands_still_since.is_some();
                list = List { stands_still_since: Some(Instant::now()), ..List::default() };
                if was_cut_off { Told::Failed(CUT_OFF.to_owned()) } else { Told::Listing }
            }
            Some(Ok(Event::InitApply(object))) => {
                list.take(&object, &mut texts);
                continue;
            }
            Some(Ok(Event::InitDone)) if list.is_broken => return Ended::Anew,
            Some(Ok(Event::InitDone)) => {
                *was_listed = true;
                std::mem::take(&mut list).done()
            }
            Some(Ok(Event::Apply(object))) => Told::Changes(vec![match object.read(&mut texts) {
                Ok(Some(read)) => K::single(read),
                Ok(None) => object.gone(),
                Err(fault) => K::left_out(fault),
            }]),
            Some(Ok(Event::Delete(object))) => Told::Changes(vec![object.gone()]),
            Some(Err(error)) if is_streamed && refuses(&error) => return Ended::UsePages,
            // The pause before the list may be long, and until then nothing is known of what changed.
            Some(Err(watcher::Error::WatchError(status))) if status.code == GONE => Told::Listing,
            // Whoever says that a listed kind is unknown may not be the API server: a gateway without its route, for example. The library would go on with changes, and
            // never list again.
            Some(Err(error)) if has_missed_something(&error) || *was_listed && is_unknown(&error) => {
                for told in [Told::Listing, Told::Failed(causes(&error.into()))] {
                    if to.send((kind, told)).await.is_err() {
                        return Ended::Unheard;
                    }
                }
                return Ended::Anew;
            }
            Some(Err(error)) => {
                // Objects of the list may be missing. Its clock stands: the pause before the next try may be long.
                list = List { is_broken: true, ..List::default() };
                let is_unknown = is_unknown(&error);
                let why = causes(&error.into());
                if is_unknown { Told::NoKind(why) } else { Told::Failed(why) }
            }
            // A watcher has no end.
            None => return Ended::Anew,
        };
        if to.send((kind, told)).await.is_err() {
            return Ended::Unheard;
        }
    }
}

/// A list that has not come to its end.
struct List<K: Read> {
    objects: Vec<K::Object>,
    left_out: Vec<K::Fault>,
    /// When its last object came. `None` while there is no list.
    stands_still_since: Option<Instant>,
    /// Something of it could not be read, so that it may lack objects.
    is_broken: bool,
}

impl<K: Read> Default for List<K> {
    fn default() -> Self {
        Self { objects: Vec::new(), left_out: Vec::new(), stands_still_since: None, is_broken: false }
    }
}

impl<K: Read> List<K> {
    fn take(&mut self, object: &K, texts: &mut Texts) {
        self.stands_still_since = Some(Instant::now());
        match object.read(texts) {
            Ok(read) => self.objects.extend(read),
            Err(fault) => self.left_out.push(fault),
        }
    }

    fn done(self) -> Told<K::Change> {
        listed(K::list(self.objects), self.left_out.into_iter().map(K::left_out))
    }
}

/// Whether the API server does not know the kind.
fn is_unknown(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == UNKNOWN,
        _ => false,
    }
}

/// Whether the API server refuses to stream lists.
fn refuses(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => REFUSED.contains(&status.code),
        _ => false,
    }
}

/// Whether a change was missed that the library would not ask for again: it could not be read, or the API server no longer has it and says so
/// before the watch begins.
pub(crate) fn has_missed_something(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == GONE,
        watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use kube::core::{Status, response::StatusSummary};
    use serde_json::json;

    use super::super::wire::Member;
    use super::*;
    use crate::cluster::{Change, ObjectName};

    fn member(name: &str, address: &str) -> Member {
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

    /// Drives these events, and then nothing for ever. Returns what was told within a minute, and how the watch ended by then.
    async fn driven(
        events: Vec<watcher::Result<Event<Member>>>,
        is_streamed: bool,
    ) -> (Vec<String>, Option<Ended>) {
        driven_after(events, is_streamed, &mut false).await
    }

    /// The same, after watches that have listed the kind or not.
    async fn driven_after(
        events: Vec<watcher::Result<Event<Member>>>,
        is_streamed: bool,
        was_listed: &mut bool,
    ) -> (Vec<String>, Option<Ended>) {
        let (to, mut told) = mpsc::channel(64);
        let events = stream::iter(events).chain(stream::pending());
        let driving = drive(events, Kind::Members, is_streamed.then_some(NO_END), was_listed, &to);
        let ended = tokio::time::timeout(Duration::from_secs(60), driving).await.ok();
        drop(to);
        let mut texts = Vec::new();
        while let Some((_, told)) = told.recv().await {
            texts.push(match told {
                Told::Changes(changes) => changes.iter().map(change).collect::<Vec<_>>().join(", "),
                Told::Failed(why) => format!("failed: {why}"),
                Told::NoKind(why) => format!("no kind: {why}"),
                Told::Listing => "listing".to_owned(),
            });
        }
        (texts, ended)
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
        let told = ["listing", "list of a, left out node `b`", "node c", "left out node `a`", "gone c"];
        assert_eq!(driven(events, true).await, (told.map(str::to_owned).to_vec(), None));
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
        let (texts, ended) = driven(events(), false).await;
        assert!(texts[1].starts_with("failed: "), "{texts:?}");
        assert_eq!(
            (&texts[..1], &texts[2..], ended),
            (&["listing".to_owned()][..], &told(["listing", "list of b"])[..], None)
        );
        let (texts, _) = driven(events().into_iter().take(2).collect(), false).await;
        assert_eq!(texts, ["listing"]);
        // The connection ends in the middle, which the library does not tell.
        let cut_off = events().into_iter().filter(|event| event.is_ok()).collect();
        let (texts, _) = driven(cut_off, true).await;
        assert_eq!(texts, ["listing", "failed: the list was cut off before its end", "list of b"]);
        // An object could not be read, and the library goes on without it.
        let mut broken = events();
        drop(broken.remove(3));
        let (texts, ended) = driven(broken, true).await;
        assert_eq!((texts.len(), ended), (2, Some(Ended::Anew)), "{texts:?}");
    }

    fn told<const N: usize>(texts: [&str; N]) -> [String; N] {
        texts.map(str::to_owned)
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_used_where_lists_are_not_streamed() {
        for code in REFUSED {
            let ended = driven(vec![Err(refused(code))], true).await;
            assert_eq!(ended, (Vec::new(), Some(Ended::UsePages)), "{code}");
        }
        // No bookmark ends the list.
        let events = || vec![Ok(Event::Init), Ok(Event::InitApply(member("a", "10.0.0.1")))];
        let listing = told(["listing"]).to_vec();
        assert_eq!(driven(events(), true).await, (listing.clone(), Some(Ended::UsePages)));
        assert_eq!(driven(events(), false).await, (listing, None));
        // A refusal for another reason, or while pages are used already, is a failure.
        for (code, is_streamed) in [(403, true), (422, false)] {
            let (texts, ended) = driven(vec![Err(refused(code))], is_streamed).await;
            assert!(texts.len() == 1 && ended.is_none(), "{code}: {texts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_was_listed_does_not_become_unknown() {
        let listed =
            || vec![Ok(Event::Init), Ok(Event::InitApply(member("a", "10.0.0.1"))), Ok(Event::InitDone)];
        let mut events = listed();
        events.push(Err(refused(UNKNOWN)));
        let mut was_listed = false;
        let (texts, ended) = driven_after(events, true, &mut was_listed).await;
        assert_eq!(texts[..3], told(["listing", "list of a", "listing"]));
        assert!(texts[3].starts_with("failed: ") && texts.len() == 4, "{texts:?}");
        assert_eq!(ended, Some(Ended::Anew));
        // The watch that follows has no list of its own yet.
        let (texts, ended) = driven_after(vec![Err(refused(UNKNOWN))], true, &mut was_listed).await;
        assert!(texts[1].starts_with("failed: ") && texts.len() == 2, "{texts:?}");
        assert_eq!(ended, Some(Ended::Anew));
        // Without a list the kind is not there. The library tries again.
        let mut events = vec![Err(refused(UNKNOWN))];
        events.extend(listed());
        let (texts, ended) = driven(events, true).await;
        assert!(texts[0].starts_with("no kind: "), "{texts:?}");
        assert_eq!((&texts[1..], ended), (&told(["listing", "list of a"])[..], None));
    }

    #[tokio::test(start_paused = true)]
    async fn after_missed_changes_a_new_list_comes() {
        let status = |code| Status { code, ..Status::failure("told so", "Expired") }.boxed();
        // The library makes the new list.
        let gone = watcher::Error::WatchError(status(GONE));
        assert_eq!(driven(vec![Err(gone)], true).await, (told(["listing"]).to_vec(), None));
        // It would ask for the same changes for ever.
        let (texts, ended) = driven(vec![Err(refused(GONE))], true).await;
        assert_eq!((texts.len(), ended), (2, Some(Ended::Anew)));
    }
}
