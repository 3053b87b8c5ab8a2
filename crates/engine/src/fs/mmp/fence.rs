//! A device that is written to only while the volume on it is this host's.

use super::Holder;
use lanefs_device::{BlockDevice, Cached, DeviceError, Op, ReadOp, RepeatGuard, Result, WriteOp};
use std::io;
use std::sync::Arc;

/// The device of a claimed volume.
///
/// It never lends its memory: a program that maps it would write past the fence.
#[derive(Debug)]
pub(crate) struct FencedDevice {
    below: Arc<dyn BlockDevice>,
    holder: Arc<Holder>,
}

impl FencedDevice {
    pub(super) fn new(below: Arc<dyn BlockDevice>, holder: Arc<Holder>) -> Self {
        Self { below, holder }
    }

    /// Checks that the volume is still this host's.
    fn check(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        self.holder
            .check()
            .map_err(|why| DeviceError::new(op, offset, len, io::Error::other(why.to_string())))
    }
}

impl BlockDevice for FencedDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn measure(&self) -> Result<u64> {
        self.below.measure()
    }

    fn read_only(&self) -> bool {
        self.below.read_only()
    }

    fn alignment(&self) -> usize {
        self.below.alignment()
    }

    fn sector_size(&self) -> u64 {
        self.below.sector_size()
    }

    fn atomic_write(&self) -> usize {
        self.below.atomic_write()
    }

    fn owner(&self) -> Option<u32> {
        self.below.owner()
    }

    fn name(&self) -> Option<String> {
        self.below.name()
    }

    fn cached(&self) -> Option<Cached> {
        self.below.cached()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_at(buf, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.below.read_batch(ops)
    }

    fn read_batch_direct(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.below.read_batch_direct(ops)
    }

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_shared(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        self.below.write_at(data, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let first = ops.first().map_or(0, |op| op.offset);
        self.check(Op::Write, first, ops.iter().map(WriteOp::len).sum())?;
        self.below.write_batch(ops)
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        self.below.write_shared(data, offset)
    }

    fn guard_repeats(&self, guard: RepeatGuard) {
        self.below.guard_repeats(guard);
    }

    /// Checks behind the flush: what it covers was written while the volume was this host's.
    fn flush(&self) -> Result<()> {
        self.below.flush()?;
        self.check(Op::Flush, 0, 0)
    }

    fn read_if_cached(&self, buf: &mut [u8], offset: u64) -> bool {
        self.below.read_if_cached(buf, offset)
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        self.below.start_writeback(offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(Op::Discard, offset, len)?;
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check(Op::Write, offset, len)?;
        self.below.write_zeroes(offset, len)
    }
}
