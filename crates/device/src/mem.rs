//! A device in memory.

use crate::block_device::check_range;
use crate::{BlockDevice, Op, Result};
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A volume in memory, made of zeros. Nothing outlives the value.
pub struct MemDevice {
    size: u64,
    bytes: RwLock<Vec<u8>>,
}

impl MemDevice {
    /// A device of `size` zero bytes.
    pub fn new(size: usize) -> Self {
        Self::from_bytes(vec![0; size])
    }

    /// A device that starts with `bytes`.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { size: bytes.len() as u64, bytes: RwLock::new(bytes) }
    }

    /// A copy of all bytes as they are now.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.read().clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for MemDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(Op::Read, self.size, offset, buf.len() as u64)?;
        let at = offset as usize;
        buf.copy_from_slice(&self.read()[at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(Op::Write, self.size, offset, data.len() as u64)?;
        let at = offset as usize;
        self.write()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Op::Discard, self.size, offset, len)?;
        self.write()[offset as usize..(offset + len) as usize].fill(0);
        Ok(())
    }
}

impl fmt::Debug for MemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemDevice({} bytes)", self.size)
    }
}
