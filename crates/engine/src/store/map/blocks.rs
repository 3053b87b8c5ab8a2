//! The access to a volume's blocks that the block maps need: read, change, allocate and free.
//!
//! Two small traits, so that the maps' algorithms can be tested in memory, where space and credits
//! are counted. On a volume, [`Store`] reads and a running [`Txn`] changes.

use crate::error::Result;
use crate::store::Store;
use crate::store::alloc::{self, Reach};
use crate::store::txn::{BlockKind, Mark, Txn};
use std::ops::Range;

/// Reading the blocks of a map.
pub(crate) trait ReadBlocks {
    /// Returns the bytes of a block.
    fn block_size(&self) -> usize;

    /// Returns the blocks of the volume.
    fn limits(&self) -> Range<u64>;

    /// Runs `f` on the bytes of `block`. Calls `verify` once after each load of the block; `kind`
    /// is the structure that it is verified as. If `block` is not in memory, the blocks that
    /// `among` returns may be read with it.
    fn view_among<R>(
        &self,
        block: u64,
        kind: u8,
        among: impl FnOnce() -> Vec<u64>,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        f: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R>;

    /// Runs `f` as [`view_among`](Self::view_among) does, with no other blocks.
    fn view<R>(
        &self,
        block: u64,
        kind: u8,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        f: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        self.view_among(block, kind, Vec::new, verify, f)
    }
}

/// Changing the blocks of a map, inside a transaction.
pub(crate) trait ChangeBlocks: ReadBlocks {
    /// What [`hold_for_free`](Self::hold_for_free) holds.
    type Held;

    /// Runs `f` on the bytes of `block` to change them. A `fresh` block was just allocated and is
    /// all zeros.
    fn change(
        &mut self,
        block: u64,
        kind: u8,
        fresh: bool,
        f: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()>;

    /// Takes one free block near `goal`, within `reach`.
    fn alloc(&mut self, goal: u64, reach: Reach) -> Result<u64>;

    /// Gives back a block that [`alloc`](Self::alloc) took in this transaction and that nothing
    /// refers to.
    fn put_back(&mut self, block: u64) -> Result<()>;

    /// Frees blocks, all of one group.
    fn free(&mut self, start: u64, len: u32, kind: BlockKind) -> Result<()>;

    /// Reads what a [`free`](Self::free) of one block will change, so that it cannot fail while
    /// the result is held.
    fn hold_for_free(&self, block: u64) -> Result<Self::Held>;

    /// Returns the first block of the group that `block` belongs to.
    fn group_start(&self, block: u64) -> u64;

    /// Returns the longest run whose freeing costs one credit besides bitmap and descriptor.
    fn run_of(&self, kind: BlockKind) -> u32;

    /// Returns whether the transaction has `credits` left, or gets them now without waiting.
    fn room(&mut self, credits: u32) -> Result<bool>;

    /// Returns how much was changed so far: see [`Txn::mark`].
    fn mark(&self) -> Mark;

    /// Notes that all changes since `mark` were undone.
    fn undone(&mut self, mark: Mark);
}

impl ReadBlocks for Store {
    fn block_size(&self) -> usize {
        self.block_size as usize
    }

    fn limits(&self) -> Range<u64> {
        self.layout().first_data_block()..self.layout().blocks_count()
    }

    fn view_among<R>(
        &self,
        block: u64,
        kind: u8,
        among: impl FnOnce() -> Vec<u64>,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        f: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let buffer = self.file_block_among(block, kind, among, verify)?;
        let bytes = buffer.read();
        f(&bytes)
    }
}

impl ReadBlocks for Txn<'_> {
    fn block_size(&self) -> usize {
        ReadBlocks::block_size(self.store())
    }

    fn limits(&self) -> Range<u64> {
        self.store().limits()
    }

    fn view_among<R>(
        &self,
        block: u64,
        kind: u8,
        among: impl FnOnce() -> Vec<u64>,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        f: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        self.store().view_among(block, kind, among, verify, f)
    }
}

impl ChangeBlocks for Txn<'_> {
    type Held = alloc::HeldForFree;

    fn change(
        &mut self,
        block: u64,
        kind: u8,
        fresh: bool,
        f: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let buffer = match fresh {
            true => self.create(block)?,
            // The caller has verified the block in this operation. But it may have been evicted and
            // read again since, so it counts as verified only after `f` has run.
            false => {
                self.store().check_data_range(block, 1)?;
                self.store().journal.read(block)?
            }
        };
        f(&mut self.write(&buffer)?)?;
        buffer.set_verified(kind);
        Ok(())
    }

    fn alloc(&mut self, goal: u64, reach: Reach) -> Result<u64> {
        Ok(self.alloc_run(goal, 1, reach)?.0)
    }

    fn put_back(&mut self, block: u64) -> Result<()> {
        Txn::put_back(self, block, 1)
    }

    fn free(&mut self, start: u64, len: u32, kind: BlockKind) -> Result<()> {
        Txn::free(self, start, len, kind)
    }

    fn hold_for_free(&self, block: u64) -> Result<Self::Held> {
        alloc::hold_for_free(self.store(), block, 1)
    }

    fn group_start(&self, block: u64) -> u64 {
        let layout = self.store().layout();
        let start = layout.group_of_block(block).and_then(|(group, _)| layout.group_first_block(group));
        // Freeing a block that is in no group fails.
        start.unwrap_or(block)
    }

    fn run_of(&self, kind: BlockKind) -> u32 {
        Txn::run_of(self, kind)
    }

    fn room(&mut self, credits: u32) -> Result<bool> {
        let left = self.credits();
        if left >= credits { Ok(true) } else { self.extend(credits - left) }
    }

    fn mark(&self) -> Mark {
        Txn::mark(self)
    }

    fn undone(&mut self, mark: Mark) {
        Txn::undone(self, mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::fs::{Fs, OpenOptions};
    use crate::store::kind;
    use lanefs_device::MemDevice;
    use std::sync::Arc;

    /// A block that is read for a change is not trusted before the change is done.
    #[test]
    fn a_change_that_fails_does_not_verify_its_block() {
        let verified = |done: fn() -> Result<()>| {
            let device = MemDevice::new(16 << 20);
            lanefs_mkfs::format(&device, &lanefs_mkfs::Options::default()).unwrap();
            let store = Fs::open(Arc::new(device), OpenOptions::new().write(true)).unwrap();
            let block = store.layout().blocks_count() - 1;
            let changed = store.transact(8, |txn| txn.change(block, kind::EXTENT_NODE, false, |_| done()));
            assert_eq!(changed.is_ok(), done().is_ok());
            let verify = |_: &[u8]| Err(Error::Invalid("not verified"));
            store.view(block, kind::EXTENT_NODE, verify, |_| Ok(())).is_ok()
        };
        assert!(!verified(|| Err(Error::Invalid("refused"))));
        assert!(verified(|| Ok(())));
    }
}
