//! Copy on write: a device over a base that is never written.
//!
//! What is written goes to a second device, the top, in blocks of 4096 bytes. A block that is
//! written in part for the first time is copied from the base before. `commit` folds a top back
//! into its base.
//!
//! ```text
//!  write ---> top: the bytes of the block, then its bit in memory
//!  read  ---> bit set? top : base
//!  flush ---> flush the top, write the changed units of the map, flush the top
//! ```
//!
//! Invariant: after a cut a read returns what was written before the last flush, or what came after
//! it, and no block is a mixture with the base: the contract of [`BlockDevice`].

mod commit;
mod header;
mod map;
mod open;
#[cfg(test)]
mod tests;
mod top;

use crate::block_device::check_range;
use crate::errno::EROFS;
use crate::identity::BaseIdentity;
use crate::{AlignedBuf, BlockDevice, Cached, DeviceError, Op, ReadOp, Result, WriteOp};
use map::blocks_of;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use top::Top;

/// The unit of copying, in bytes.
const BLOCK: u64 = 4096;
/// The size of a slot of the header or of the map, in bytes.
const UNIT: usize = 4096;

/// A device over a base that is never written: what is written goes to a top.
///
/// [`open_url`](crate::open_url) returns one for `overlay:base=URL,top=FILE`. The top belongs to
/// its base alone: it has the base's size and a checksum of its superblock.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, CowDevice, MemDevice};
/// use std::sync::Arc;
///
/// let base = Arc::new(MemDevice::from_bytes(vec![7; 1 << 20]));
/// let top = Arc::new(MemDevice::new(CowDevice::top_size(base.size()).unwrap() as usize));
/// let overlay = CowDevice::new(base.clone(), top.clone(), "base")?;
/// overlay.write_at(b"kept above", 4090)?;
/// overlay.flush()?;
/// drop(overlay);
///
/// let overlay = CowDevice::new(base.clone(), top, "base")?;
/// let mut seen = [0; 10];
/// overlay.read_at(&mut seen, 4090)?;
/// assert_eq!(&seen, b"kept above");
/// assert_eq!(base.to_bytes(), vec![7; 1 << 20]);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct CowDevice {
    base: Arc<dyn BlockDevice>,
    /// `None` for a reader of an overlay without a top.
    top: Option<Top>,
    name: Option<String>,
    size: u64,
    /// Exclusive while a block is copied: two threads may write different bytes of it. Shared while
    /// a block is written whole for the first time, which a copy must not undo.
    copying: RwLock<()>,
}

/// Returns the refusal of a top, which its message names.
fn refused(top: &dyn BlockDevice, errno: i32, why: impl Into<String>) -> DeviceError {
    let name = top.name().unwrap_or_else(|| "the top of the overlay".into());
    DeviceError::at_path(Op::Open, Path::new(&name), errno, why)
}

/// Returns whether the top has the first of some blocks, and the end of the run of blocks for which
/// this is so. Another thread may add blocks meanwhile, so no block is asked for twice.
fn first_run(blocks: Range<u64>, has: impl Fn(u64) -> bool) -> (bool, u64) {
    let is_above = has(blocks.start);
    let end = (blocks.start + 1..blocks.end).find(|block| has(*block) != is_above);
    (is_above, end.unwrap_or(blocks.end))
}

impl CowDevice {
    /// Returns the size in bytes that a top over a base of `size` bytes needs, `None` if no device
    /// can be so large.
    pub fn top_size(size: u64) -> Option<u64> {
        top::size_of(size)
    }

    /// Returns the device of a base and a top, which is a new one if its first 8192 bytes are
    /// zeros. `name` is the base's, for messages and for
    /// [`base_of`](Self::base_of).
    ///
    /// # Errors
    /// A top of another base (ESTALE), of another size or damaged (EUCLEAN); a new one with other
    /// content behind the zeros (EINVAL); those of the two devices.
    pub fn new(base: Arc<dyn BlockDevice>, top: Arc<dyn BlockDevice>, name: &str) -> Result<Self> {
        let top = Top::open(top, BaseIdentity::read(&*base)?, name)?;
        Ok(Self { size: base.size(), base, top: Some(top), name: None, copying: RwLock::default() })
    }

    /// Returns how many bytes the top has of its own.
    pub fn own_bytes(&self) -> u64 {
        self.top.as_ref().map_or(0, |top| top.map.count() * BLOCK)
    }

    /// Returns the top, if `[offset, offset + len)` may be changed.
    fn writable(&self, op: Op, offset: u64, len: u64) -> Result<&Top> {
        check_range(op, self.size, offset, len)?;
        match &self.top {
            Some(top) if !top.device.read_only() => Ok(top),
            _ => {
                let name = self.name.as_deref().unwrap_or("the overlay");
                let why = DeviceError::at_path(op, Path::new(name), EROFS, "is open for reading");
                Err(DeviceError { offset, len, ..why })
            }
        }
    }

    fn has(&self, block: u64) -> bool {
        self.top.as_ref().is_some_and(|top| top.map.has(block))
    }

    /// Copies the blocks that a write to a range covers in part, and that the top has not.
    fn copy_edges(&self, top: &Top, offset: u64, len: u64) -> Result<()> {
        let blocks = blocks_of(offset, len);
        let is_whole = |block: u64| {
            let start = block * BLOCK;
            offset <= start && offset + len >= (start + BLOCK).min(self.size)
        };
        let last = blocks.end.saturating_sub(1);
        for block in [blocks.start, last] {
            if !blocks.is_empty() && !is_whole(block) && !top.map.has(block) {
                self.copy(top, block)?;
            }
        }
        Ok(())
    }

    /// Returns the lock for writes of these blocks, if the top has not all of them.
    fn first_writes(
        &self,
        top: &Top,
        mut blocks: impl Iterator<Item = u64>,
    ) -> Option<RwLockReadGuard<'_, ()>> {
        let is_first = blocks.any(|block| !top.map.has(block));
        is_first.then(|| self.copying.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Copies a block from the base to the top.
    fn copy(&self, top: &Top, block: u64) -> Result<()> {
        let _copying = self.copying.write().unwrap_or_else(PoisonError::into_inner);
        if top.map.has(block) {
            return Ok(());
        }
        let start = block * BLOCK;
        let mut bytes = AlignedBuf::zeroed((self.size - start).min(BLOCK) as usize);
        self.base.read_at(&mut bytes, start)?;
        top.device.write_at(&bytes, top.place(start))?;
        top.map.add(block..block + 1);
        Ok(())
    }

    /// Splits reads into those of the base and those of the top.
    fn split<'o>(&self, ops: &'o mut [ReadOp<'_>]) -> Result<[Vec<ReadOp<'o>>; 2]> {
        let (mut below, mut above) = (Vec::new(), Vec::new());
        for op in ops {
            check_range(Op::Read, self.size, op.offset, op.buf.len() as u64)?;
            let (mut offset, mut buf) = (op.offset, &mut *op.buf);
            while !buf.is_empty() {
                let blocks = blocks_of(offset, buf.len() as u64);
                let (is_above, end) = first_run(blocks, |block| self.has(block));
                let n = (end * BLOCK - offset).min(buf.len() as u64);
                let (piece, rest) = buf.split_at_mut(n as usize);
                match self.top.as_ref().filter(|_| is_above) {
                    Some(top) => above.push(ReadOp { offset: top.place(offset), buf: piece }),
                    None => below.push(ReadOp { offset, buf: piece }),
                }
                (offset, buf) = (offset + n, rest);
            }
        }
        Ok([below, above])
    }

    /// Reads by `read`, from the base what the top has not.
    fn read_by(
        &self,
        ops: &mut [ReadOp<'_>],
        read: impl Fn(&dyn BlockDevice, &mut [ReadOp<'_>]) -> Result<()>,
    ) -> Result<()> {
        let [mut below, mut above] = self.split(ops)?;
        if !below.is_empty() {
            read(&*self.base, &mut below)?;
        }
        match &self.top {
            Some(top) if !above.is_empty() => read(&*top.device, &mut above),
            _ => Ok(()),
        }
    }

    /// Notes that a range has been written to the top.
    fn add(top: &Top, offset: u64, len: u64) {
        top.map.add(blocks_of(offset, len));
    }
}

impl BlockDevice for CowDevice {
    crate::forward_to!(base: sector_size);

    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.top.as_ref().is_none_or(|top| top.device.read_only())
    }

    fn alignment(&self) -> usize {
        self.top.as_ref().map_or(1, |top| top.device.alignment()).max(self.base.alignment())
    }

    /// Returns the smaller unit of base and top: the base may hold what was torn before it had a
    /// top.
    fn atomic_write(&self) -> usize {
        let of_top = self.top.as_ref().map_or(UNIT, |top| top.device.atomic_write());
        of_top.min(self.base.atomic_write()).min(UNIT)
    }

    /// Returns the owner of base and top, or 65534 if they have two.
    fn owner(&self) -> Option<u32> {
        let of_top = self.top.as_ref().and_then(|top| top.device.owner());
        match (self.base.owner(), of_top) {
            (Some(base), Some(top)) if base != top => Some(crate::UNKNOWN_OWNER),
            (base, top) => base.or(top),
        }
    }

    fn name(&self) -> Option<String> {
        self.name.clone()
    }

    fn cached(&self) -> Option<Cached> {
        self.top.as_ref().map_or_else(|| self.base.cached(), |top| top.device.cached())
    }

    /// Returns `true`: the top is locked by this host, and no other host writes to the base.
    fn is_private(&self) -> bool {
        true
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_batch(&mut [ReadOp { offset, buf }])
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.read_by(ops, |device, ops| device.read_batch(ops))
    }

    fn read_batch_direct(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.read_by(ops, |device, ops| device.read_batch_direct(ops))
    }

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_by(&mut [ReadOp { offset, buf }], |device, ops| {
            ops.iter_mut().try_for_each(|op| device.read_shared(op.buf, op.offset))
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_batch(&[WriteOp { offset, data: &[data] }])
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let mut moved = Vec::with_capacity(ops.len());
        for op in ops {
            let top = self.writable(Op::Write, op.offset, op.len())?;
            self.copy_edges(top, op.offset, op.len())?;
            moved.push(WriteOp { offset: top.place(op.offset), data: op.data });
        }
        let Some(top) = &self.top else { return Ok(()) };
        let _first = self.first_writes(top, ops.iter().flat_map(|op| blocks_of(op.offset, op.len())));
        top.device.write_batch(&moved)?;
        ops.iter().for_each(|op| Self::add(top, op.offset, op.len()));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        match &self.top {
            Some(top) if !top.device.read_only() => top.flush(),
            _ => Ok(()),
        }
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        if let Some(top) = &self.top {
            top.device.start_writeback(top.place(offset), len);
        }
    }

    /// Discards whole blocks that the top has, and keeps them in the map: the base's content does
    /// not come back.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let top = self.writable(Op::Discard, offset, len)?;
        let whole = offset.div_ceil(BLOCK)..(offset + len) / BLOCK;
        let mut block = whole.start;
        while block < whole.end {
            let start = block;
            while block < whole.end && top.map.has(block) {
                block += 1;
            }
            if start < block {
                top.device.discard(top.place(start * BLOCK), (block - start) * BLOCK)?;
            }
            block += 1;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let top = self.writable(Op::Write, offset, len)?;
        self.copy_edges(top, offset, len)?;
        let _first = self.first_writes(top, blocks_of(offset, len));
        top.device.write_zeroes(top.place(offset), len)?;
        Self::add(top, offset, len);
        Ok(())
    }
}
