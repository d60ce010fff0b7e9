//! Objects that another part of the process delivers, and the view that is built from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::Duration,
};

use super::{
    stored::{Kept, Stored, StoredAge},
    waiting::{Changes, News, Recaller},
};
use crate::{
    allocator::{ask_threads_to_give_back, give_back_if_asked},
    cluster::{Builder, Change, ClusterView, Conflict, NodeName, ObjectName, Rules, SourceName},
    enforce::Now,
    flags::now,
};

/// A source of single objects.
#[derive(Debug)]
pub struct Objects {
    /// The source's name.
    pub name: SourceName,
    /// Whether the source delivers Services and slices.
    pub services: bool,
    /// Whether the source says itself until when all is confirmed ([`News`]). Otherwise each change confirms all others.
    pub confirms: bool,
    /// The source's changes. For each kind the source sends a list first, then single changes. It sends another list whenever it may have
    /// missed changes.
    pub changes: Changes,
}

/// A source has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} has ended")]
pub(crate) struct Ended(SourceName);

/// Kinds of objects of which no list has come yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    nodes: bool,
    services: bool,
    slices: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [(self.nodes, "nodes"), (self.services, "Services"), (self.slices, "slices")];
        let kinds: Vec<&str> =
            kinds.into_iter().filter_map(|(missing, kind)| missing.then_some(kind)).collect();
        f.write_str(&kinds.join(", "))
    }
}

/// The objects that have come so far.
#[derive(Debug)]
pub(crate) struct Gathered {
    objects: Objects,
    builder: Builder,
    missing: Missing,
    /// Objects that cannot be read, and why.
    left_out: BTreeMap<ObjectName, Conflict>,
    news: News,
    /// When this began: before that nothing was taken.
    begun: Now,
    /// Objects that an earlier agent stored were taken. They hold for each kind of which no list has come.
    stored: Option<StoredAge>,
}

impl Gathered {
    /// Begins without any object.
    pub(crate) fn new(objects: Objects) -> Self {
        let missing = Missing { nodes: true, services: objects.services, slices: objects.services };
        let builder = Builder::new(Rules::Tolerant);
        Self {
            objects,
            builder,
            missing,
            left_out: BTreeMap::new(),
            news: News::default(),
            begun: now(),
            stored: None,
        }
    }

    /// The source's name.
    pub(crate) fn name(&self) -> SourceName {
        self.objects.name
    }

    /// The kinds of which no list has come yet. Until there is a list of each kind, or what an earlier agent stored, no view may be built: objects that
    /// have not come yet would seem not to exist. `None` once there is a list of each kind.
    pub(crate) fn missing(&self) -> Option<Missing> {
        let Missing { nodes, services, slices } = self.missing;
        (nodes || services || slices).then_some(self.missing)
    }

    /// Waits until a change has come, for `longest` at most. Returns whether there is a change. Takes nothing.
    ///
    /// # Errors
    /// Where the source has ended, so that no change can come any more.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> Result<bool, Ended> {
        self.objects.changes.wait(longest).map_err(|_| Ended(self.objects.name))
    }

    /// An end into which what an earlier agent stored can be sent.
    pub(crate) fn recaller(&self) -> Recaller {
        self.objects.changes.recaller()
    }

    /// What an earlier agent stored, or why there is nothing of that, once that has come.
    pub(crate) fn recalled(&mut self) -> Option<Result<Box<Stored>, String>> {
        self.objects.changes.recalled()
    }

    /// Takes what an earlier agent stored for each kind of which no list has come yet. Returns the conflicts that are new.
    pub(crate) fn take_stored(&mut self, stored: Stored) -> Vec<Conflict> {
        let Missing { nodes, services, slices } = self.missing;
        let of_kind = |conflict: &Conflict| match conflict.object {
            ObjectName::Node(_) => nodes,
            ObjectName::Service(_) => services,
            ObjectName::Slice(_) => slices,
        };
        let lists = [
            nodes.then_some(Change::Nodes(stored.nodes)),
            services.then_some(Change::Services(stored.services)),
            slices.then_some(Change::Slices(stored.slices)),
        ];
        let left_out: Vec<Conflict> = stored.left_out.into_iter().filter(of_kind).collect();
        let changes = lists.into_iter().flatten().chain(left_out.iter().cloned().map(Change::LeftOut));
        let mut brought = self.builder.apply_all(changes);
        brought.extend(left_out.iter().cloned());
        self.left_out.extend(left_out.into_iter().map(|conflict| (conflict.object.clone(), conflict)));
        self.stored = Some(stored.age);
        brought
    }

    /// How old the objects are that an earlier agent stored, while some of them hold.
    pub(crate) fn stored(&self) -> Option<StoredAge> {
        self.stored.filter(|_| self.missing().is_some())
    }

    /// A number that rises whenever an object changes, comes or goes.
    pub(crate) fn revision(&self) -> u64 {
        self.builder.revision()
    }

    /// All that the source has told, to be stored.
    pub(crate) fn kept(&self) -> Kept {
        let left_out = self.left_out.values().cloned().collect();
        Kept { source: self.objects.name, objects: self.builder.objects(), left_out }
    }

    /// Applies all waiting changes. Returns the conflicts that are new.
    pub(crate) fn take(&mut self) -> Vec<Conflict> {
        let (changes, news) = self.objects.changes.take();
        self.news = news.unwrap_or_else(|| self.news.clone());
        let mut brought = Vec::new();
        for change in &changes {
            brought.extend(self.note(change));
        }
        let has_list = changes.iter().any(Change::is_list);
        brought.extend(self.builder.apply_all(changes));
        if has_list {
            // Other threads have read the list, which is gone now. They do not need that much again until the next list.
            ask_threads_to_give_back();
            give_back_if_asked();
        }
        brought
    }

    /// Notes which lists have come, and which objects cannot be read. Returns the conflict if it is new.
    fn note(&mut self, change: &Change) -> Option<Conflict> {
        let left_out = &mut self.left_out;
        match change {
            Change::Nodes(_) => {
                self.missing.nodes = false;
                left_out.retain(|name, _| !matches!(name, ObjectName::Node(_)));
            }
            Change::Services(_) => {
                self.missing.services = false;
                left_out.retain(|name, _| !matches!(name, ObjectName::Service(_)));
            }
            Change::Slices(_) => {
                self.missing.slices = false;
                left_out.retain(|name, _| !matches!(name, ObjectName::Slice(_)));
            }
            Change::Node(node) => drop(left_out.remove(&ObjectName::Node(node.name.clone()))),
            Change::Service(service) => drop(left_out.remove(&ObjectName::Service(service.name.clone()))),
            Change::Slice(slice) => drop(left_out.remove(&ObjectName::Slice(slice.name.clone()))),
            Change::Gone(name) => drop(left_out.remove(name)),
            Change::LeftOut(conflict) => {
                let before = left_out.insert(conflict.object.clone(), conflict.clone());
                return (before.as_ref() != Some(conflict)).then(|| conflict.clone());
            }
        }
        None
    }

    /// Until when all that was taken is what the source had. `before`: a time before it was taken. Changes that came meanwhile may wait for
    /// the next time.
    pub(crate) fn confirmed(&self, before: Now) -> Now {
        if let Some(stored) = self.stored() {
            return stored.confirmed;
        }
        match self.news.confirmed {
            _ if !self.objects.confirms => before,
            Some(confirmed) => confirmed,
            // A watch fails before all were heard: its list is as old as the start may be.
            None => self.begun,
        }
    }

    /// Why the source does not answer now.
    pub(crate) fn away(&self) -> Option<&str> {
        self.news.away.as_deref()
    }

    /// As [`Builder::set_machine`].
    pub(crate) fn set_machine(&mut self, own: &NodeName, addresses: BTreeSet<IpAddr>) -> Vec<Conflict> {
        self.builder.set_machine(own, addresses)
    }

    /// Whether the view has changed since it was last built.
    pub(crate) fn is_changed(&self) -> bool {
        self.builder.is_changed()
    }

    /// Builds the view of all objects.
    pub(crate) fn view(&mut self) -> ClusterView {
        ClusterView { source: self.objects.name, ..self.builder.view() }
    }

    /// The conflicts between objects, and the objects that cannot be read.
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.left_out.values().chain(self.builder.conflicts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{NodeObject, ObjectName},
        source::{Teller, changes},
    };

    fn node(name: &str, address: &str) -> NodeObject {
        let addresses = vec![address.parse().expect("an address")];
        NodeObject::new(name, addresses)
    }

    fn gathered(services: bool) -> (Teller, Gathered) {
        let (teller, changes) = changes();
        (
            teller,
            Gathered::new(Objects {
                name: SourceName::new("the test", "test"),
                services,
                confirms: false,
                changes,
            }),
        )
    }

    fn take(gathered: &mut Gathered) -> usize {
        assert_eq!(gathered.wait(Some(Duration::ZERO)), Ok(true));
        gathered.take().len()
    }

    #[test]
    fn single_objects_are_no_list() {
        let (teller, mut gathered) = gathered(true);
        let mut tell = |change, missing: Option<&str>| {
            teller.tell(change);
            take(&mut gathered);
            assert_eq!(gathered.missing().map(|missing| missing.to_string()).as_deref(), missing);
        };
        tell(Change::Node(node("a", "10.0.0.1")), Some("nodes, Services, slices"));
        tell(Change::Slices(Vec::new()), Some("nodes, Services"));
        tell(Change::Nodes(vec![node("a", "10.0.0.1")]), Some("Services"));
        tell(Change::Gone(ObjectName::Service("x/a".into())), Some("Services"));
        tell(Change::Services(Vec::new()), None);
    }

    #[test]
    fn who_tells_of_no_services_need_not_list_any() {
        let (teller, mut gathered) = gathered(false);
        teller.tell(Change::Nodes(Vec::new()));
        take(&mut gathered);
        assert_eq!((gathered.missing(), gathered.view().services), (None, None));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_named_until_it_can_or_is_gone() {
        let (teller, mut gathered) = gathered(false);
        let conflict = |name: &str| Conflict {
            object: ObjectName::Node(name.into()),
            field: "spec.addresses[0]".to_owned(),
            message: "`x` is no IP address".to_owned(),
            is_usual: false,
        };
        teller.tell(Change::Nodes(vec![node("a", "10.0.0.1"), node("b", "10.0.0.2")]));
        teller.tell(Change::LeftOut(conflict("a")));
        assert_eq!(take(&mut gathered), 1);
        assert_eq!(gathered.view().nodes.len(), 1);
        teller.tell(Change::LeftOut(conflict("a")));
        assert_eq!(take(&mut gathered), 0, "it is named once");
        assert_eq!(gathered.conflicts().cloned().collect::<Vec<_>>(), [conflict("a")]);
        teller.tell(Change::Node(node("a", "10.0.0.1")));
        take(&mut gathered);
        assert_eq!((gathered.conflicts().count(), gathered.view().nodes.len()), (0, 2));
        teller.tell(Change::LeftOut(conflict("c")));
        take(&mut gathered);
        teller.tell(Change::Nodes(vec![node("a", "10.0.0.1")]));
        take(&mut gathered);
        assert_eq!(gathered.conflicts().count(), 0);
    }

    #[test]
    fn all_that_wait_are_taken_together() {
        let (teller, mut gathered) = gathered(false);
        let changes = [node("a", "10.0.0.1"), node("b", "10.0.0.1"), node("b", "10.0.0.2")];
        for change in changes {
            teller.tell(Change::Node(change));
        }
        assert_eq!(take(&mut gathered), 0, "what conflicts meanwhile is not told");
        assert!(gathered.is_changed() && gathered.view().nodes.len() == 2 && !gathered.is_changed());
        teller.tell(Change::Node(node("a", "10.0.0.1")));
        take(&mut gathered);
        assert!(!gathered.is_changed(), "it alters nothing");
        assert_eq!(gathered.wait(Some(Duration::ZERO)), Ok(false));
        drop(teller);
        let ended = gathered.wait(None).expect_err("it has ended");
        assert_eq!(ended.to_string(), "the test has ended");
    }
}
