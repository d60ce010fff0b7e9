//! Which readers one listing of the table serves.

use crate::Family;

/// The readers that wait for a listing of one half of the table. A listing serves all readers that wait for it when it begins. A reader that comes later waits
/// for the next one, since the kernel may have passed the entries that it wants to see.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: Vec<(Family, T)>,
    closed: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), closed: false }
    }
}

impl<T> Turns<T> {
    /// Adds readers that wait. False where nobody lists any more: then none of them waits.
    pub fn put(&mut self, asked: impl IntoIterator<Item = (Family, T)>) -> bool {
        if !self.closed {
            self.waiting.extend(asked);
        }
        !self.closed
    }

    /// Whether no reader waits.
    pub const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins a listing of the half that was waited for longest. Returns all readers that wait for that half.
    pub fn begin(&mut self) -> Option<(Family, Vec<T>)> {
        let (half, _) = self.waiting.first()?;
        let half = *half;
        let served = self.waiting.extract_if(.., |(of, _)| *of == half).map(|(_, asked)| asked);
        Some((half, served.collect()))
    }

    /// Nobody lists any more. Returns the readers that still wait.
    pub fn close(&mut self) -> Vec<T> {
        self.closed = true;
        std::mem::take(&mut self.waiting).into_iter().map(|(_, asked)| asked).collect()
    }
}

#[cfg(test)]
mod tests {
    use Family::{V4, V6};

    use super::*;

    #[test]
    fn all_who_wait_share_one_listing() {
        let mut turns = Turns::default();
        assert_eq!(turns.begin(), None);
        assert!(turns.is_empty());
        assert!(turns.put([(V4, "a"), (V6, "a6"), (V4, "b")]));
        assert!(turns.put([(V4, "c")]));
        assert_eq!(turns.begin(), Some((V4, vec!["a", "b", "c"])));
        assert_eq!(turns.begin(), Some((V6, vec!["a6"])));
        assert_eq!(turns.begin(), None);
    }

    #[test]
    fn who_comes_after_it_began_waits_for_the_next_one() {
        let mut turns = Turns::default();
        turns.put([(V4, 1)]);
        assert_eq!(turns.begin(), Some((V4, vec![1])));
        turns.put([(V4, 2)]);
        turns.put([(V4, 3)]);
        assert_eq!(turns.begin(), Some((V4, vec![2, 3])));
        assert_eq!(turns.begin(), None);
    }

    #[test]
    fn one_half_does_not_hold_up_the_other() {
        let mut turns = Turns::default();
        turns.put([(V4, 1), (V6, 2)]);
        assert_eq!(turns.begin(), Some((V4, vec![1])));
        // Others ask for the first half again and again.
        turns.put([(V4, 3)]);
        assert_eq!(turns.begin(), Some((V6, vec![2])));
        assert_eq!(turns.begin(), Some((V4, vec![3])));
    }

    #[test]
    fn nobody_waits_once_nobody_lists() {
        let mut turns = Turns::default();
        turns.put([(V4, 1), (V6, 2)]);
        assert_eq!(turns.close(), [1, 2]);
        assert!(!turns.put([(V4, 3)]));
        assert_eq!(turns.begin(), None);
    }
}
