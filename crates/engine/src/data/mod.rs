//! The content of files: read, write, truncate.
//!
//! This is the simple path. A write maps after it has written: data goes to blocks that are
//! reserved in core only, and when it is on the device one handle marks them in the bitmap, inserts
//! them as written and moves i_size. A crash before that handle leaves free blocks, so no stale data
//! is ever read, and no handle is held across data I/O. Overwrites go straight to their blocks.
//!
//! Invariant: the bytes of the last block beyond i_size are zeros on the device. Who cuts a file
//! zeroes them, and who extends it does so again, for a crash may have come between.
//!
//! Locking: the node's data lock, shared to read and exclusive to change. Its `state` lock is
//! held only inside of handles, never across device I/O; under the data lock, a copy of the
//! inode's map stays true.

mod io;
mod read;
#[cfg(test)]
mod tests;
mod truncate;
mod write;

pub(crate) use read::{next_data, read, read_inode};
pub(crate) use truncate::{truncate, truncate_for_delete, truncate_tail};
pub(crate) use write::{append, write};

use crate::error::{Error, Result};
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
fn zero_tail(fs: &Fs, ino: u32, inode: &Inode, from: u64, to: u64) -> Result<()> {
    let (lblk, inner) = place(fs, from)?;
    if inner == 0 || from >= to {
        return Ok(());
    }
    let Mapping::Mapped { block, unwritten: false, .. } = map::lookup(fs, ino, inode, lblk)? else {
        return Ok(());
    };
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

/// The content was changed.
fn touch(fs: &Fs, inode: &mut Inode) {
    let now = fs.now();
    (inode.mtime, inode.ctime) = (now, now);
    inode.version = inode.version.wrapping_add(1);
}
