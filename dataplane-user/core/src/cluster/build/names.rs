//! Names of nodes and Services as small numbers: some are stored for each endpoint, and its source may deliver each text anew.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc};

use foldhash::fast::RandomState;

/// The number of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NameId(NonZeroU32);

impl NameId {
    const fn new(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    pub(super) const fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// The number of a name, with a mark of two bits beside it: together as large as the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Marked(NonZeroU32);

impl Marked {
    /// `mark`: less than four.
    pub(super) const fn new(id: NameId, mark: u8) -> Self {
        Self(NonZeroU32::MIN.saturating_add((id.index() << 2) | mark as u32))
    }

    pub(super) const fn id(self) -> NameId {
        NameId::new((self.0.get() - 1) >> 2)
    }

    pub(super) const fn mark(self) -> u8 {
        ((self.0.get() - 1) & 3) as u8
    }
}

/// All names in use. A user that takes a name gives it back.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Arc<str>, NameId, RandomState>,
    /// By number, the name and how many use it.
    all: Vec<(Arc<str>, u32)>,
    /// Numbers of no name.
    free: Vec<NameId>,
    /// Numbers that were unused at some moment since the last sweep.
    idle: Vec<NameId>,
}

impl Names {
    /// The number of a name that is in use.
    pub(super) fn find(&self, text: &str) -> Option<NameId> {
        self.ids.get(text).copied()
    }

    pub(super) fn text(&self, id: NameId) -> &Arc<str> {
        &self.all[id.index() as usize].0
    }

    /// The texts of all names, by number.
    pub(super) fn texts(&self) -> Box<[Arc<str>]> {
        self.all.iter().map(|(text, _)| Arc::clone(text)).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// One more user has the name. Returns its number.
    pub(super) fn take(&mut self, text: &Arc<str>) -> NameId {
        if let Some(id) = self.find(text) {
            self.all[id.index() as usize].1 += 1;
            return id;
        }
        let id = match self.free.pop() {
            Some(id) => {
                self.all[id.index() as usize] = (Arc::clone(text), 1);
                id
            }
            None => {
                let id = NameId::new(self.all.len() as u32);
                self.all.push((Arc::clone(text), 1));
                id
            }
        };
        self.ids.insert(Arc::clone(text), id);
        id
    }

    /// One user less has the name. The name keeps its number until the next sweep.
    pub(super) fn give_back(&mut self, id: NameId) {
        let (_, users) = &mut self.all[id.index() as usize];
        *users -= 1;
        if *users == 0 {
            self.idle.push(id);
        }
    }

    /// Forgets unused names. Their numbers are given to other names, so nothing may know them any more.
    pub(super) fn sweep(&mut self) {
        let mut idle = std::mem::take(&mut self.idle);
        idle.sort_unstable();
        idle.dedup();
        for id in idle {
            let (text, users) = &mut self.all[id.index() as usize];
            // The name may be in use again.
            if *users == 0 {
                self.ids.remove(&std::mem::take(text));
                self.free.push(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number_as_long_as_something_has_it() {
        let mut names = Names::default();
        let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
        let (first, second) = (names.take(&a), names.take(&b));
        assert_eq!((names.take(&"a".into()), names.find("b"), names.find("c")), (first, Some(second), None));
        assert_eq!((&**names.text(first), &**names.text(second)), ("a", "b"));
        names.give_back(first);
        names.sweep();
        assert_eq!(names.find("a"), Some(first), "one has it still");
        // Gone and back and gone before anybody looks; and one that stays back.
        for id in [first, second] {
            names.give_back(id);
        }
        assert_eq!((names.take(&a), names.take(&b)), (first, second));
        names.give_back(first);
        names.sweep();
        assert_eq!((names.find("a"), names.find("b")), (None, Some(second)));
        assert_eq!((names.take(&c), names.find("c"), &**names.text(first)), (first, Some(first), "c"));
    }

    #[test]
    fn a_mark_leaves_the_number_as_it_is() {
        for index in [0, 1, 7, (1 << 30) - 2] {
            for mark in 0..4 {
                let marked = Marked::new(NameId::new(index), mark);
                assert_eq!((marked.id(), marked.mark()), (NameId::new(index), mark));
            }
        }
        assert_eq!(size_of::<Option<Marked>>(), 4);
    }
}
