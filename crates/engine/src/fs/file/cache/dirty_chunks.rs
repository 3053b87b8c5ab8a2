//! The dirty chunks of one file, and its place in the list of dirty files.

use super::stream::Stream;
use std::collections::BTreeSet;

/// The place of a file in the list: counts up in time.
pub(super) type DirtyTurn = u64;

/// The dirty chunks of a file.
#[derive(Debug, Default)]
pub(super) struct DirtyChunks {
    chunks: BTreeSet<u32>,
    turn: DirtyTurn,
    /// Writebacks that have taken blocks of the file. If they fail, the blocks are dirty again.
    writebacks: u32,
    pub(super) stream: Stream,
}

impl DirtyChunks {
    /// Adds a chunk; for the file's first, `enlist` puts the file into the list, behind the others.
    /// Returns the turn that leaves the list then, after the new one is in it, so that a thread
    /// that lists all dirty files always finds this one.
    #[must_use]
    pub(super) fn insert(&mut self, chunk: u32, enlist: impl FnOnce() -> DirtyTurn) -> Option<DirtyTurn> {
        let old = self.chunks.is_empty().then(|| std::mem::replace(&mut self.turn, enlist()));
        self.chunks.insert(chunk);
        old.filter(|_| self.writebacks > 0)
    }

    /// Removes a chunk. Returns the turn that leaves the list with the last one, unless a writeback
    /// has some of the file.
    #[must_use]
    pub(super) fn remove(&mut self, chunk: u32) -> Option<DirtyTurn> {
        let was_last = self.chunks.remove(&chunk) && self.chunks.is_empty();
        (was_last && self.writebacks == 0).then_some(self.turn)
    }

    /// Notes that a writeback is about to take chunks. The file stays in the list until it ends: a
    /// thread that waits for all files to be written out waits for this writeback too.
    pub(super) fn writeback_begins(&mut self) {
        self.writebacks += 1;
    }

    /// Notes that the writeback of [`writeback_begins`](Self::writeback_begins) has ended, or took
    /// nothing. Returns the turn that leaves the list.
    #[must_use]
    pub(super) fn writeback_ends(&mut self) -> Option<DirtyTurn> {
        self.writebacks = self.writebacks.saturating_sub(1);
        // A file that was never dirty has turn 0, which is not in the list.
        (self.writebacks == 0 && self.chunks.is_empty()).then_some(self.turn)
    }

    /// Returns the first dirty chunk from `chunk` on.
    pub(super) fn next(&self, chunk: u32) -> Option<u32> {
        self.chunks.range(chunk..).next().copied()
    }

    /// Removes all chunks. Returns the turn that leaves the list.
    #[must_use]
    pub(super) fn clear(&mut self) -> Option<DirtyTurn> {
        let had_any = !std::mem::take(&mut self.chunks).is_empty();
        (had_any || self.writebacks > 0).then_some(self.turn)
    }

    /// Returns how many.
    pub(super) fn len(&self) -> u32 {
        self.chunks.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}
