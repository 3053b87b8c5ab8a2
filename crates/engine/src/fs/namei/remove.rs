//! Removes names: unlink and rmdir.

use super::{check_name, drop_dir_link, find_entry, is_dots};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::inode::{Exclusive, Node, NodeRef, Prepared};
use crate::store::txn::{Txn, credits};
use crate::store::{dir, orphan};
use std::sync::Arc;

impl Fs {
    /// Removes the name of anything but a directory. Returns its inode, which is deleted with its
    /// last name and its last user.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`].
    pub(crate) fn unlink(self: &Arc<Self>, dir: &Node, name: &[u8]) -> Result<NodeRef> {
        check_name(name)?;
        self.check_writable()?;
        if is_dots(name) {
            return Err(Error::IsDir);
        }
        // Dropped last: the deletion of the inode starts handles of its own.
        let node;
        let _exclusive = dir.lock();
        let found = find_entry(dir, name)?.ok_or(Error::NotFound)?;
        node = self.node(found.ino)?;
        if node.is_dir() {
            return Err(Error::IsDir);
        }
        dir.check_mutable()?;
        node.check_mutable()?;
        let (from, to) = (dir.prepare()?, node.prepare()?);
        self.transact(remove_credits(), |txn| {
            remove_name(txn, dir, &from, &found, name)?;
            drop_link(txn, &node, &to)
        })?;
        drop((from, to));
        Ok(node)
    }

    /// Removes an empty directory. Returns its inode, which is deleted with its last user.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::NotEmpty`], [`Error::Invalid`] for ".".
    pub(crate) fn rmdir(self: &Arc<Self>, dir: &Node, name: &[u8]) -> Result<NodeRef> {
        check_name(name)?;
        self.check_writable()?;
        match name {
            b"." => return Err(Error::Invalid("'.' cannot be removed")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        loop {
            let node = self.lookup(dir, name)?;
            node.check_dir()?;
            let locks = lock_nodes(&[dir, &node]);
            // Between the lookup and the locks another thread may have given the name to another
            // inode.
            let found = find_entry(dir, name)?.ok_or(Error::NotFound)?;
            if found.ino != node.ino {
                continue;
            }
            dir.check_mutable()?;
            node.check_mutable()?;
            if !dir::is_empty(self, node.ino, &node.state())? {
                return Err(Error::NotEmpty);
            }
            let (from, to) = (dir.prepare()?, node.prepare()?);
            self.transact(remove_credits(), |txn| {
                remove_name(txn, dir, &from, &found, name)?;
                drop_dir(txn, &from, &node, &to)
            })?;
            drop((from, to, locks));
            return Ok(node);
        }
    }
}

/// Locks several inodes exclusively, each once, in the order of their numbers.
pub(super) fn lock_nodes<'a>(nodes: &[&'a Node]) -> Vec<Exclusive<'a>> {
    let mut sorted = nodes.to_vec();
    sorted.sort_by_key(|n| n.ino);
    sorted.dedup_by_key(|n| n.ino);
    sorted.into_iter().map(Node::lock).collect()
}

pub(super) fn remove_credits() -> u32 {
    dir::CREDITS_REMOVE + 2 * credits::INODE + credits::ORPHAN
}

fn remove_name(
    txn: &mut Txn<'_>,
    dir: &Node,
    prepared: &Prepared<'_>,
    found: &dir::Found,
    name: &[u8],
) -> Result<()> {
    let now = dir.fs.now();
    prepared.update(txn, |txn, parent| {
        dir::remove_at(txn, dir.ino, parent, found, name)?;
        (parent.mtime, parent.ctime) = (now, now);
        Ok(())
    })
}

/// Counts a removed name of an inode that is no directory.
pub(super) fn drop_link(txn: &mut Txn<'_>, node: &Node, prepared: &Prepared<'_>) -> Result<()> {
    let now = node.fs.now();
    prepared.update(txn, |txn, inode| {
        inode.ctime = now;
        inode.links_count = inode.links_count.saturating_sub(1);
        if inode.links_count == 0 { orphan::add(txn, node.ino) } else { Ok(()) }
    })
}

/// Removes what is left of an empty directory that has lost its name in `dir`.
pub(super) fn drop_dir(
    txn: &mut Txn<'_>,
    dir: &Prepared<'_>,
    node: &Node,
    prepared: &Prepared<'_>,
) -> Result<()> {
    let now = node.fs.now();
    prepared.update(txn, |txn, inode| {
        inode.ctime = now;
        inode.links_count = 0;
        inode.size = 0;
        orphan::add(txn, node.ino)
    })?;
    dir.update(txn, |_, parent| {
        drop_dir_link(parent);
        Ok(())
    })
}
