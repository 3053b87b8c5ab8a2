//! A device that is not flushed: what a power cut leaves of it has no name anyway.

use lanefs::device::{BlockDevice, DeviceError, ReadOp, WriteOp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(super) struct Volatile {
    below: Arc<dyn BlockDevice>,
    /// Its content is of no worth any more: it is not written.
    abandoned: AtomicBool,
}

impl Volatile {
    pub(super) fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self { below, abandoned: AtomicBool::new(false) }
    }

    /// Leaves away all writes from now on.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

impl BlockDevice for Volatile {
    fn size(&self) -> u64 {
        self.below.size()
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

    fn owner(&self) -> Option<u32> {
        self.below.owner()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.below.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), DeviceError> {
        if self.is_abandoned() { Ok(()) } else { self.below.write_at(data, offset) }
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<(), DeviceError> {
        self.below.read_batch(ops)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<(), DeviceError> {
        if self.is_abandoned() { Ok(()) } else { self.below.write_batch(ops) }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.below.write_zeroes(offset, len)
    }
}
