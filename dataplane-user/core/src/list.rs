//! Lists that are made anew with each view, of which few elements change.

use std::sync::Arc;

/// How many elements are copied where one of them changes.
const PART: usize = 64;

/// A list that is cheap to clone, and to change by a few elements: clones share all parts in which nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List<T> {
    /// Each has [`PART`] elements, but for the last.
    parts: Vec<Arc<Vec<T>>>,
    len: usize,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), len: 0 }
    }
}

impl<T> List<T> {
    /// How many elements it has.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The element there.
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.parts.get(at / PART)?.get(at % PART)
    }

    /// All elements in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// The positions where the other list may have other elements: all but those of parts that both share. In order.
    pub(crate) fn not_shared<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let parts = self.parts.len().max(other.parts.len());
        let is_shared = |at: &usize| match (self.parts.get(*at), other.parts.get(*at)) {
            (Some(ours), Some(others)) => Arc::ptr_eq(ours, others),
            _ => false,
        };
        (0..parts).filter(move |at| !is_shared(at)).flat_map(|at| at * PART..(at + 1) * PART)
    }
}

impl<T: Clone> List<T> {
    /// The element there, to be changed.
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        Arc::make_mut(self.parts.get_mut(at / PART)?).get_mut(at % PART)
    }

    /// Puts an element at its end.
    pub(crate) fn push(&mut self, element: T) {
        if self.len.is_multiple_of(PART) {
            self.parts.push(Arc::new(Vec::with_capacity(PART)));
        }
        if let Some(last) = self.parts.last_mut() {
            Arc::make_mut(last).push(element);
            self.len += 1;
        }
    }
}

impl<T: Clone> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut list = Self::default();
        for element in elements {
            list.push(element);
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_put_in() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mut list: List<usize> = (0..len).collect();
            assert!(list.iter().copied().eq(0..len) && list.len() == len);
            assert!((0..len).all(|at| list.get(at) == Some(&at)) && list.get(len).is_none());
            for at in 0..len {
                *list.get_mut(at).unwrap() += 1;
            }
            assert!(list.get_mut(len).is_none() && list.iter().copied().eq(1..=len));
        }
    }

    #[test]
    fn clones_share_what_did_not_change() {
        let before: List<usize> = (0..200).collect();
        let mut after = before.clone();
        assert_eq!(after.not_shared(&before).count(), 0);
        *after.get_mut(70).unwrap() = 7;
        assert_eq!(before.get(70), Some(&70));
        assert!(after.not_shared(&before).eq(64..128) && before.not_shared(&after).eq(64..128));
        // The last part is not full; one that only one of them has is shared by neither.
        after.push(200);
        assert!(after.not_shared(&before).eq((64..128).chain(192..256)));
        let longer: List<usize> = (0..300).collect();
        assert_eq!(longer.not_shared(&List::default()).count(), 320);
    }
}
