//! Allocation under a handle.

use super::{Reach, Reserved, free_blocks, reserve, reserve_claimed, take_reserved, unmark};
use crate::error::Result;
use crate::store::txn::{BlockKind, Txn};

impl Txn<'_> {
    /// Takes one block for metadata, near `goal`, and marks it on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed.
    pub(crate) fn alloc_meta(&mut self, goal: u64) -> Result<u64> {
        Ok(self.alloc_run(goal, 1, Reach::Volume)?.0)
    }

    /// Takes 1..=`want` contiguous blocks near `goal` and marks them on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed.
    pub(crate) fn alloc_run(&mut self, goal: u64, want: u32, reach: Reach) -> Result<(u64, u32)> {
        let mut reserved = self.reserve_run(goal, want, reach)?;
        let run = (reserved.start(), reserved.len());
        self.take_reserved(&mut reserved)?;
        Ok(run)
    }

    /// Chooses `blocks` blocks near `goal` that 32 bits can number. From now on allocations within
    /// [`Reach::Low`] take these first. A claim would not do: it is of blocks of the whole volume.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed.
    pub(crate) fn reserve_low(&mut self, mut goal: u64, blocks: u64) -> Result<()> {
        let (mut runs, mut left) = (Vec::new(), blocks);
        while left > 0 {
            let want = u32::try_from(left).unwrap_or(u32::MAX);
            let run = reserve(self.store(), goal, want, Reach::Low)?;
            left = left.saturating_sub(run.len().into());
            goal = run.start() + u64::from(run.len());
            runs.push(run);
        }
        self.low_mut().extend(runs);
        Ok(())
    }

    /// Takes up to `want` blocks of those that [`reserve_low`](Self::reserve_low) has chosen.
    fn take_low(&mut self, want: u32) -> Option<Reserved> {
        let mut run = self.low_mut().pop_front()?;
        let rest = run.split_off(want.max(1));
        if rest.len() > 0 {
            self.low_mut().push_front(rest);
        }
        Some(run)
    }

    /// Takes 1..=`want` contiguous blocks near `goal` in core: of those chosen before, of the claim
    /// while it has any, or else of all.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed.
    pub(crate) fn reserve_run(&mut self, goal: u64, want: u32, reach: Reach) -> Result<Reserved> {
        if reach == Reach::Low
            && let Some(run) = self.take_low(want)
        {
            return Ok(run);
        }
        let store = self.store();
        match self.claim_mut().filter(|c| c.blocks() > 0) {
            Some(claim) => reserve_claimed(store, goal, want, reach, claim),
            None => reserve(store, goal, want, reach),
        }
    }

    /// Gives back blocks that were taken under this handle and that nothing refers to: to the
    /// claim, if the handle has one.
    ///
    /// # Errors
    /// A block that is free already; the device's. Nothing is changed.
    pub(crate) fn put_back(&mut self, start: u64, len: u32) -> Result<()> {
        let run = unmark(self, start, len)?;
        if let Some(claim) = self.claim_mut() {
            run.put_into(claim);
        }
        Ok(())
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
