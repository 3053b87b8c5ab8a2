//! A device in memory.

use crate::block_device::check_range;
use crate::{BlockDevice, Op, Result};
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A device in memory.
///
/// Its bytes are lost when it is dropped. Every write is as durable as the value: a flush does
/// nothing. A discarded range reads as zeros.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, MemDevice};
///
/// let device = MemDevice::new(1 << 20);
/// device.write_at(b"written", 512)?;
/// let copy = MemDevice::from_bytes(device.to_bytes());
/// assert_eq!(copy.size(), 1 << 20);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
pub struct MemDevice {
    size: u64,
    bytes: RwLock<Vec<u8>>,
}

impl MemDevice {
    /// Returns a device of `size` zero bytes. Pages that are never written take no memory.
    pub fn new(size: usize) -> Self {
        Self::from_bytes(vec![0; size])
    }

    /// Returns a device with the content `bytes`, and of their length.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { size: bytes.len() as u64, bytes: RwLock::new(bytes) }
    }

    /// Returns a copy of all bytes as they are now.
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

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_range(Op::Read, self.size, offset, buf.len() as u64)?;
        let at = offset as usize;
        buf.copy_from_slice(&self.read()[at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReadOp, WriteOp};

    #[test]
    fn reads_what_was_written() {
        let dev = MemDevice::from_bytes(vec![7; 10_000]);
        dev.write_at(&[1; 1_000], 9_000).unwrap();
        dev.write_batch(&[WriteOp { offset: 1, data: &[b"ab", b"", b"cd"] }]).unwrap();
        dev.write_zeroes(2_000, 3_000).unwrap();
        let (mut head, mut tail) = ([9; 6], [9; 1_001]);
        let mut ops = [ReadOp { offset: 8_999, buf: &mut tail }, ReadOp { offset: 0, buf: &mut head }];
        dev.read_batch(&mut ops).unwrap();
        assert_eq!(&head, b"\x07abcd\x07");
        assert!(tail[0] == 7 && tail[1..].iter().all(|&b| b == 1));
        let bytes = dev.to_bytes();
        assert!(bytes[1_999] == 7 && bytes[5_000] == 7 && bytes[2_000..5_000].iter().all(|&b| b == 0));
    }

    #[test]
    fn ranges_end_at_the_size() {
        let dev = MemDevice::new(100);
        dev.write_at(b"", 100).unwrap();
        for (offset, len) in [(100, 1), (99, 2), (u64::MAX, 1)] {
            assert_eq!(dev.read_at(&mut vec![0; len], offset).unwrap_err().op, Op::Read);
            assert_eq!(dev.write_at(&vec![0; len], offset).unwrap_err().op, Op::Write);
            assert_eq!(dev.write_zeroes(offset, len as u64).unwrap_err().op, Op::Write);
            assert_eq!(dev.discard(offset, len as u64).unwrap_err().op, Op::Discard);
        }
    }
}
