//! A device that is written to only while the volume on it is this host's.

use super::Holder;
use crate::error;
use crate::fs::admission::Admitted;
use lanefs_device::{BlockDevice, DeviceError, Op, Result, WriteOp, forward_to};
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

    /// Lets a write pass, if the volume is still this host's. The claim is given back only when the
    /// write is over, and has dropped what this returns.
    fn enter(&self, op: Op, offset: u64, len: u64) -> Result<Admitted<'_>> {
        as_of_device(self.holder.enter(), op, offset, len)
    }
}

/// Returns what the holder said as the outcome of an operation of the device.
fn as_of_device<T>(told: error::Result<T>, op: Op, offset: u64, len: u64) -> Result<T> {
    told.map_err(|why| DeviceError::new(op, offset, len, io::Error::other(why.to_string())))
}

impl BlockDevice for FencedDevice {
    forward_to!(below: size measure read_only alignment sector_size atomic_write owner name cached);
    forward_to!(below: is_remote read_at read_batch read_batch_direct read_shared read_if_cached);
    forward_to!(below: guard_repeats start_writeback);

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let _inside = self.enter(Op::Write, offset, data.len() as u64)?;
        self.below.write_at(data, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let first = ops.first().map_or(0, |op| op.offset);
        let _inside = self.enter(Op::Write, first, ops.iter().map(WriteOp::len).sum())?;
        self.below.write_batch(ops)
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        let _inside = self.enter(Op::Write, offset, data.len() as u64)?;
        self.below.write_shared(data, offset)
    }

    /// Checks behind the flush: what it covers was written while the volume was this host's.
    fn flush(&self) -> Result<()> {
        self.below.flush()?;
        as_of_device(self.holder.check(), Op::Flush, 0, 0)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let _inside = self.enter(Op::Discard, offset, len)?;
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let _inside = self.enter(Op::Write, offset, len)?;
        self.below.write_zeroes(offset, len)
    }
}
