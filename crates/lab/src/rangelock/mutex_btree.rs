//! A B-tree of held ranges behind a mutex: the other column of the source's table.
//!
//! Keyed by first point, and by a serial number so that readers may share it. The longest range
//! ever held bounds how far to the left an overlapping one can start.

use super::{Range, Variant, pause};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `Mutex<BTreeMap>`.
#[derive(Default)]
pub struct MutexBTree(Mutex<HeldRanges>);

#[derive(Default)]
struct HeldRanges {
    ranges: BTreeMap<(u64, u64), (u64, bool)>,
    longest: u64,
    serial: u64,
}

/// A held range.
pub struct BTreeGuard<'a> {
    lock: &'a MutexBTree,
    key: (u64, u64),
}

impl MutexBTree {
    fn held(&self) -> MutexGuard<'_, HeldRanges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn lock(&self, range: Range, write: bool) -> BTreeGuard<'_> {
        let mut rounds = 0;
        loop {
            if let Some(key) = self.held().try_insert(range, write) {
                return BTreeGuard { lock: self, key };
            }
            pause(&mut rounds);
        }
    }
}

impl HeldRanges {
    fn try_insert(&mut self, range: Range, write: bool) -> Option<(u64, u64)> {
        let from = (range.first().saturating_sub(self.longest), 0);
        let to = (range.last(), u64::MAX);
        let conflict =
            |(&_, &(last, writes)): (&(u64, u64), &(u64, bool))| last >= range.first() && (write || writes);
        if self.ranges.range(from..=to).any(conflict) {
            return None;
        }
        self.longest = self.longest.max(range.last() - range.first());
        self.serial += 1;
        let key = (range.first(), self.serial);
        self.ranges.insert(key, (range.last(), write));
        Some(key)
    }
}

impl Drop for BTreeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held().ranges.remove(&self.key);
    }
}

impl Variant for MutexBTree {
    const NAME: &'static str = "mutex btree";
    type Read<'a> = BTreeGuard<'a>;
    type Write<'a> = BTreeGuard<'a>;

    #[inline]
    fn read(&self, range: Range) -> BTreeGuard<'_> {
        self.lock(range, false)
    }

    #[inline]
    fn write(&self, range: Range) -> BTreeGuard<'_> {
        self.lock(range, true)
    }
}
