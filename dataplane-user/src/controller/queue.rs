//! What is to be written, and when: writes that failed wait. Pure.

use std::{collections::BTreeMap, time::Duration};

/// How long a write waits after its first failure. Each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long a write waits at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Something that may have to be written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// NodefenceSettings/default.
    Settings,
    /// The NodeMember of this name.
    Member(String),
    /// The status of the NodeFlag of this name.
    Status(String),
    /// The NodeFlag of this name ended long ago, or its Node has been gone for long.
    OverFlag(String),
}

/// Items by the time at which they are due. Times are those since any fixed moment.
#[derive(Debug, Default)]
pub(super) struct Queue {
    due: BTreeMap<Item, Duration>,
    failures: BTreeMap<Item, u32>,
}

impl Queue {
    /// Something about an item changed. An item whose write failed still waits: one object must not be tried again with each change of it.
    pub(super) fn add(&mut self, item: Item, now: Duration) {
        self.due.entry(item).or_insert(now);
    }

    /// When the next item is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.due.values().min().copied()
    }

    /// Takes the item that is due first, unless nothing is due yet.
    pub(super) fn take(&mut self, now: Duration) -> Option<Item> {
        let (item, _) = self.due.iter().filter(|(_, due)| **due <= now).min_by_key(|(_, due)| **due)?;
        let item = item.clone();
        self.due.remove(&item);
        Some(item)
    }

    /// An item was written, or needs no write.
    pub(super) fn done(&mut self, item: &Item) {
        self.failures.remove(item);
    }

    /// An item could not be written.
    pub(super) fn failed(&mut self, item: Item, now: Duration) {
        let failures = self.failures.entry(item.clone()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX));
        *failures = failures.saturating_add(1).min(30);
        self.due.insert(item, now.saturating_add(pause.min(LONGEST_PAUSE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn member(name: &str) -> Item {
        Item::Member(name.to_owned())
    }

    #[test]
    fn items_come_in_the_order_of_their_times_and_once() {
        let mut queue = Queue::default();
        queue.add(member("b"), at(1));
        queue.add(member("a"), at(2));
        queue.add(member("b"), at(3));
        assert_eq!((queue.next(), queue.take(at(0))), (Some(at(1)), None));
        assert_eq!(
            [queue.take(at(3)), queue.take(at(3)), queue.take(at(3))],
            [Some(member("b")), Some(member("a")), None]
        );
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_failed_item_waits_for_longer_each_time() {
        let mut queue = Queue::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            queue.failed(member("a"), at(0));
            queue.add(member("a"), at(0));
            pauses.push(queue.next().unwrap().as_secs());
            queue.take(at(60)).unwrap();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        queue.done(&member("a"));
        queue.failed(member("a"), at(0));
        assert_eq!(queue.next(), Some(at(1)));
    }
}
