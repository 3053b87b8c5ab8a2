//! Deletes an inode that has no name and no user.
//!
//! The inode is on the orphan list since its last name was removed. Its blocks are freed in bounded
//! transactions; the last one takes it off the list, marks it as deleted and frees its number.

use super::CachedInode;
use crate::error::Result;
use crate::store::txn::credits;
use crate::store::{alloc, orphan, xattr};

pub(super) fn delete(node: &CachedInode) -> Result<()> {
    let fs = &node.fs;
    node.truncate_for_delete()?;
    // Reads all blocks that the deletion changes before it changes any.
    let prepared = node.prepare()?;
    let _held = (xattr::hold_for_free(&node.fs, &node.state())?, alloc::hold_inode(fs, node.ino)?);
    let needed = credits::XATTR + credits::ORPHAN + 2 * credits::INODE + credits::RUN;
    fs.transact(needed, |txn| {
        let is_dir = prepared.update(txn, |txn, inode| {
            // First, because it reads the inode of a neighbour on the list.
            orphan::delete(txn, inode)?;
            xattr::free_all(txn, inode)?;
            inode.dtime = fs.now().sec.clamp(1, i64::from(u32::MAX)) as u32;
            inode.size = 0;
            Ok(inode.is_dir())
        })?;
        // Last: once the bit is clear, another thread may take the number for a new inode.
        alloc::free_inode(txn, node.ino, is_dir)
    })
}
