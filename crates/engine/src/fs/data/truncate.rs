//! Truncation, in as many transactions as it takes.
//!
//! 1. Dirty pages before the new end are written out, because the new size is the size on disk.
//! 2. One handle sets the new size and makes the inode an orphan: from then on recovery finishes
//!    it.
//! 3. The tail of the last block is zeroed.
//! 4. The blocks behind are freed, from the end on, in bounded handles. The last handle takes the
//!    inode off the orphan list.

use super::{FileData, delayed, max_size, set_size, write_back_to, zero_tail};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::inode::Node;
use crate::store::map::{self, Progress};
use crate::store::orphan;
use crate::store::txn::{Txn, credits};
use lanefs_format::Inode;
use lanefs_format::extent::MAX_BLOCKS;

/// Sets i_size. Bytes that are added read as zeros.
///
/// # Errors
/// [`Error::FileTooBig`], [`Error::NotPermitted`]; a damaged map.
pub(crate) fn truncate(node: &Node, size: u64) -> Result<()> {
    let (fs, file) = (&*node.fs, node.file());
    fs.check_writable()?;
    let _held = file.lock_from(node, size);
    node.check_mutable()?;
    if size > max_size(fs, node.flags()) {
        return Err(Error::FileTooBig);
    }
    let before = file.size();
    write_back_to(node, file, size.min(before))?;
    let _alone = file.hold_writeback(node);
    if file.is_cut_short() {
        free_cut(node, file, before)?;
    }
    if size > before {
        return grow(node, file, before, size);
    }
    let needed = credits::INODE + credits::SUPER + credits::ORPHAN;
    let prepared = node.prepare()?;
    fs.transact(needed, |txn| {
        prepared.update(txn, |txn, inode| {
            touch(fs, inode);
            set_size(txn, inode, size)?;
            // A file without blocks has nothing to free after a crash.
            if map::is_empty(inode) { Ok(()) } else { orphan::add(txn, node.ino) }
        })
    })?;
    // Before blocks are freed, so that no reader finds them.
    file.set_size(size);
    free_cut(node, file, size)
}

/// Frees the blocks behind `size`, the new i_size of an orphan, and takes it off the orphan list.
/// If that fails, the file must not grow until a truncation has freed them: the old bytes would be
/// back.
fn free_cut(node: &Node, file: &FileData, size: u64) -> Result<()> {
    file.set_cut_short(true);
    drop_pages(node, file, size)?;
    if !map::is_empty(&node.state()) {
        free_behind(node, |txn| {
            txn.ensure(credits::INODE + credits::ORPHAN)?;
            node.update(txn, |txn, inode| orphan::settle(txn, node.ino, inode))
        })?;
    }
    file.set_cut_short(false);
    Ok(())
}

/// Moves i_size up to `size`, if it is less. Bytes that are added read as zeros.
///
/// # Errors
/// As [`truncate`].
pub(crate) fn extend(node: &Node, size: u64) -> Result<()> {
    let (fs, file) = (&*node.fs, node.file());
    fs.check_writable()?;
    let (_held, before) = file.lock_end(node);
    node.check_not_immutable()?;
    if size <= before {
        return Ok(());
    }
    if size > max_size(fs, node.flags()) {
        return Err(Error::FileTooBig);
    }
    write_back_to(node, file, before)?;
    let _alone = file.hold_writeback(node);
    grow(node, file, before, size)
}

/// Finishes an interrupted truncation of an orphan: frees the blocks behind i_size and zeroes the
/// tail.
pub(crate) fn truncate_tail(node: &Node) -> Result<()> {
    let mapped = map::has_map(&node.fs, &node.state());
    if let Some(file) = node.file_if_used() {
        file.set_size(node.state().size);
    }
    if mapped { free_behind(node, |_| Ok(())) } else { Ok(()) }
}

/// Frees all blocks of an orphan that is to be deleted, whatever its i_size and type.
pub(crate) fn truncate_for_delete(node: &Node) -> Result<()> {
    if let Some(file) = node.file_if_used() {
        let _alone = file.hold_writeback(node);
        drop_pages(node, file, 0)?;
    }
    {
        let inode = node.state();
        if !map::has_map(&node.fs, &inode) || map::is_empty(&inode) {
            return Ok(());
        }
    }
    free_from(node, 0, |_| Ok(()))
}

fn grow(node: &Node, file: &FileData, before: u64, size: u64) -> Result<()> {
    let fs = &*node.fs;
    file.check_growth(node.ino)?;
    zero_tail(node, before, size)?;
    let prepared = node.prepare()?;
    fs.transact(credits::INODE + credits::SUPER, |txn| {
        prepared.update(txn, |txn, inode| {
            touch(fs, inode);
            set_size(txn, inode, size)
        })
    })?;
    file.set_size(size);
    Ok(())
}

/// Drops the cached bytes behind `size`, and their claims.
fn drop_pages(node: &Node, file: &FileData, size: u64) -> Result<()> {
    file.alloc.discard();
    let Some(pages) = file.pages_if_used() else { return Ok(()) };
    let cut = pages.cut(size..u64::MAX);
    delayed::give_up(node, file, &cut.dropped)
}

/// Zeroes the tail of the last block of the file, frees all blocks behind it, and runs `then` under
/// the last handle.
fn free_behind<'n>(node: &'n Node, then: impl FnOnce(&mut Txn<'n>) -> Result<()>) -> Result<()> {
    let fs = &*node.fs;
    let size = node.state().size;
    zero_tail(node, size, u64::MAX)?;
    // Beyond the map there is nothing to free.
    let first = u32::try_from(size.div_ceil(u64::from(fs.block_size))).unwrap_or(MAX_BLOCKS);
    free_from(node, first, then)
}

fn free_from<'n>(node: &'n Node, first: u32, then: impl FnOnce(&mut Txn<'n>) -> Result<()>) -> Result<()> {
    let needed = map::remove_credits(&node.state()) + credits::INODE;
    let prepared = node.prepare()?;
    node.fs.transact(needed, |txn| {
        loop {
            let step = prepared
                .update_map(txn, |txn, inode| map::remove(txn, node.ino, inode, first..MAX_BLOCKS))?;
            match step {
                Progress::Done => return then(txn),
                Progress::More => txn.restart(needed)?,
                Progress::Stopped(e) => return txn.stop(e),
            }
        }
    })
}

/// Stamps a change of the content.
pub(super) fn touch(fs: &Fs, inode: &mut Inode) {
    let now = fs.now();
    (inode.mtime, inode.ctime) = (now, now);
}
