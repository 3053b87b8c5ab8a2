//! A device whose writes stay in memory.
//!
//! It lets a reader see the blocks that recovery of a volume would write, without a write to the
//! volume. The engine opens a volume for reading on one, and first tries on one a volume that it
//! opens for writing; the check replays the log on one. It holds as many pages as were written: at
//! most the blocks that the log names.

use crate::block_device::check_range;
use crate::{BlockDevice, Op, Result};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

const PAGE: usize = 4096;

type Pages = HashMap<u64, Box<[u8; PAGE]>>;

/// A device, with the writes to it in memory.
#[derive(Debug)]
pub struct Overlay {
    below: Arc<dyn BlockDevice>,
    pages: RwLock<Pages>,
}

impl Overlay {
    /// Returns an overlay over `below`, to which it never writes.
    pub fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self { below, pages: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Pages> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` for each piece of `[offset, offset + len)` within a page: page, byte in it, and
    /// the piece's place in the range.
    fn pieces(
        offset: u64,
        len: usize,
        mut f: impl FnMut(u64, usize, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let n = (PAGE - within).min(len - done);
            f(page, within, done..done + n)?;
            done += n;
        }
        Ok(())
    }
}

impl BlockDevice for Overlay {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn alignment(&self) -> usize {
        self.below.alignment()
    }

    fn atomic_write(&self) -> usize {
        self.below.atomic_write()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_at(buf, offset)?;
        let pages = self.read();
        if pages.is_empty() {
            return Ok(());
        }
        Self::pieces(offset, buf.len(), |page, within, range| {
            if let Some(bytes) = pages.get(&page) {
                let n = range.len();
                buf[range].copy_from_slice(&bytes[within..within + n]);
            }
            Ok(())
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        check_range(Op::Write, self.size(), offset, data.len() as u64)?;
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        Self::pieces(offset, data.len(), |page, within, range| {
            let bytes = match pages.entry(page) {
                std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::hash_map::Entry::Vacant(e) => {
                    let mut bytes = Box::new([0; PAGE]);
                    let start = page * PAGE as u64;
                    let n = self.below.size().saturating_sub(start).min(PAGE as u64) as usize;
                    self.below.read_at(&mut bytes[..n], start)?;
                    e.insert(bytes)
                }
            };
            let n = range.len();
            bytes[within..within + n].copy_from_slice(&data[range]);
            Ok(())
        })
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn writes_are_seen_above_and_not_below() {
        let below = Arc::new(MemDevice::from_bytes(vec![7; 10_000]));
        let overlay = Overlay::new(below.clone());
        overlay.write_at(&[1; 12], 4090).unwrap();
        overlay.write_at(&[2], 9_999).unwrap();
        let mut seen = vec![0; 10_000];
        overlay.read_at(&mut seen, 0).unwrap();
        let mut want = vec![7; 10_000];
        want[4090..4102].fill(1);
        want[9_999] = 2;
        assert_eq!(seen, want);
        assert_eq!(below.to_bytes(), vec![7; 10_000]);
        assert!(overlay.write_at(&[1], 10_000).is_err());
    }
}
