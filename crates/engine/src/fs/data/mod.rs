//! The content of files: read, write, truncate, sync.
//!
//! Invariant: the bytes of the last block beyond i_size are zeros on the device. Truncation zeroes
//! them. Extension zeroes them again, because a crash may have intervened.
//!
//! Locking:
//! - The file's bytes ([`lock`]): shared to read and to overwrite directly; exclusive for a write
//!   that readers must see whole; exclusive to the end of all bytes to change i_size or to move
//!   blocks.
//! - The inode's `state`: locked briefly, to look at the map or to change it under a handle. Blocks
//!   of the map may be read from the device while it is held, content never.

mod batch;
mod buffered;
mod cache;
mod combine;
mod delayed;
mod direct;
mod fallocate;
mod file;
mod lend;
mod lock;
mod nowait;
mod plan;
mod read;
mod room;
mod seek;
mod snapshot;
mod sync;
#[cfg(test)]
mod tests;
mod times;
mod truncate;
mod writeback;

pub(crate) use batch::{Bytes, Request, run as run_batch};
pub(crate) use buffered::{append, read, read_for_cache, write, write_late};
pub(crate) use cache::{Background, PageCache};
pub(crate) use combine::Combiner;
pub(crate) use direct::{append as append_direct, write as write_direct};
pub use fallocate::FallocMode;
pub(crate) use fallocate::fallocate;
pub(crate) use file::FileData;
pub(crate) use lend::lend;
pub(crate) use lock::Kept;
pub(crate) use nowait::{try_read, try_read_direct, try_write, try_write_direct};
pub(crate) use read::{next_data, read as read_direct};
pub use seek::FiemapExtent;
pub(crate) use seek::{fiemap, seek_data, seek_hole};
pub(crate) use sync::{sync_all, sync_data};
pub(crate) use truncate::{extend, truncate, truncate_for_delete, truncate_tail};
use writeback::{ALL, write_back, write_back_to};

use crate::error::Result;
use crate::fs::IVersion;
use crate::fs::inode::Node;
use crate::store::io;
use crate::store::map::{self, Mapping, max_size, place};
use crate::store::txn::Txn;
use lanefs_format::{Inode, RoCompat};

/// Pages to be written, as pieces with their place on the device.
type Pieces = Vec<(u64, Vec<cache::Bytes>)>;

/// Returns the mapping of `lblk`, from the snapshot or else from the map.
pub(super) fn mapping(node: &Node, file: &FileData, lblk: u32) -> Result<Mapping> {
    if let Some((block, len)) = file.snapshot.find(lblk) {
        return Ok(Mapping::Mapped { block, len, unwritten: false });
    }
    file.snapshot.miss(node)?;
    map::lookup(&node.fs, node.ino, &node.state(), lblk)
}

/// Zeroes the bytes from `from` to the end of its block, or to `to` before that. Zeroes them in the
/// cache and on the device: i_disksize may move past them, and their page may stay dirty after
/// that. Does nothing where the block is not written.
fn zero_tail(node: &Node, from: u64, to: u64) -> Result<()> {
    if from.is_multiple_of(node.fs.block_size.into()) { Ok(()) } else { zero_part(node, from, to) }
}

/// Zeroes as [`zero_tail`] does, but where the page is dirty, leaves the device to the writeback:
/// it comes before i_disksize moves past the bytes.
fn zero_gap(node: &Node, from: u64, to: u64) -> Result<()> {
    if from.is_multiple_of(node.fs.block_size.into()) || zero_cached(node, from, to) {
        return Ok(());
    }
    zero_on_device(node, from, to)
}

/// Zeroes the bytes between the end of the file and `offset` that lie in the last block, for a
/// direct write behind it. Holds the writeback lock, so that no page of that block is written
/// meanwhile: a part of a sector is read, changed and written back.
fn zero_before(node: &Node, file: &FileData, offset: u64) -> Result<()> {
    let size = file.size();
    if offset <= size {
        return Ok(());
    }
    let _alone = file.hold_writeback(node);
    zero_tail(node, size, offset)
}

/// Zeroes as [`zero_tail`] does, also if `from` is the start of a block.
fn zero_part(node: &Node, from: u64, to: u64) -> Result<()> {
    zero_cached(node, from, to);
    zero_on_device(node, from, to)
}

/// Zeroes the part of the block of `from` that is cached. Returns whether its page is dirty.
fn zero_cached(node: &Node, from: u64, to: u64) -> bool {
    let end = from.next_multiple_of(u64::from(node.fs.block_size)).min(to);
    let pages = node.file_if_used().and_then(FileData::pages_if_used).filter(|_| from < end);
    pages.is_some_and(|pages| pages.cut(from..end).head == cache::Edge::Dirty)
}

fn zero_on_device(node: &Node, from: u64, to: u64) -> Result<()> {
    let fs = &*node.fs;
    let (lblk, inner) = place(fs, from)?;
    if from >= to {
        return Ok(());
    }
    let mapping = map::lookup(fs, node.ino, &node.state(), lblk)?;
    let Mapping::Mapped { block, unwritten: false, .. } = mapping else { return Ok(()) };
    let len = (fs.block_size as usize - inner).min(usize::try_from(to - from).unwrap_or(usize::MAX));
    io::write(fs, &[io::Write { offset: fs.byte_of(block) + inner as u64, head: len, body: &[], tail: 0 }])
}

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

/// With `i_version=always`, starts a handle for each write and journals the inode.
fn journal_each_write(node: &Node) -> Result<()> {
    match node.fs.options.modes.i_version {
        IVersion::Always => {
            node.fs.counters.versions_journalled.add(1);
            node.fs.run_alone(node, plan::Work::default()).1
        }
        IVersion::Queried => Ok(()),
    }
}

/// Writes out the dirty pages of a file, so that a later change does not become durable before
/// them.
pub(crate) fn write_out(node: &Node) -> Result<()> {
    write_back(node, ALL)
}
