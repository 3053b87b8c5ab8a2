//! The changes that a transaction collects from its handles.

use crate::buffer::Content;
use crate::pending::{CommitData, Ordered};
use crate::{Buffer, Freed, Tid};
use lanefs_sync::IntSet;
use lanefs_sync::time::Instant;
use std::mem;
use std::sync::Arc;

/// Runs of freed blocks and pieces of ordered data with which a transaction is committed: a few MiB
/// of memory.
const MOST_ENTRIES: usize = 64 << 10;

/// The running transaction of a slot. Filled by handles as they end, but for revokes, which other
/// handles must see at once.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// Changed blocks, each once; one that was freed afterwards is still here but not its owner's.
    pub(crate) buffers: Vec<Buffer>,
    /// Metadata blocks that were freed and not made metadata again.
    pub(crate) revokes: IntSet<u64>,
    /// Credits that revoke blocks have taken.
    pub(crate) revoke_credits: u32,
    /// Credits that handles took beyond the limit.
    pub(crate) overdrawn: u32,
    /// All that was freed.
    pub(crate) freed: Vec<Freed>,
    /// Data that must be on the device before the commit block.
    pub(crate) ordered: Vec<Arc<Ordered>>,
    /// Data that the commit writes.
    pub(crate) data: Vec<Box<dyn CommitData>>,
    /// When the first handle ended that changed something.
    pub(crate) since: Option<Instant>,
}

impl Transaction {
    /// Returns whether there is anything to write.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.buffers.is_empty() || !self.revokes.is_empty() || !self.data.is_empty()
    }

    /// Returns whether it has so many entries that cost no credits (freed runs, ordered data) that
    /// it should be committed, however few its blocks are.
    pub(crate) fn is_long(&self) -> bool {
        self.freed.len() + self.ordered.len() + self.data.len() >= MOST_ENTRIES
    }

    /// Adds a handle's changes. Returns whether they are the first of the transaction.
    pub(crate) fn merge(&mut self, buffers: &mut Vec<Buffer>, freed: &mut Vec<Freed>) -> bool {
        append(&mut self.buffers, buffers);
        append(&mut self.freed, freed);
        let first = self.since.is_none() && (self.is_dirty() || !self.freed.is_empty());
        if first {
            self.since = Some(Instant::now());
        }
        first
    }

    /// Returns the closed transaction as it goes to the log.
    pub(crate) fn snapshot(&self, tid: Tid) -> Snapshot {
        let content = |buffer: &Buffer| Some((buffer.block(), buffer.snapshot(tid)?));
        let mut blocks = Vec::with_capacity(self.buffers.len());
        blocks.extend(self.buffers.iter().filter_map(content));
        blocks.sort_unstable_by_key(|(block, _)| *block);
        let mut revokes: Vec<u64> = self.revokes.iter().copied().collect();
        revokes.sort_unstable();
        Snapshot { tid, blocks, revokes }
    }
}

/// Moves all of `from` to the end of `to`. An empty list takes over the memory of `from`.
fn append<T>(to: &mut Vec<T>, from: &mut Vec<T>) {
    if to.is_empty() { mem::swap(to, from) } else { to.append(from) }
}

/// The contents of a closed transaction.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) tid: Tid,
    /// Sorted by block.
    pub(crate) blocks: Vec<(u64, Content)>,
    /// Sorted.
    pub(crate) revokes: Vec<u64>,
}
