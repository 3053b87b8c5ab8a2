//! A device that is not flushed: what a power cut leaves of it has no name anyway.

use lanefs::device::{BlockDevice, DeviceError, WriteOp, forward_to};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(super) struct Volatile {
    below: Arc<dyn BlockDevice>,
    /// The volume was abandoned: writes are dropped.
    abandoned: AtomicBool,
}

impl Volatile {
    pub(super) fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self { below, abandoned: AtomicBool::new(false) }
    }

    /// Drops all writes from now on.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

impl BlockDevice for Volatile {
    forward_to!(below: size read_only alignment sector_size owner read_at read_batch discard write_zeroes);

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), DeviceError> {
        if self.is_abandoned() { Ok(()) } else { self.below.write_at(data, offset) }
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<(), DeviceError> {
        if self.is_abandoned() { Ok(()) } else { self.below.write_batch(ops) }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
