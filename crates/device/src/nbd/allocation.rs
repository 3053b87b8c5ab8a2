//! What is known to be a hole of the export: it is not read.
//!
//! Only this client writes to the export, so what the server said of a range holds until this
//! client changes it. A range of which the server was asked while a change was in flight is not
//! kept.

use super::reply::Extent;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ranges that are remembered, at most.
const MOST: usize = 1 << 16;

/// What is known of the export. Nothing is known of most, and a change then takes no lock.
#[derive(Debug, Default)]
pub(crate) struct Allocation {
    known: Mutex<Known>,
    /// Counts changes of content.
    changes: AtomicU64,
    /// Something is known. Set under the lock.
    is_known: AtomicBool,
}

impl Allocation {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of changes so far, for [`learn`](Self::learn).
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Returns whether the byte at `offset` is known to be in a hole or not, and the end of what is
    /// known of it.
    pub(crate) fn at(&self, offset: u64) -> Option<(u64, bool)> {
        if !self.is_known.load(Ordering::SeqCst) {
            return None;
        }
        self.known().at(offset)
    }

    /// Forgets a range that is about to be changed.
    pub(crate) fn change(&self, offset: u64, len: u64) {
        // Before the look: a thread that learns looks at this number after it has set the other.
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.is_known.load(Ordering::SeqCst) {
            self.known().forget(offset, offset.saturating_add(len));
        }
    }

    /// Takes what the server said of the bytes from `offset` on, unless there were changes since
    /// `changes` was read. Bytes beyond `size` are of no account.
    pub(crate) fn learn(&self, changes: u64, offset: u64, extents: &[Extent], size: u64) {
        let mut known = self.known();
        self.is_known.store(true, Ordering::SeqCst);
        if changes == self.changes() {
            known.learn(offset, extents, size);
        }
    }
}

/// First byte, the byte behind it, and whether it is zeros.
#[derive(Debug, Default)]
struct Known {
    runs: BTreeMap<u64, (u64, bool)>,
}

impl Known {
    fn at(&self, offset: u64) -> Option<(u64, bool)> {
        let (_, &(end, is_zero)) = self.runs.range(..=offset).next_back()?;
        (end > offset).then_some((end, is_zero))
    }

    fn forget(&mut self, offset: u64, end: u64) {
        if let Some((&start, &(before, is_zero))) = self.runs.range(..offset).next_back()
            && before > offset
        {
            self.runs.insert(start, (offset, is_zero));
            if before > end {
                self.runs.insert(end, (before, is_zero));
            }
        }
        while let Some((&start, &(behind, is_zero))) = self.runs.range(offset..end).next() {
            self.runs.remove(&start);
            if behind > end {
                self.runs.insert(end, (behind, is_zero));
            }
        }
    }

    fn learn(&mut self, offset: u64, extents: &[Extent], size: u64) {
        if self.runs.len() + extents.len() > MOST {
            self.runs.clear();
        }
        let mut at = offset;
        for extent in extents.iter().take(MOST) {
            let end = at.saturating_add(extent.len).min(size);
            if at >= end {
                return;
            }
            self.forget(at, end);
            self.runs.insert(at, (end, extent.is_zero));
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_cuts_what_is_known() {
        let known = Allocation::default();
        let zero = |len| Extent { len, is_zero: true };
        let data = |len| Extent { len, is_zero: false };
        known.learn(0, 100, &[zero(100), data(50), zero(1000)], 500);
        assert_eq!(
            [99, 100, 199, 200, 250, 499].map(|at| known.at(at)),
            [
                None,
                Some((200, true)),
                Some((200, true)),
                Some((250, false)),
                Some((500, true)),
                Some((500, true)),
            ]
        );
        assert_eq!(known.at(500), None);
        known.change(150, 10);
        assert_eq!(
            [149, 150, 159, 160].map(|at| known.at(at)),
            [Some((150, true)), None, None, Some((200, true)),]
        );
        known.change(190, 300);
        assert_eq!(
            [189, 190, 489, 490].map(|at| known.at(at)),
            [Some((190, true)), None, None, Some((500, true)),]
        );
        // An answer to a question of before is too old.
        known.learn(0, 150, &[zero(10)], 500);
        assert_eq!(known.at(150), None);
        known.learn(known.changes(), 150, &[zero(10)], 500);
        assert_eq!(known.at(150), Some((160, true)));
    }
}
