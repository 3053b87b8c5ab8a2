//! A device that is not flushed: what a power cut leaves of it has no name anyway.

use lanefs::device::{BlockDevice, DeviceError, ReadOp, WriteOp};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Volatile(pub(super) Arc<dyn BlockDevice>);

impl BlockDevice for Volatile {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn sector_size(&self) -> u64 {
        self.0.sector_size()
    }

    fn owner(&self) -> Option<u32> {
        self.0.owner()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.0.write_at(data, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<(), DeviceError> {
        self.0.read_batch(ops)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<(), DeviceError> {
        self.0.write_batch(ops)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.write_zeroes(offset, len)
    }
}
