//! Linear directories: every block holds entries, in no order.

use super::block::{Dir, Role, append};
use super::walk::Walk;
use super::{Lookup, NewEntry, Slot, find_in_leaf};
use crate::error::Result;
use crate::store::txn::Txn;
use lanefs_format::Inode;
use lanefs_format::dirent;

/// Looks for `name` in block after block.
pub(super) fn find(dir: &Dir<'_>, name: &[u8]) -> Result<Lookup> {
    let (mut walk, mut room) = (Walk::new(dir), None);
    for lblk in 0..dir.blocks {
        if let Some(found) = find_in_leaf(&mut walk, lblk, name, &mut room)? {
            return Ok(Lookup::Found(found));
        }
    }
    Ok(Lookup::Vacant(Slot { room }))
}

/// Adds a block for a name that no block has room for.
pub(super) fn grow(txn: &mut Txn<'_>, inode: &mut Inode, new: &NewEntry<'_>) -> Result<()> {
    let (_, buffer) = append(txn, inode)?;
    let dir = Dir::new(txn.store(), inode)?;
    dir.change(txn, &buffer, Role::Leaf, |bytes| {
        dirent::init_block(bytes, dir.layout());
        Ok(())
    })?;
    new.put(&dir, txn, &buffer, 0)
}
