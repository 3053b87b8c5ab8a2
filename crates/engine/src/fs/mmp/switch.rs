//! Multiple mount protection switched on and off.

use super::MmpBlock;
use crate::error::Result;
use crate::fs::Fs;
use crate::store::alloc;
use crate::store::txn::credits;
use lanefs_format::mmp::{check_interval, update_interval};
use lanefs_format::{EXT4_MMP_SEQ_CLEAN, Mmp};
use std::sync::Arc;

impl Fs {
    /// Gives the volume multiple mount protection with an update every `interval` seconds, or
    /// changes the interval of one that has it. It counts from the next open on. No other thread
    /// may change the volume meanwhile, and it has to be closed then.
    ///
    /// # Errors
    /// No free block; the device's, the journal's.
    pub(crate) fn switch_mmp_on(&self, interval: u16) -> Result<()> {
        let interval = update_interval(interval);
        let before = self.sb.lock().clone();
        if let Some((block, _)) = before.mmp() {
            return self.write_supers(&before, 0, |sb| sb.set_mmp(Some((block, interval))));
        }
        // The superblock changes before its copies: no read may fail between them.
        let _held = self.hold_supers()?;
        let block = self.transact(credits::SUPER + credits::RUN, |txn| {
            let block = txn.alloc_meta(self.layout().first_data_block())?;
            // Past the journal, and durable with the flush of the commit.
            self.mmp_block(block).write(&Mmp {
                seq: EXT4_MMP_SEQ_CLEAN,
                time: self.now().sec.max(0).unsigned_abs(),
                nodename: Vec::new(),
                bdevname: Vec::new(),
                check_interval: check_interval(interval),
            })?;
            txn.store().write_super(txn, |sb| sb.set_mmp(Some((block, interval))))?;
            Ok(block)
        })?;
        self.write_supers(&before, 1, |sb| sb.set_mmp(Some((block, interval))))
    }

    /// Takes multiple mount protection from the volume, and frees its block. No other thread may
    /// change the volume meanwhile, and it has to be closed then: a superblock that is not in place
    /// yet would lead to a block that a file may own.
    ///
    /// # Errors
    /// The device's, the journal's.
    pub(crate) fn switch_mmp_off(&self) -> Result<()> {
        let before = self.sb.lock().clone();
        let Some((block, _)) = before.mmp() else { return Ok(()) };
        let _held = self.hold_supers()?;
        self.transact(credits::SUPER + credits::FREED_RUN, |txn| {
            if self.layout().check_blocks(block, 1).is_ok() {
                alloc::free_system_block(txn, block)?;
            }
            txn.store().write_super(txn, |sb| sb.set_mmp(None))?;
            // Last, since a switch that has failed gives the claim back when the volume is closed;
            // and under the handle, since behind it a commit may free the block for another use.
            if let Some(claim) = &self.claim {
                claim.dissolve();
            }
            Ok(())
        })?;
        self.write_supers(&before, 1, |sb| sb.set_mmp(None))
    }

    fn mmp_block(&self, number: u64) -> MmpBlock {
        let (device, size) = (Arc::clone(&self.device), self.block_size as usize);
        MmpBlock { device, number, size, csum: self.checksummer }
    }
}
