//! The end of an inode: no name, no user.
//!
//! The inode is on the orphan list since its last name went. Its blocks are freed in bounded
//! transactions; the last one takes it off the list, marks it deleted and frees its number.

use super::Node;
use crate::error::Result;
use crate::txn::credits;
use crate::{alloc, data, orphan, xattr};

pub(super) fn delete(node: &Node) -> Result<()> {
    let fs = &node.fs;
    data::truncate_for_delete(node)?;
    let mut txn = fs.start(credits::XATTR + credits::ORPHAN + 2 * credits::INODE + credits::RUN)?;
    let mut inode = node.state_mut();
    let is_dir = inode.is_dir();
    xattr::free_all(&mut txn, node.ino, &mut inode)?;
    orphan::delete(&mut txn, node.ino, &mut inode)?;
    inode.dtime = fs.now().sec.clamp(1, i64::from(u32::MAX)) as u32;
    inode.size = 0;
    fs.write_inode(&txn, node.ino, &inode)?;
    // Last: once the bit is clear, another thread may make this number a new inode.
    alloc::free_inode(&mut txn, node.ino, is_dir)
}
