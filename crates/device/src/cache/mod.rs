//! A device whose blocks are kept in a file of this host when they were read.
//!
//! ```text
//!  read  ---> entry there, and its checksum that of the bytes? cache : base, in pieces of 64 KiB
//!  write ---> base, then the entries of its blocks are cleared
//! ```
//!
//! Invariants:
//! - A block is given out only if the checksum of its entry is that of its bytes and its number.
//! - A writer marks its cache in the header, durably, before its first write. It takes the mark off
//!   only if it flushed the base and the base's size and first bytes are as this process knows
//!   them: another host may have taken the volume. The next opener empties a marked cache.
//! - A block that was written is never given out as it was before. If its entry cannot be cleared,
//!   this device uses its cache no more.
//! - Readers share a cache; a writer has it alone. A reader that may not have it reads the base.
//!
//! Hazard: a piece that was asked for before a write of it ended must not be stored. The write
//! changes the piece's version when it has ended, and `keep` compares the versions.

mod head;
mod open;
mod pieces;
mod store;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod two_users;

use crate::block_device::check_range;
use crate::identity::BaseIdentity;
use crate::{AlignedBuf, BlockDevice, Cached, Op, ReadOp, RepeatGuard, Result, WriteOp};
use head::KnownHead;
use pieces::{Piece, Pieces, STRIPES, Versions};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Store;

/// The unit of an entry, in bytes.
const BLOCK: u64 = 4096;
/// The unit of reading from the base, in bytes.
const PIECE: u64 = 64 << 10;

/// A device whose blocks are kept in a file of this host when they were read.
///
/// [`open_url`](crate::open_url) returns one for `cached:URL,dir=DIR,size=10G`. Writes go to the
/// device below before they return.
#[derive(Debug)]
pub struct CachedDevice {
    base: Arc<dyn BlockDevice>,
    store: Store,
    name: String,
    versions: Versions,
    read_only: bool,
    head: KnownHead,
    /// A write or flush has failed: what the base holds is not known.
    has_failed: AtomicBool,
    /// An entry could not be cleared: the cache is neither read nor filled any more.
    is_off: AtomicBool,
}

/// A read whose blocks were looked for in the cache.
struct Looked<'a, 'b> {
    op: &'a mut ReadOp<'b>,
    /// Its blocks, as far as the cache had them.
    blocks: AlignedBuf,
    first: u64,
    /// The blocks that have to be read from the base.
    missing: Vec<u64>,
}

impl CachedDevice {
    fn new(base: Arc<dyn BlockDevice>, store: Store, head: KnownHead, name: String) -> Self {
        let read_only = base.read_only();
        Self {
            base,
            store,
            name,
            versions: Versions::default(),
            read_only,
            head,
            has_failed: false.into(),
            is_off: false.into(),
        }
    }

    /// Looks for the blocks of a read in the cache.
    fn look<'a, 'b>(&self, op: &'a mut ReadOp<'b>) -> Looked<'a, 'b> {
        let touched = blocks_of(op.offset, op.buf.len() as u64);
        let mut blocks = AlignedBuf::zeroed(((touched.end - touched.start) * BLOCK) as usize);
        let missing = self.store.read(touched.start, &mut blocks);
        Looked { op, blocks, first: touched.start, missing }
    }

    /// Reads what the cache lacks, and keeps it.
    fn fetch(&self, looked: &mut [Looked<'_, '_>]) -> Result<()> {
        let missing = looked.iter().flat_map(|looked| looked.missing.iter().copied());
        let mut pieces = Pieces::of_blocks(missing, self.base.size(), &self.versions);
        if pieces.is_empty() {
            return Ok(());
        }
        self.base.read_batch(&mut pieces.reads())?;
        for looked in looked.iter_mut() {
            for block in &looked.missing {
                let at = ((block - looked.first) * BLOCK) as usize;
                let bytes = pieces.block(*block);
                looked.blocks[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        for piece in pieces.iter() {
            self.keep(piece);
        }
        self.store.evict();
        Ok(())
    }

    /// Stores a piece, unless one of its blocks was written since it was asked for.
    fn keep(&self, piece: &Piece) {
        self.versions.if_unchanged(piece.number, piece.version, || {
            if self.is_off.load(Ordering::Acquire) {
                return;
            }
            self.store.write(piece.number * (PIECE / BLOCK), &piece.bytes);
        });
    }

    /// Forgets a range that has been written, or may have been.
    fn forget(&self, offset: u64, len: u64) {
        // A range that the base refuses was not written.
        if len == 0 || check_range(Op::Write, self.size(), offset, len).is_err() {
            return;
        }
        let mut pieces = offset / PIECE..(offset + len).div_ceil(PIECE);
        let forget = || self.store.forget(blocks_of(offset, len));
        let done = match pieces.end - pieces.start {
            1 => self.versions.change(pieces.start, forget),
            // As many as there are versions, and perhaps all of a volume.
            n if n >= STRIPES as u64 => self.versions.change_all(forget),
            _ => pieces.try_for_each(|number| {
                let start = (number * PIECE).max(offset);
                let end = ((number + 1) * PIECE).min(offset + len);
                self.versions.change(number, || self.store.forget(blocks_of(start, end - start)))
            }),
        };
        if done.is_err() {
            self.is_off.store(true, Ordering::Release);
        }
    }

    /// Notes writes, and whether they have succeeded.
    fn wrote(&self, done: Result<()>, ops: &[WriteOp<'_>]) -> Result<()> {
        if done.is_ok() {
            self.head.write(ops);
        }
        ops.iter().for_each(|op| self.forget(op.offset, op.len()));
        self.told(done)
    }

    /// Returns the identity of the base for the next opener, `None` if what the cache holds may not
    /// be what the base holds.
    fn closed_with(&self) -> Option<BaseIdentity> {
        let is_lost = self.has_failed.load(Ordering::Relaxed) || self.is_off.load(Ordering::Acquire);
        if is_lost || self.base.flush().is_err() {
            return None;
        }
        let now = BaseIdentity::read(&*self.base).ok()?;
        (self.head.identity() == Some(now)).then_some(now)
    }

    /// Notes a failure of a change.
    fn told<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        done
    }
}

/// Returns the blocks that a range of bytes touches.
fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    if len == 0 { 0..0 } else { offset / BLOCK..(offset + len).div_ceil(BLOCK) }
}

impl BlockDevice for CachedDevice {
    crate::forward_to!(base: size measure alignment sector_size atomic_write);
    crate::forward_to!(base: is_private is_remote read_shared start_writeback);

    fn read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the owner of base and cache, or 65534 if they have two.
    fn owner(&self) -> Option<u32> {
        match self.base.owner() {
            Some(owner) if owner != self.store.owner() => Some(crate::UNKNOWN_OWNER),
            owner => owner.or(Some(self.store.owner())),
        }
    }

    fn name(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn cached(&self) -> Option<Cached> {
        Some(Cached::All)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_batch(&mut [ReadOp { offset, buf }])
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        for op in ops.iter() {
            check_range(Op::Read, self.size(), op.offset, op.buf.len() as u64)?;
        }
        if self.is_off.load(Ordering::Acquire) {
            return self.base.read_batch(ops);
        }
        let mut looked: Vec<_> =
            ops.iter_mut().filter(|op| !op.buf.is_empty()).map(|op| self.look(op)).collect();
        self.fetch(&mut looked)?;
        for Looked { op, blocks, first, .. } in looked {
            let within = (op.offset - first * BLOCK) as usize;
            op.buf.copy_from_slice(&blocks[within..within + op.buf.len()]);
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let done = self.base.write_at(data, offset);
        self.wrote(done, &[WriteOp { offset, data: &[data] }])
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let done = self.base.write_batch(ops);
        self.wrote(done, ops)
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        let done = self.base.write_shared(data, offset);
        self.wrote(done, &[WriteOp { offset, data: &[data] }])
    }

    /// Passes the guard on. It is set when this host has claimed the volume. What was read before
    /// is kept only if no other host can have written since.
    fn guard_repeats(&self, guard: RepeatGuard) {
        let now = BaseIdentity::read(&*self.base).ok();
        if self.head.is_unclosed() || now.is_none() || now != self.head.identity() {
            self.forget(0, self.size());
        }
        self.base.guard_repeats(guard);
    }

    fn flush(&self) -> Result<()> {
        self.told(self.base.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let done = self.told(self.base.discard(offset, len));
        self.head.lose(offset, len);
        self.forget(offset, len);
        done
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let done = self.told(self.base.write_zeroes(offset, len));
        if done.is_ok() {
            self.head.zero(offset, len);
        }
        self.forget(offset, len);
        done
    }
}

impl Drop for CachedDevice {
    /// Keeps the cache for the next opener, if it is known what the base holds.
    fn drop(&mut self) {
        if !self.read_only
            && let Some(identity) = self.closed_with()
        {
            // A cache that stays marked is emptied when it is opened.
            let _ = self.store.close(&identity);
        }
    }
}
