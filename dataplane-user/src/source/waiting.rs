//! Changes that wait to be taken. Only the newest change of each object waits, so that there are never more changes than objects.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::stored::Stored;
use crate::{
    cluster::{Change, ObjectName},
    enforce::Now,
};

/// The changes that wait. They are applied together, lists first. The order of changes to single objects does not matter for the result.
#[derive(Debug, Default)]
struct WaitingChanges {
    nodes: Option<Change>,
    services: Option<Change>,
    slices: Option<Change>,
    single: BTreeMap<ObjectName, Change>,
    /// News of the source itself since they were last taken.
    news: Option<News>,
    /// What an earlier agent stored, or why there is nothing of that.
    stored: Option<Result<Box<Stored>, String>>,
    /// The number of [`Teller`]s that exist.
    tellers: usize,
}

/// What a source says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Until when all that was told is what the source had.
    pub confirmed: Option<Now>,
    /// Why the source does not answer now.
    pub away: Option<String>,
}

impl WaitingChanges {
    fn add(&mut self, change: Change) {
        let name = match &change {
            Change::Nodes(_) => {
                self.single.retain(|name, _| !matches!(name, ObjectName::Node(_)));
                return self.nodes = Some(change);
            }
            Change::Services(_) => {
                self.single.retain(|name, _| !matches!(name, ObjectName::Service(_)));
                return self.services = Some(change);
            }
            Change::Slices(_) => {
                self.single.retain(|name, _| !matches!(name, ObjectName::Slice(_)));
                return self.slices = Some(change);
            }
            Change::Node(node) => ObjectName::Node(node.name.clone()),
            Change::Service(service) => ObjectName::Service(Arc::clone(&service.name)),
            Change::Slice(slice) => ObjectName::Slice(Arc::clone(&slice.name)),
            Change::Gone(name) => name.clone(),
            Change::LeftOut(conflict) => conflict.object.clone(),
        };
        self.single.insert(name, change);
    }

    fn is_something(&self) -> bool {
        [&self.nodes, &self.services, &self.slices].into_iter().any(Option::is_some)
            || !self.single.is_empty()
            || self.news.is_some()
            || self.stored.is_some()
    }

    fn take(&mut self) -> Vec<Change> {
        let lists = [self.nodes.take(), self.services.take(), self.slices.take()];
        let single = std::mem::take(&mut self.single);
        lists.into_iter().flatten().chain(single.into_values()).collect()
    }
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<WaitingChanges>,
    told: Condvar,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, WaitingChanges> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end into which a source sends changes. Once all tellers are dropped the source has ended.
#[derive(Debug)]
pub struct Teller(Arc<Shared>);

impl Teller {
    /// Sends a change. It replaces the waiting change of the same object; a list replaces all waiting changes of its kind. Never blocks.
    pub fn tell(&self, change: Change) {
        self.0.waiting().add(change);
        self.0.told.notify_one();
    }

    /// Sends changes that are to be taken together, as [`Teller::tell`] does.
    pub fn tell_all(&self, changes: impl IntoIterator<Item = Change>) {
        let mut waiting = self.0.waiting();
        changes.into_iter().for_each(|change| waiting.add(change));
        drop(waiting);
        self.0.told.notify_one();
    }

    /// Sends news of the source itself. They replace earlier ones. Never blocks.
    pub fn report(&self, news: News) {
        self.0.waiting().news = Some(news);
        self.0.told.notify_one();
    }
}

impl Clone for Teller {
    fn clone(&self) -> Self {
        self.0.waiting().tellers += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.waiting().tellers -= 1;
        self.0.told.notify_one();
    }
}

/// The end into which what an earlier agent stored is sent. It is no teller: whoever reads a disk that hangs must not pass for a source that goes on.
#[derive(Debug)]
pub struct Recaller(Arc<Shared>);

impl Recaller {
    /// Sends what an earlier agent stored, or why there is nothing of that. Never blocks.
    pub fn recall(&self, stored: Result<Stored, String>) {
        self.0.waiting().stored = Some(stored.map(Box::new));
        self.0.told.notify_one();
    }
}

/// The end from which changes are taken.
#[derive(Debug)]
pub struct Changes(Arc<Shared>);

/// All tellers are dropped, so that no change can come any more.
pub(super) struct NoTeller;

impl Changes {
    /// Waits until there is a change, for `longest` at most. Returns whether there is a change. Takes nothing.
    pub(super) fn wait(&self, longest: Option<Duration>) -> Result<bool, NoTeller> {
        let waiting = self.0.waiting();
        let nothing = |waiting: &mut WaitingChanges| !waiting.is_something() && waiting.tellers > 0;
        let waiting = match longest {
            None => self.0.told.wait_while(waiting, nothing).unwrap_or_else(PoisonError::into_inner),
            Some(longest) => {
                let waited = self.0.told.wait_timeout_while(waiting, longest, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match waiting.is_something() {
            false if waiting.tellers == 0 => Err(NoTeller),
            is_something => Ok(is_something),
        }
    }

    /// Takes all waiting changes, lists first, and the news.
    pub(super) fn take(&self) -> (Vec<Change>, Option<News>) {
        let mut waiting = self.0.waiting();
        let news = waiting.news.take();
        (waiting.take(), news)
    }

    /// Takes what an earlier agent stored, once that has come.
    pub(crate) fn recalled(&self) -> Option<Result<Box<Stored>, String>> {
        self.0.waiting().stored.take()
    }

    /// An end into which what an earlier agent stored can be sent.
    pub(crate) fn recaller(&self) -> Recaller {
        Recaller(Arc::clone(&self.0))
    }
}

/// Makes a pair of connected ends.
pub fn changes() -> (Teller, Changes) {
    let shared = Arc::new(Shared::default());
    shared.waiting().tellers = 1;
    (Teller(Arc::clone(&shared)), Changes(shared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::NodeObject;

    fn node(name: &str, address: &str) -> Change {
        Change::Node(NodeObject::new(name, vec![address.parse().expect("an address")]))
    }

    #[test]
    fn of_each_object_the_newest_waits_alone() {
        let (teller, changes) = changes();
        for round in 0..1_000 {
            teller.tell(node("a", &format!("10.0.{}.{}", round / 250, round % 250)));
            teller.tell(node("b", "10.0.9.9"));
        }
        teller.tell(Change::Gone(ObjectName::Node("b".into())));
        let (taken, _) = changes.take();
        assert_eq!(taken, [node("a", "10.0.3.249"), Change::Gone(ObjectName::Node("b".into()))]);
        assert!(matches!(changes.wait(Some(Duration::ZERO)), Ok(false)));
    }

    #[test]
    fn a_list_takes_the_place_of_its_kind_alone() {
        let (teller, changes) = changes();
        let gone = Change::Gone(ObjectName::Service("x/a".into()));
        for change in [Change::Nodes(Vec::new()), node("a", "10.0.0.1"), gone.clone()] {
            teller.tell(change);
        }
        teller.tell(Change::Nodes(Vec::new()));
        teller.tell(node("b", "10.0.0.2"));
        assert_eq!(changes.take().0, [Change::Nodes(Vec::new()), node("b", "10.0.0.2"), gone]);
    }

    #[test]
    fn of_news_the_newest_waits_alone() {
        let (teller, changes) = changes();
        let away = |why: &str| News { confirmed: None, away: Some(why.to_owned()) };
        teller.report(away("refused"));
        teller.report(away("late"));
        assert!(matches!(changes.wait(Some(Duration::ZERO)), Ok(true)));
        assert_eq!(changes.take(), (Vec::new(), Some(away("late"))));
        assert!(matches!(changes.wait(Some(Duration::ZERO)), Ok(false)));
    }

    /// Whoever reads the disk may hang, and the source ends all the same.
    #[test]
    fn what_an_earlier_agent_stored_may_come_at_any_time_and_is_no_source() {
        let (teller, changes) = changes();
        let recaller = changes.recaller();
        recaller.recall(Err("it is not there".to_owned()));
        assert!(matches!(changes.wait(None), Ok(true)));
        assert!(matches!(changes.recalled(), Some(Err(_))));
        drop(teller);
        assert!(matches!(changes.wait(None), Err(NoTeller)));
        recaller.recall(Err("it is late".to_owned()));
    }

    #[test]
    fn what_was_told_before_the_end_is_taken_before_it() {
        let (teller, changes) = changes();
        let other = teller.clone();
        drop(teller);
        assert!(matches!(changes.wait(Some(Duration::ZERO)), Ok(false)));
        let telling = std::thread::spawn(move || other.tell(node("a", "10.0.0.1")));
        assert!(matches!(changes.wait(None), Ok(true)));
        telling.join().expect("it told");
        assert_eq!(changes.take().0.len(), 1);
        assert!(matches!(changes.wait(None), Err(NoTeller)));
    }
}
