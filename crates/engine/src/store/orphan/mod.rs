//! Orphans: inodes that recovery must finish, because they lost their last name while they were in
//! use, or because a truncation needs more than one transaction.
//!
//! The orphan file (`orphan_file`) is an array of inode numbers. The orphan list is chained through
//! the inodes: `s_last_orphan` is the newest, and `i_dtime` of each names the next older one. The
//! file is preferred while it has room; a volume can have both.
//!
//! Invariant: an inode without a name is an orphan until it is deleted, whatever programs do with
//! it while it is open.
//!
//! Locks: the mutexes here come above the superblock's and buffers, and below the inode's state.

mod file;
mod left;
mod list;

pub(crate) use left::{check, load};

use crate::error::Result;
use crate::store::Store;
use crate::store::txn::Txn;
use file::OrphanFile;
use lanefs_format::Inode;
use lanefs_sync::OnceLock;
use list::{Chain, List};
use std::collections::HashSet;

/// The orphans, and the place of each on disk.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    list: List,
    /// The orphan file, if the volume has one. Set once all orphans are [loaded](load).
    file: OnceLock<Option<OrphanFile>>,
}

impl Orphans {
    /// Returns the value that `i_dtime` of `ino` must have on disk because of the list.
    pub(crate) fn chain(&self, ino: u32) -> Chain<'_> {
        self.list.chain(ino)
    }

    /// Returns whether nothing is left for recovery to finish: false while that is not known,
    /// because the orphans are not loaded.
    pub(crate) fn is_empty(&self) -> bool {
        let is_loaded = self.file.get().is_some();
        is_loaded && self.list.is_empty() && self.file().is_none_or(OrphanFile::is_empty)
    }

    fn file(&self) -> Option<&OrphanFile> {
        self.file.get()?.as_ref()
    }
}

/// Checks that a number which the list or the file has can be an orphan's, and adds it to those
/// `seen` in either. Returns the rule that it breaks.
fn check_new(store: &Store, ino: u32, seen: &mut HashSet<u32>) -> std::result::Result<(), &'static str> {
    if ino < store.first_ino || ino > store.layout().inodes_count() {
        return Err("is no inode that can be an orphan");
    }
    if seen.insert(ino) { Ok(()) } else { Err("is there twice") }
}

/// Makes `ino` an orphan. The caller writes the inode afterwards under the same handle; costs
/// [`credits::ORPHAN`](crate::store::txn::credits::ORPHAN).
pub(crate) fn add(txn: &mut Txn<'_>, ino: u32) -> Result<()> {
    let orphans = &txn.store().orphans;
    if orphans.list.contains(ino) {
        return Ok(());
    }
    if let Some(file) = orphans.file()
        && file.add(txn, ino)?
    {
        return Ok(());
    }
    orphans.list.add(txn, ino)
}

/// Ends an orphan's truncation, or its lack of a name. An inode that has no name stays an orphan:
/// only [`delete`] takes it off. The caller writes the inode afterwards under the same handle.
pub(crate) fn settle(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    if inode.links_count == 0 { Ok(()) } else { remove(txn, inode) }
}

/// Takes off an inode that is being deleted. The caller writes the inode afterwards under the same
/// handle.
pub(crate) fn delete(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    remove(txn, inode)
}

fn remove(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    let orphans = &txn.store().orphans;
    let in_file = match orphans.file() {
        Some(file) => file.remove(txn, inode.ino)?,
        None => false,
    };
    if !in_file && orphans.list.remove(txn, inode.ino)? {
        inode.dtime = 0;
    }
    Ok(())
}
