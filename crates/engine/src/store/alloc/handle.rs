//! Allocation under a handle.

use super::{Reserved, free_blocks, reserve, reserve_claimed, take_reserved};
use crate::error::Result;
use crate::store::txn::{BlockKind, Txn};

impl Txn<'_> {
    /// Takes one block for metadata, near `goal`, and marks it on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed.
    pub(crate) fn alloc_meta(&mut self, goal: u64) -> Result<u64> {
        Ok(self.alloc_run(goal, 1)?.0)
    }

    /// Takes 1..=`want` contiguous blocks near `goal` and marks them on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed.
    pub(crate) fn alloc_run(&mut self, goal: u64, want: u32) -> Result<(u64, u32)> {
        let store = self.store();
        let mut reserved = match self.claim_mut().filter(|c| c.blocks() > 0) {
            Some(claim) => reserve_claimed(store, goal, want, claim)?,
            None => reserve(store, goal, want)?,
        };
        let run = (reserved.start(), reserved.len());
        self.take_reserved(&mut reserved)?;
        Ok(run)
    }

    /// Marks reserved blocks as used on disk, and leaves `reserved` empty.
    pub(crate) fn take_reserved(&mut self, reserved: &mut Reserved) -> Result<()> {
        take_reserved(self, reserved)
    }

    /// Frees blocks. They can be allocated again once this transaction has committed.
    ///
    /// # Errors
    /// Blocks that no file can own, or that are free already.
    pub(crate) fn free(&mut self, start: u64, len: u32, kind: BlockKind) -> Result<()> {
        free_blocks(self, start, len, kind)
    }
}
