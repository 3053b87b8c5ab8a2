//! A device whose writes stay in memory.
//!
//! It lets a reader see the blocks that recovery of a volume would write, without a write to the
//! volume. The engine opens a volume for reading on one, and first tries on one a volume that it
//! opens for writing; the check replays the log on one.
//!
//! Hazard: a log in a hole of a sparse image names as many blocks as its author likes. A page that
//! is zeros behind its head is kept by that head, so memory is bounded by what the image holds.

use crate::block_device::check_range;
use crate::{BlockDevice, Op, ReadOp, Result, WriteOp};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

const PAGE: usize = 4096;

/// Bytes at the start of a page that are kept where the others are zeros: a block of zeros from a
/// log may have its first bytes escaped.
const HEAD: usize = 16;

/// A page that was written.
#[derive(Debug)]
enum Page {
    /// All bytes behind these are zeros.
    Head([u8; HEAD]),
    Whole(Box<[u8; PAGE]>),
}

type Pages = HashMap<u64, Page>;

impl Page {
    fn new(bytes: Box<[u8; PAGE]>) -> Self {
        match bytes.split_first_chunk() {
            Some((head, rest)) if rest.iter().all(|byte| *byte == 0) => Self::Head(*head),
            _ => Self::Whole(bytes),
        }
    }

    /// Copies the bytes from byte `within` on into `buf`.
    fn copy_out(&self, within: usize, buf: &mut [u8]) {
        match self {
            Self::Whole(bytes) => buf.copy_from_slice(&bytes[within..within + buf.len()]),
            Self::Head(head) => {
                let (start, zeros) = buf.split_at_mut(HEAD.saturating_sub(within).min(buf.len()));
                start.copy_from_slice(&head[HEAD.min(within)..][..start.len()]);
                zeros.fill(0);
            }
        }
    }

    fn whole(&self) -> Box<[u8; PAGE]> {
        let mut bytes = Box::new([0; PAGE]);
        self.copy_out(0, &mut *bytes);
        bytes
    }
}

/// A device over another one, whose writes stay in memory.
///
/// Reads return the written bytes, and the device below stays as it is. The writes take memory
/// until the overlay is dropped, and are lost with it.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, MemDevice, Overlay};
/// use std::sync::Arc;
///
/// let below = Arc::new(MemDevice::new(8192));
/// let overlay = Overlay::new(below.clone());
/// overlay.write_at(b"kept above", 4090)?;
/// let mut seen = [0; 10];
/// overlay.read_at(&mut seen, 4090)?;
/// assert_eq!(&seen, b"kept above");
/// assert_eq!(below.to_bytes(), [0; 8192]);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct Overlay {
    below: Arc<dyn BlockDevice>,
    pages: RwLock<Pages>,
}

impl Overlay {
    /// Returns an overlay over `below`, without any writes yet.
    pub fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self { below, pages: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Pages> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what was written over what was read below.
    fn cover(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let pages = self.read();
        if pages.is_empty() {
            return Ok(());
        }
        Self::pieces(offset, buf.len(), |page, within, range| {
            if let Some(page) = pages.get(&page) {
                page.copy_out(within, &mut buf[range]);
            }
            Ok(())
        })
    }

    /// Reads the pages that `ops` write in part and that were not written yet, in one batch: on a
    /// device with latency a read of each would take as long.
    fn read_torn_pages(&self, pages: &mut Pages, ops: &[WriteOp<'_>]) -> Result<()> {
        let mut torn = BTreeSet::new();
        for op in ops {
            let len = op.data.iter().map(|data| data.len()).sum();
            check_range(Op::Write, self.size(), op.offset, len as u64)?;
            Self::pieces(op.offset, len, |page, _, range| {
                if range.len() < PAGE && !pages.contains_key(&page) {
                    torn.insert(page);
                }
                Ok(())
            })?;
        }
        let mut contents: Vec<_> = torn.into_iter().map(|page| (page, Box::new([0; PAGE]))).collect();
        let mut reads = Vec::with_capacity(contents.len());
        for (page, bytes) in &mut contents {
            let offset = *page * PAGE as u64;
            let len = self.size().saturating_sub(offset).min(PAGE as u64) as usize;
            reads.push(ReadOp { offset, buf: &mut bytes[..len] });
        }
        if !reads.is_empty() {
            self.below.read_batch(&mut reads)?;
        }
        drop(reads);
        pages.extend(contents.into_iter().map(|(page, bytes)| (page, Page::new(bytes))));
        Ok(())
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
    crate::forward_to!(below: size alignment sector_size atomic_write);

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_at(buf, offset)?;
        self.cover(buf, offset)
    }

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_shared(buf, offset)?;
        self.cover(buf, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.below.read_batch(ops)?;
        ops.iter_mut().try_for_each(|op| self.cover(op.buf, op.offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_batch(&[WriteOp { offset, data: &[data] }])
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        self.read_torn_pages(&mut pages, ops)?;
        for op in ops {
            let mut offset = op.offset;
            for data in op.data {
                Self::pieces(offset, data.len(), |page, within, range| {
                    let mut bytes = match pages.remove(&page) {
                        Some(Page::Whole(bytes)) => bytes,
                        Some(page) => page.whole(),
                        None => Box::new([0; PAGE]),
                    };
                    bytes[within..within + range.len()].copy_from_slice(&data[range]);
                    pages.insert(page, Page::new(bytes));
                    Ok(())
                })?;
                offset += data.len() as u64;
            }
        }
        Ok(())
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

    #[test]
    fn zeros_take_no_pages() {
        const SIZE: usize = 10 * PAGE + 100;
        let below = Arc::new(MemDevice::from_bytes(vec![7; SIZE]));
        let overlay = Overlay::new(below);
        let mut want = vec![7; SIZE];
        let mut write = |bytes: &[u8], at: usize| {
            overlay.write_at(bytes, at as u64).unwrap();
            want[at..at + bytes.len()].copy_from_slice(bytes);
            let mut seen = vec![9; SIZE];
            for (piece, part) in seen.chunks_mut(1000).enumerate() {
                overlay.read_at(part, piece as u64 * 1000).unwrap();
            }
            assert!(seen == want, "{} bytes at {at}", bytes.len());
            overlay.read().values().filter(|page| matches!(page, Page::Whole(_))).count()
        };
        assert_eq!(write(&[0; 4 * PAGE], 0), 0);
        // A block whose first bytes were escaped, and bytes at each side of the head's end.
        assert_eq!(write(&[1, 2, 3, 4], 0), 0);
        assert_eq!(write(&[5; 2], PAGE + HEAD - 2), 0);
        assert_eq!(write(&[5; 2], 2 * PAGE + HEAD - 1), 1);
        assert_eq!(write(&[0; 2], 2 * PAGE + HEAD - 1), 0);
        assert_eq!(write(&[6], 4 * PAGE - 1), 1);
        // The last page of the device is a part of one.
        assert_eq!(write(&[0; 100], 10 * PAGE), 1);
        assert_eq!(write(&[8; 3 * PAGE], 100), 4);
    }
}
