//! The content of files: read, write, truncate, sync.
//!
//! Invariant: the bytes of the last block beyond i_size are zeros on the device. Who cuts a file
//! zeroes them, and who extends it does so again, for a crash may have come between.
//!
//! Locking: a file's bytes ([`lock`]), shared to read and to overwrite directly, exclusive to change what
//! readers must see whole, and to the end of all bytes for i_size and the places of blocks. The inode's
//! `state` is locked for moments: to look at the map, or under a handle to change it; blocks of the map may be
//! read from the device meanwhile, content never.

#[allow(dead_code, unused_imports, reason = "the buffered path, which uses it, is being built")]
mod cache;
mod direct;
mod file;
mod io;
mod lock;
mod plan;
mod read;
mod sync;
#[cfg(test)]
mod tests;
mod times;
mod truncate;

pub(crate) use direct::{append, write};
pub(crate) use file::FileData;
pub(crate) use read::{next_data, read, read_inode};
pub(crate) use sync::{sync_all, sync_data};
pub(crate) use truncate::{truncate, truncate_for_delete, truncate_tail};

use crate::error::{Error, Result};
use crate::inode::Node;
use crate::map::{self, Mapping};
use crate::txn::Txn;
use crate::volume::Fs;
use lanefs_format::{Inode, RoCompat};

/// The largest i_size that the map of `inode` allows.
pub(crate) fn max_size(fs: &Fs, inode: &Inode) -> u64 {
    u64::from(map::max_blocks(fs, inode)) * u64::from(fs.block_size)
}

/// The logical block that holds byte `at`, and the byte's place in it.
fn place(fs: &Fs, at: u64) -> Result<(u32, usize)> {
    let size = u64::from(fs.block_size);
    let lblk = u32::try_from(at / size).map_err(|_| Error::FileTooBig)?;
    // A block is at most 64 KiB.
    Ok((lblk, (at % size) as usize))
}

/// Makes the bytes from `from` to the end of its block, or to `to` before that, zeros on the
/// device. Nothing to do where the block is not written.
fn zero_tail(node: &Node, from: u64, to: u64) -> Result<()> {
    let fs = &*node.fs;
    let (lblk, inner) = place(fs, from)?;
    if inner == 0 || from >= to {
        return Ok(());
    }
    let mapping = map::lookup(fs, node.ino, &node.state(), lblk)?;
    let Mapping::Mapped { block, unwritten: false, .. } = mapping else { return Ok(()) };
    let len = (fs.block_size as usize - inner).min(usize::try_from(to - from).unwrap_or(usize::MAX));
    io::write(fs, &[io::Write { offset: fs.byte_of(block) + inner as u64, head: len, body: &[], tail: 0 }])
}

/// Sets i_size under a handle with a credit for the superblock, which says whether there are
/// files of 2 GiB.
fn set_size(txn: &Txn<'_>, inode: &mut Inode, size: u64) -> Result<()> {
    let fs = txn.fs();
    if size > i32::MAX as u64 && !fs.has_ro(RoCompat::LARGE_FILE) {
        fs.write_super(txn, |sb| sb.set_large_file())?;
    }
    inode.size = size;
    Ok(())
}
