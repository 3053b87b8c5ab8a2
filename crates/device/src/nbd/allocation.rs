//! What is known to be a hole of the export: it is not read.
//!
//! Only this client writes to the export, so what the server said of a range holds until this client
//! changes it. A range of which the server was asked while a change was in flight is not kept.

use super::reply::Extent;
use std::collections::BTreeMap;

/// Ranges that are remembered, at most.
const MOST: usize = 1 << 16;

/// What is known of the export: first byte, and the byte behind it, whether it is zeros.
#[derive(Debug, Default)]
pub(crate) struct Allocation {
    known: BTreeMap<u64, (u64, bool)>,
    /// Counts changes of content.
    changes: u64,
}

impl Allocation {
    /// Returns the number of changes so far, for [`learn`](Self::learn).
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether the byte at `offset` is known to be in a hole or not, and the end of what is
    /// known of it.
    pub(crate) fn at(&self, offset: u64) -> Option<(u64, bool)> {
        let (_, &(end, is_zero)) = self.known.range(..=offset).next_back()?;
        (end > offset).then_some((end, is_zero))
    }

    /// Forgets a range that is about to be changed.
    pub(crate) fn change(&mut self, offset: u64, len: u64) {
        self.changes += 1;
        if self.known.is_empty() {
            return;
        }
        let end = offset.saturating_add(len);
        if let Some((&start, &(before, is_zero))) = self.known.range(..offset).next_back()
            && before > offset
        {
            self.known.insert(start, (offset, is_zero));
            if before > end {
                self.known.insert(end, (before, is_zero));
            }
        }
        while let Some((&start, &(behind, is_zero))) = self.known.range(offset..end).next() {
            self.known.remove(&start);
            if behind > end {
                self.known.insert(end, (behind, is_zero));
            }
        }
    }

    /// Takes what the server said of the bytes from `offset` on, unless there were changes since
    /// `changes` was read. Bytes beyond `size` are of no account.
    pub(crate) fn learn(&mut self, changes: u64, offset: u64, extents: &[Extent], size: u64) {
        if changes != self.changes {
            return;
        }
        if self.known.len() + extents.len() > MOST {
            self.known.clear();
        }
        let mut at = offset;
        for extent in extents.iter().take(MOST) {
            let end = at.saturating_add(extent.len).min(size);
            if at >= end {
                return;
            }
            self.forget(at, end);
            self.known.insert(at, (end, extent.is_zero));
            at = end;
        }
    }

    fn forget(&mut self, at: u64, end: u64) {
        let changes = self.changes;
        self.change(at, end - at);
        self.changes = changes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_cuts_what_is_known() {
        let mut known = Allocation::default();
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
