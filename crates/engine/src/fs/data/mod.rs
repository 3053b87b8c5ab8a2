//! The content of files: read, write, truncate, sync.
//!
//! Invariant: the bytes of the last block beyond i_size are zeros on the device. Truncation zeroes
//! them. Extension zeroes them again, because a crash may have intervened.
//!
//! Locking:
//! - The file's bytes ([`lock`](crate::fs::file::lock)): shared to read and to overwrite directly;
//!   exclusive for a write that readers must see whole; exclusive to the end of all bytes to change
//!   i_size or to move blocks.
//! - The inode's `state`: locked briefly, to look at the map or to change it under a handle. Blocks
//!   of the map may be read from the device while it is held, content never.

mod batch;
mod buffered;
mod combine;
mod content;
mod delayed;
mod direct;
mod enable_verity;
mod fallocate;
mod lend;
mod nowait;
mod placed;
mod plan;
mod read;
mod room;
mod seek;
mod snapshot;
mod sync;
#[cfg(test)]
mod tests;
mod truncate;
mod verity;
mod writeback;

pub(crate) use batch::{Bytes, Request, run as run_batch};
pub(crate) use combine::Combiner;
pub(crate) use content::{Caching, Content};
pub use enable_verity::Verity;
pub use fallocate::FallocMode;
pub use placed::Placement;
pub use seek::FiemapExtent;
use writeback::ALL;

use crate::error::Result;
use crate::fs::IVersion;
use crate::fs::file::{FileData, cache};
use crate::fs::inode::CachedInode;
use crate::store::io;
use crate::store::map::{self, Mapping, max_size, place};
use crate::store::txn::Txn;
use lanefs_format::{Inode, InodeFlags, RoCompat};

/// Pages to be written, as pieces with their place on the device.
type Pieces = Vec<(u64, Vec<cache::Bytes>)>;

/// Flags of a file whose bytes may not be overwritten.
const NOT_OVERWRITTEN: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND).union(InodeFlags::VERITY);

/// Sets i_size under a handle with a credit for the superblock, which records whether there are
/// files of 2 GiB.
fn set_size(txn: &Txn<'_>, inode: &mut Inode, size: u64) -> Result<()> {
    let fs = txn.store();
    if size > i32::MAX as u64 && !fs.has_ro(RoCompat::LARGE_FILE) {
        fs.write_super(txn, |sb| sb.set_large_file())?;
    }
    inode.size = size;
    Ok(())
}

impl Content<'_> {
    /// Zeroes as [`CachedInode::zero_tail`] does, but where the page is dirty, leaves the device to
    /// the writeback: it comes before i_disksize moves past the bytes.
    fn zero_gap(self, from: u64, to: u64) -> Result<()> {
        if from.is_multiple_of(self.fs().block_size.into()) || self.node.zero_cached(from, to) {
            return Ok(());
        }
        self.node.zero_on_device(from, to)
    }

    /// Zeroes the bytes between the end of the file and `offset` that lie in the last block, for a
    /// direct write behind it. Holds the writeback lock, so that no page of that block is written
    /// meanwhile: a part of a sector is read, changed and written back.
    fn zero_before(self, offset: u64) -> Result<()> {
        let size = self.file.size();
        if offset <= size {
            return Ok(());
        }
        let _alone = self.hold_writeback();
        self.node.zero_tail(size, offset)
    }

    /// Starts a handle for each write and journals the inode, with `i_version=always`.
    fn journal_each_write(self) -> Result<()> {
        match self.fs().options.modes.i_version {
            IVersion::Always => {
                self.fs().counters.versions_journalled.add(1);
                self.fs().run_alone(self.node, plan::Work::default()).1
            }
            IVersion::Queried => Ok(()),
        }
    }
}

/// An inode of any type may have a last block, whose content was never used.
impl CachedInode {
    /// Zeroes the bytes from `from` to the end of its block, or to `to` before that. Zeroes them in
    /// the cache and on the device: i_disksize may move past them, and their page may stay dirty
    /// after that. Does nothing where the block is not written.
    fn zero_tail(&self, from: u64, to: u64) -> Result<()> {
        if from.is_multiple_of(self.fs.block_size.into()) { Ok(()) } else { self.zero_part(from, to) }
    }

    /// Zeroes as [`zero_tail`](Self::zero_tail) does, also if `from` is the start of a block.
    fn zero_part(&self, from: u64, to: u64) -> Result<()> {
        self.zero_cached(from, to);
        self.zero_on_device(from, to)
    }

    /// Zeroes the part of the block of `from` that is cached. Returns whether its page is dirty.
    fn zero_cached(&self, from: u64, to: u64) -> bool {
        let end = from.next_multiple_of(u64::from(self.fs.block_size)).min(to);
        let pages = self.file_if_used().and_then(FileData::pages_if_used).filter(|_| from < end);
        pages.is_some_and(|pages| pages.cut(from..end).head == cache::Edge::Dirty)
    }

    fn zero_on_device(&self, from: u64, to: u64) -> Result<()> {
        let fs = &*self.fs;
        // No block is mapped behind the end of the map, where i_size of a damaged inode may lie.
        if from >= to || from >= max_size(fs, self.flags()) {
            return Ok(());
        }
        let (lblk, inner) = place(fs, from)?;
        let mapping = map::lookup(fs, &self.state(), lblk)?;
        let Mapping::Mapped { block, unwritten: false, .. } = mapping else { return Ok(()) };
        let len = (fs.block_size as usize - inner).min(usize::try_from(to - from).unwrap_or(usize::MAX));
        io::write(
            fs,
            &[io::Write { offset: fs.byte_of(block) + inner as u64, head: len, body: &[], tail: 0 }],
        )
    }
}
