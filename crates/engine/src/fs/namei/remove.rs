//! Removes names: unlink and rmdir.

use super::{check_name, drop_dir_link, find_entry, is_dots};
use crate::error::{Error, Result};
use crate::fs::inode::{CachedInode, Exclusive, InodeRef, Prepared};
use crate::store::txn::{Txn, credits};
use crate::store::{dir, orphan};

impl CachedInode {
    /// Removes the name of anything but a directory. Returns its inode, which is deleted with its
    /// last name and its last user.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`].
    pub(crate) fn unlink(&self, name: &[u8]) -> Result<InodeRef> {
        check_name(name)?;
        self.fs.check_writable()?;
        if is_dots(name) {
            return Err(Error::IsDir);
        }
        // Dropped last: the deletion of the inode starts handles of its own.
        let node;
        let _exclusive = self.lock();
        let found = find_entry(self, name)?.ok_or(Error::NotFound)?;
        node = self.fs.inode(found.ino)?;
        if node.is_dir() {
            return Err(Error::IsDir);
        }
        self.check_mutable()?;
        node.check_mutable()?;
        let (from, to) = (self.prepare()?, node.prepare()?);
        self.fs.transact(remove_credits(), |txn| {
            remove_name(txn, self, &from, &found, name)?;
            drop_link(txn, &node, &to)
        })?;
        drop((from, to));
        Ok(node)
    }

    /// Removes an empty directory. Returns its inode, which is deleted with its last user.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::NotEmpty`], [`Error::Invalid`] for ".".
    pub(crate) fn rmdir(&self, name: &[u8]) -> Result<InodeRef> {
        check_name(name)?;
        self.fs.check_writable()?;
        match name {
            b"." => return Err(Error::Invalid("'.' cannot be removed")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        loop {
            let node = self.lookup(name)?;
            node.check_dir()?;
            let locks = lock_nodes(&[self, &node]);
            // Between the lookup and the locks another thread may have given the name to another
            // inode.
            let found = find_entry(self, name)?.ok_or(Error::NotFound)?;
            if found.ino != node.ino {
                continue;
            }
            self.check_mutable()?;
            node.check_mutable()?;
            if !dir::is_empty(&self.fs, &node.state())? {
                return Err(Error::NotEmpty);
            }
            let (from, to) = (self.prepare()?, node.prepare()?);
            self.fs.transact(remove_credits(), |txn| {
                remove_name(txn, self, &from, &found, name)?;
                drop_dir(txn, &from, &node, &to)
            })?;
            drop((from, to, locks));
            return Ok(node);
        }
    }
}

/// Locks several inodes exclusively, each once, in the order of their numbers.
pub(super) fn lock_nodes<'a>(nodes: &[&'a CachedInode]) -> Vec<Exclusive<'a>> {
    let mut sorted = nodes.to_vec();
    sorted.sort_by_key(|n| n.ino);
    sorted.dedup_by_key(|n| n.ino);
    sorted.into_iter().map(CachedInode::lock).collect()
}

pub(super) fn remove_credits() -> u32 {
    dir::CREDITS_REMOVE + 2 * credits::INODE + credits::ORPHAN
}

fn remove_name(
    txn: &mut Txn<'_>,
    dir: &CachedInode,
    prepared: &Prepared<'_>,
    found: &dir::FoundEntry,
    name: &[u8],
) -> Result<()> {
    let now = dir.fs.now();
    prepared.update(txn, |txn, parent| {
        dir::remove(txn, parent, found, name)?;
        (parent.mtime, parent.ctime) = (now, now);
        Ok(())
    })
}

/// Counts a removed name of an inode that is no directory.
pub(super) fn drop_link(txn: &mut Txn<'_>, node: &CachedInode, prepared: &Prepared<'_>) -> Result<()> {
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
    node: &CachedInode,
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
