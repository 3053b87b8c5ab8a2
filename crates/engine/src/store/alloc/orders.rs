//! An index of the groups that may have a free run of an order.
//!
//! For each order it has a bit for each group, set unless the group is known to have no free run of
//! that order. Groups are unknown until a search reads them, except those that had nothing free
//! when the volume was opened. An index of one order does the same for free inodes. A volume that
//! grows gets further segments, each at least as large as all before it.
//!
//! Invariant: a group's bits change only under its mutex, so they never hide a free run. Reading
//! them takes no lock.

use lanefs_sync::OnceLock;
use lanefs_sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct Orders {
    /// How many orders there are.
    orders: u32,
    segments: [OnceLock<Segment>; 32],
    groups: AtomicU32,
}

/// The bits of the groups from `first` on.
#[derive(Debug)]
struct Segment {
    /// A multiple of 64.
    first: u32,
    /// Words of an order.
    each: u32,
    words: Box<[AtomicU64]>,
}

impl Segment {
    fn new(first: u32, groups: u32, orders: u32) -> Self {
        let each = groups.div_ceil(64);
        let words = each as usize * orders as usize;
        Self { first, each, words: (0..words).map(|_| AtomicU64::new(!0)).collect() }
    }

    fn end(&self) -> u32 {
        self.first.saturating_add(self.each.saturating_mul(64))
    }

    fn word(&self, order: u32, group: u32) -> Option<&AtomicU64> {
        self.words.get((order * self.each + (group - self.first) / 64) as usize)
    }
}

impl Orders {
    pub(super) fn new(groups: u32, orders: u32) -> Self {
        let segments: [_; 32] = std::array::from_fn(|_| OnceLock::new());
        let index = Self { orders, segments, groups: AtomicU32::new(0) };
        index.grow(groups);
        index
    }

    /// Gives a volume that has grown `groups` groups; of the new ones nothing is known.
    pub(super) fn grow(&self, groups: u32) {
        for segment in &self.segments {
            let end = self.segments().last().map_or(0, Segment::end);
            if end < groups {
                segment.get_or_init(|| Segment::new(end, (groups - end).max(end), self.orders));
            }
        }
        self.groups.fetch_max(groups, Release);
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().map_while(OnceLock::get)
    }

    /// Notes, before any group is used, that these have nothing free of any order.
    pub(super) fn hide(&self, groups: Range<u32>) {
        for segment in self.segments() {
            let mut at = groups.start.max(segment.first);
            let end = groups.end.min(segment.end());
            while at < end {
                let next = (at / 64 + 1) * 64;
                let from = !0 << (at % 64);
                let mask = if next <= end { from } else { from & !(!0 << (end % 64)) };
                for word in (0..self.orders).filter_map(|order| segment.word(order, at)) {
                    word.fetch_and(!mask, Relaxed);
                }
                at = next;
            }
        }
    }

    /// Returns whether `group` is known to have nothing free. Of a group that the index does not
    /// have yet nothing is known.
    pub(super) fn is_full(&self, group: u32) -> bool {
        group < self.groups.load(Acquire) && self.next(0, group, group.saturating_add(1)).is_none()
    }

    /// Notes that the largest order of `group` is `now`, and was `before`.
    pub(super) fn set(&self, group: u32, before: Option<u32>, now: Option<u32>) {
        let orders = |top: Option<u32>| top.map_or(0, |top| top + 1);
        let (before, now) = (orders(before), orders(now));
        let bit = 1 << (group % 64);
        let Some(segment) = self.segments().find(|segment| group < segment.end()) else { return };
        for order in before.min(now)..before.max(now) {
            let Some(word) = segment.word(order, group) else { continue };
            // A bit that is right already costs no write of a line that all threads share.
            match (now > before, word.load(Relaxed) & bit != 0) {
                (true, false) => word.fetch_or(bit, Relaxed),
                (false, true) => word.fetch_and(!bit, Relaxed),
                _ => continue,
            };
        }
    }

    /// Returns the first group of `from..to` that may have a free run of `order`.
    pub(super) fn next(&self, order: u32, from: u32, to: u32) -> Option<u32> {
        let to = to.min(self.groups.load(Acquire));
        let mut at = from;
        for segment in self.segments() {
            let end = to.min(segment.end());
            while at < end {
                let bits = segment.word(order, at)?.load(Relaxed) >> (at % 64);
                if bits != 0 {
                    return Some(at + bits.trailing_zeros()).filter(|group| *group < to);
                }
                at = (at / 64 + 1) * 64;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_order() {
        let orders = Orders::new(200, 16);
        assert_eq!(orders.next(15, 199, u32::MAX), Some(199));
        for group in 0..200 {
            orders.set(group, Some(15), (group % 50 == 3).then_some(group / 50 + 4));
        }
        assert_eq!(orders.next(0, 0, 200), Some(3));
        assert_eq!(orders.next(5, 0, 200), Some(53));
        assert_eq!(orders.next(6, 104, 200), Some(153));
        assert_eq!(orders.next(6, 104, 153), None);
        assert_eq!(orders.next(8, 0, 200), None);
        orders.set(7, None, Some(9));
        assert_eq!((orders.next(9, 0, 200), orders.next(10, 0, 200)), (Some(7), None));
    }

    #[test]
    fn full_groups_are_hidden_until_something_is_free() {
        let orders = Orders::new(300, 3);
        [0..1, 3..70, 127..129, 192..300].into_iter().for_each(|groups| orders.hide(groups));
        let known: Vec<u32> = (0..400).filter(|group| !orders.is_full(*group)).collect();
        let free: Vec<u32> = (1..3).chain(70..127).chain(129..192).chain(300..400).collect();
        assert_eq!(known, free);
        assert_eq!((orders.next(2, 3, 70), orders.next(2, 3, u32::MAX)), (None, Some(70)));
        orders.set(250, None, Some(1));
        assert_eq!((orders.next(1, 192, u32::MAX), orders.next(2, 192, u32::MAX)), (Some(250), None));
    }

    #[test]
    fn groups_that_come_later_are_found_too() {
        let orders = Orders::new(70, 16);
        (0..70).for_each(|group| orders.set(group, Some(15), None));
        assert_eq!(orders.next(0, 0, u32::MAX), None);
        for (before, groups) in [(70, 100), (100, 129), (129, 5000), (5000, 5001)] {
            orders.grow(groups);
            assert_eq!(orders.next(15, 0, u32::MAX), Some(before));
            for group in before..groups {
                assert_eq!(orders.next(7, 0, u32::MAX), Some(group));
                orders.set(group, Some(15), Some(3));
            }
            assert_eq!((orders.next(4, 0, u32::MAX), orders.next(3, 0, u32::MAX)), (None, Some(70)));
            assert_eq!(orders.next(3, groups - 1, u32::MAX), Some(groups - 1));
        }
        assert!(orders.segments().count() < 8);
    }
}
