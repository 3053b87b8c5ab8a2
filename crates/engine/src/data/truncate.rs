//! Truncation, in as many transactions as it takes.
//!
//! A cut first makes the inode an orphan with its new size, in one handle: from there on recovery
//! finishes it. Then the tail of the last block is zeroed, the blocks behind are freed from the
//! end on in bounded handles, and the last of them ends the orphan.

use super::{max_size, set_size, touch, zero_tail};
use crate::error::{Error, Result};
use crate::inode::Node;
use crate::map::{self, Progress};
use crate::orphan;
use crate::txn::{Txn, credits};
use lanefs_format::extent::MAX_BLOCKS;

/// Sets i_size. What is new reads as zeros.
///
/// # Errors
/// [`Error::FileTooBig`], [`Error::NotPermitted`]; what is damaged in the map.
pub(crate) fn truncate(node: &Node, size: u64) -> Result<()> {
    let _data = node.lock();
    let fs = &*node.fs;
    fs.check_writable()?;
    node.check_mutable()?;
    let inode = node.state().clone();
    if size > max_size(fs, &inode) {
        return Err(Error::FileTooBig);
    }
    if size > inode.size {
        zero_tail(fs, node.ino, &inode, inode.size, size)?;
        let mut txn = fs.start(credits::INODE + credits::SUPER)?;
        return node.update(&mut txn, |txn, inode| {
            touch(fs, inode);
            set_size(txn, inode, size)
        });
    }
    let mut txn = fs.start(credits::INODE + credits::SUPER + credits::ORPHAN)?;
    node.update(&mut txn, |txn, inode| {
        touch(fs, inode);
        set_size(txn, inode, size)?;
        // Without a block there is nothing that a crash could cut short.
        if map::is_empty(inode) { Ok(()) } else { orphan::add(txn, node.ino) }
    })?;
    drop(txn);
    if map::is_empty(&inode) {
        return Ok(());
    }
    let mut txn = free_behind(node)?;
    txn.ensure(credits::INODE + credits::ORPHAN)?;
    node.update(&mut txn, |txn, inode| orphan::remove(txn, node.ino, inode))
}

/// Frees what lies behind i_size of an orphan, and zeroes the tail: a truncation that was cut short.
pub(crate) fn truncate_tail(node: &Node) -> Result<()> {
    let _data = node.lock();
    let mapped = map::has_map(&node.fs, &node.state());
    if mapped { free_behind(node).map(|_| ()) } else { Ok(()) }
}

/// Frees all blocks of an orphan that is to be deleted, whatever its i_size and type.
pub(crate) fn truncate_for_delete(node: &Node) -> Result<()> {
    let _data = node.lock();
    let inode = node.state().clone();
    if !map::has_map(&node.fs, &inode) || map::is_empty(&inode) {
        return Ok(());
    }
    free_from(node, 0).map(|_| ())
}

/// Zeroes the tail of the last block of the file and frees all blocks behind it. The answer is the
/// last handle.
fn free_behind(node: &Node) -> Result<Txn<'_>> {
    let fs = &*node.fs;
    let inode = node.state().clone();
    zero_tail(fs, node.ino, &inode, inode.size, u64::MAX)?;
    // Beyond the map there is nothing to free.
    let first = u32::try_from(inode.size.div_ceil(u64::from(fs.block_size))).unwrap_or(MAX_BLOCKS);
    free_from(node, first)
}

fn free_from(node: &Node, first: u32) -> Result<Txn<'_>> {
    let needed = map::remove_credits(&node.state()) + credits::INODE;
    let mut txn = node.fs.start(needed)?;
    loop {
        let step =
            node.update(&mut txn, |txn, inode| map::remove(txn, node.ino, inode, first..MAX_BLOCKS))?;
        match step {
            Progress::Done => return Ok(txn),
            Progress::More => txn.restart(needed)?,
        }
    }
}
