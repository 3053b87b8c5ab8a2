//! An index of the groups that may have a free run of an order.
//!
//! For each order it has a bit for each group, set unless the group is known to have no free run of
//! that order. Groups are unknown until a search reads them. A group's bits change only under its
//! mutex, so they never hide a free run. Reading them takes no lock.

use super::buddy::ORDERS;
use lanefs_sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
pub(super) struct Orders {
    words: Box<[AtomicU64]>,
    groups: u32,
}

impl Orders {
    pub(super) fn new(groups: u32) -> Self {
        let words = groups.div_ceil(64) as usize * ORDERS;
        Self { words: (0..words).map(|_| AtomicU64::new(!0)).collect(), groups }
    }

    fn word(&self, order: u32, group: u32) -> Option<&AtomicU64> {
        self.words.get((order * self.groups.div_ceil(64) + group / 64) as usize)
    }

    /// Notes that the largest order of `group` is `now`, and was `before`.
    pub(super) fn set(&self, group: u32, before: Option<u32>, now: Option<u32>) {
        let orders = |top: Option<u32>| top.map_or(0, |top| top + 1);
        let (before, now) = (orders(before), orders(now));
        let bit = 1 << (group % 64);
        for order in before.min(now)..before.max(now) {
            let Some(word) = self.word(order, group) else { continue };
            match now > before {
                true => word.fetch_or(bit, Relaxed),
                false => word.fetch_and(!bit, Relaxed),
            };
        }
    }

    /// Returns the first group of `from..to` that may have a free run of `order`.
    pub(super) fn next(&self, order: u32, from: u32, to: u32) -> Option<u32> {
        let to = to.min(self.groups);
        let mut at = from;
        while at < to {
            let bits = self.word(order, at)?.load(Relaxed) >> (at % 64);
            if bits != 0 {
                return Some(at + bits.trailing_zeros()).filter(|group| *group < to);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_order() {
        let orders = Orders::new(200);
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
}
