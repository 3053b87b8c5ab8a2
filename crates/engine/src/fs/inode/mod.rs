//! Inodes in memory.
//!
//! A [`CachedInode`] is an inode in use, one for each number. [`InodeRef`]s keep it: when the last
//! is dropped and the inode has no name, the inode is deleted. The lock `ns` is the namespace lock
//! of a directory. The lock `state` guards the decoded inode. A thread holds it briefly, to look at
//! the inode or to change it under a handle. A file's content has its own state, [`FileData`].
//!
//! Invariants:
//! - A thread holds `state` of at most one inode.
//! - A cached inode that is not in use stays in the cache while it has changes that the inode on
//!   disk does not have. The rest of its state passes to the volume when it is evicted
//!   ([`InodeCache`]).
//! - A change goes through [`Prepared`], which holds the inode's block of the table in memory:
//!   writing the inode does no I/O. A change that fails leaves the decoded inode as the table has
//!   it.
//!
//! Hazard: dropping an `InodeRef` may start a handle and take locks. Declare it before handles and
//! locks, so that it is dropped after them.

mod cache;
mod delete;
mod durable;
#[cfg(test)]
mod tests;

pub(crate) use cache::InodeCache;

use crate::error::{Corrupt, Error, Result};
use crate::fs::Fs;
use crate::fs::file::FileData;
use crate::store::TableSlot;
use crate::store::txn::Txn;
use durable::Durable;
use lanefs_format::{Inode, InodeFlags, Timestamp};
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// A time that no change sets. Shows that a change has left ctime alone.
const NO_STAMP: Timestamp = Timestamp { sec: i64::MIN, nsec: 0 };

/// A namespace lock held shared.
pub(crate) type Shared<'a> = Ordered<RwLockReadGuard<'a, ()>>;
/// A namespace lock held exclusively.
pub(crate) type Exclusive<'a> = Ordered<RwLockWriteGuard<'a, ()>>;

/// An inode in use.
#[derive(Debug)]
pub(crate) struct CachedInode {
    me: Weak<CachedInode>,
    pub(crate) ino: u32,
    pub(crate) fs: Arc<Fs>,
    ns: RwLock<()>,
    state: RwLock<Inode>,
    /// i_flags, as in `state`: writers of one file read them here, and do not contend for its lock.
    flags: AtomicU32,
    /// The content's state, from its first use on.
    file: OnceLock<Box<FileData>>,
    /// Which transactions changed the inode.
    pub(crate) durable: Durable,
    /// Whether it was made without a name, and has not got one since.
    linkable: AtomicBool,
    /// Whether [`InodeRef::delete`] has tried to delete it: the last drop does not try again.
    deletion_tried: AtomicBool,
    /// [`InodeRef`]s. Goes from 0 to 1 only under the cache's shard lock.
    refs: AtomicUsize,
}

impl CachedInode {
    /// Takes the namespace lock shared.
    pub(crate) fn share(&self) -> Shared<'_> {
        Ordered::take(Level::Namespace, self.ino.into(), || self.ns.read())
    }

    /// Takes the namespace lock exclusively.
    pub(crate) fn lock(&self) -> Exclusive<'_> {
        Ordered::take(Level::Namespace, self.ino.into(), || self.ns.write())
    }

    /// Locks the decoded inode for reading.
    pub(crate) fn state(&self) -> Ordered<RwLockReadGuard<'_, Inode>> {
        Ordered::take(Level::Inode, 0, || self.state.read())
    }

    /// Locks the inode for a change under a handle. The caller also writes it to the table.
    fn state_mut(&self) -> Ordered<RwLockWriteGuard<'_, Inode>> {
        Ordered::take(Level::Inode, 0, || self.state.write())
    }

    /// Returns i_flags as they are now.
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.load(Ordering::Acquire))
    }

    /// Returns a reference with which another thread works on the inode while this one waits. It
    /// does not count as a use.
    pub(crate) fn shared(&self) -> Option<Arc<CachedInode>> {
        self.me.upgrade()
    }

    /// Returns the state of a regular file's content.
    pub(crate) fn file(&self) -> &FileData {
        if let Some(file) = self.file_if_used() {
            return file;
        }
        // Held until the state is set: changes of the inode before that are in it, later ones
        // update it.
        let state = self.state();
        self.file.get_or_init(|| Box::new(FileData::new(&self.fs, &state)))
    }

    /// Returns the state of the content, if it was ever used.
    pub(crate) fn file_if_used(&self) -> Option<&FileData> {
        self.file.get().map(|file| &**file)
    }

    /// Returns the inode as programs see it, with changes of the content that the inode does not
    /// have yet. Marks the version as seen: the next change of the content makes a new i_version.
    pub(crate) fn attributes(&self) -> Inode {
        // Held to the end: a thread that moves times into the inode has finished, or has not begun.
        let state = self.state();
        let mut inode = state.clone();
        // In this order: the state of a content that is first used after this begins with its
        // version marked as seen.
        if let Some(file) = self.file_if_used() {
            inode.size = file.size();
            // Blocks that are not allocated yet count too, so that a program does not take them for
            // holes.
            let sectors = file.delayed_blocks() * u64::from(self.fs.block_size / 512);
            inode.blocks = inode.blocks.saturating_add(sectors);
            file.times.show(&mut inode);
        }
        inode
    }

    /// Returns whether it has changes that the inode on disk does not have, and must stay in the
    /// cache.
    fn is_ahead(&self) -> bool {
        self.file_if_used().is_some_and(FileData::is_ahead)
    }

    /// Returns whether the inode has no name, or may have none because a thread is changing it:
    /// this never waits. No thread changes an inode that is not in use.
    pub(crate) fn is_nameless(&self) -> bool {
        self.state.try_read().is_none_or(|inode| inode.links_count == 0)
    }

    /// Returns whether the file may get its first name: it was made without one. A file that lost
    /// its last name may not.
    pub(crate) fn is_linkable(&self) -> bool {
        self.linkable.load(Ordering::Relaxed)
    }

    /// Sets [`is_linkable`](Self::is_linkable).
    pub(crate) fn set_linkable(&self, linkable: bool) {
        self.linkable.store(linkable, Ordering::Relaxed);
    }

    /// Returns whether some of its content is cached.
    fn has_pages(&self) -> bool {
        self.file_if_used().is_some_and(FileData::has_pages)
    }

    /// Reads the inode's block of the table. Later changes write the inode without I/O.
    pub(crate) fn prepare(&self) -> Result<Prepared<'_>> {
        Ok(Prepared { node: self, slot: self.fs.table_slot(self.ino)? })
    }

    /// Changes the inode and writes it to the table, as [`Prepared::update`], after reading the
    /// table's block.
    pub(crate) fn update<'f, T>(
        &self,
        txn: &mut Txn<'f>,
        change: impl FnOnce(&mut Txn<'f>, &mut Inode) -> Result<T>,
    ) -> Result<T> {
        self.prepare()?.update(txn, change)
    }

    /// Changes the inode and its block map, as [`Prepared::update_map`], after reading the table's
    /// block.
    pub(crate) fn update_map<'f, T>(
        &self,
        txn: &mut Txn<'f>,
        change: impl FnOnce(&mut Txn<'f>, &mut Inode) -> Result<T>,
    ) -> Result<T> {
        self.prepare()?.update_map(txn, change)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.state().is_dir()
    }

    /// Checks that the inode is a directory.
    ///
    /// # Errors
    /// [`Error::NotDir`] if it is none.
    pub(crate) fn check_dir(&self) -> Result<()> {
        if self.is_dir() { Ok(()) } else { Err(Error::NotDir) }
    }

    /// Checks that the inode is a directory that has a name.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a directory that was removed, [`Error::NotDir`] if it is none.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.check_dir()?;
        if self.state().links_count == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Checks that the inode may be changed at all.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for an immutable inode.
    pub(crate) fn check_not_immutable(&self) -> Result<()> {
        self.check_change(true)
    }

    /// Checks that the content may be changed.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a file whose content a hash tree fixes.
    pub(crate) fn check_no_verity(&self) -> Result<()> {
        match self.flags().contains(InodeFlags::VERITY) {
            true => Err(Error::NotPermitted("the file has a hash tree: fs-verity")),
            false => Ok(()),
        }
    }

    /// Checks that the inode may be changed otherwise than by appending.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for an immutable or append-only inode.
    pub(crate) fn check_mutable(&self) -> Result<()> {
        self.check_change(false)
    }

    /// Checks that the flags allow a change, which `appends` or does something else.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for an immutable inode, and for an append-only one unless it
    /// `appends`.
    pub(crate) fn check_change(&self, appends: bool) -> Result<()> {
        let flags = self.flags();
        if flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted("the inode is immutable"));
        }
        if !appends && flags.contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the inode is append-only"));
        }
        Ok(())
    }
}

/// An inode whose block of the table is held in memory.
#[derive(Debug)]
pub(crate) struct Prepared<'n> {
    node: &'n CachedInode,
    slot: TableSlot<'n>,
}

impl Prepared<'_> {
    /// Changes the inode and writes it to the table.
    ///
    /// # Errors
    /// That of `change`: the inode is as it was. `change` itself, or [`Fs::transact`], undoes
    /// changes of other blocks that it had made.
    pub(crate) fn update<'f, T>(
        &self,
        txn: &mut Txn<'f>,
        change: impl FnOnce(&mut Txn<'f>, &mut Inode) -> Result<T>,
    ) -> Result<T> {
        let node = self.node;
        let mut inode = node.state_mut();
        let (size, flags) = (inode.size, inode.flags);
        let file = node.file_if_used();
        let pending = file.map(|file| file.times.fold(&mut inode));
        // A change that sets ctime makes a new version. Comparing times would not show it: two
        // stamps may be equal.
        let ctime = mem::replace(&mut inode.ctime, NO_STAMP);
        let changed = change(txn, &mut inode).and_then(|out| {
            match (inode.ctime == NO_STAMP, file) {
                (true, _) => inode.ctime = ctime,
                (false, Some(file)) => inode.version = file.times.changed(),
                (false, None) => inode.version = inode.version.wrapping_add(1),
            }
            node.fs.clock.round(&mut inode);
            self.slot.write(txn, &inode)?;
            Ok(out)
        });
        if changed.is_err() {
            self.restore(&mut inode);
            if let (Some(file), Some(pending)) = (file, pending) {
                file.times.put_back(pending);
            }
            return changed;
        }
        if inode.flags != flags {
            node.flags.store(inode.flags.bits(), Ordering::Release);
            if let Some(file) = file {
                file.snapshot.forget();
            }
        }
        // A sync that sees the new size commits the transaction that was noted before.
        node.durable.note(txn.tid(), inode.size != size);
        if let Some(file) = file.filter(|_| inode.size != size) {
            file.set_disk_size(inode.size);
        }
        changed
    }

    /// Changes the inode and its block map, and writes the inode to the table.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub(crate) fn update_map<'f, T>(
        &self,
        txn: &mut Txn<'f>,
        change: impl FnOnce(&mut Txn<'f>, &mut Inode) -> Result<T>,
    ) -> Result<T> {
        self.update(txn, |txn, inode| {
            let out = change(txn, inode);
            if let Some(file) = self.node.file_if_used() {
                file.snapshot.forget();
            }
            self.node.durable.note(txn.tid(), true);
            out
        })
    }

    /// Restores the decoded inode from the table.
    fn restore(&self, inode: &mut Inode) {
        match self.slot.read() {
            Ok(old) => *inode = old,
            // The table's block cannot be decoded, though this process wrote it: memory is corrupt.
            Err(e) => self.node.fs.journal.abort(&format!("inode {} in memory: {e}", self.node.ino)),
        }
    }
}

impl CachedInode {
    /// Returns a reference to the inode, which is in its shard or in use. The first one keeps the
    /// volume open too: a count that all threads write does not change with each reference.
    fn reference(self: &Arc<Self>) -> InodeRef {
        if self.refs.fetch_add(1, Ordering::Relaxed) == 0 {
            self.fs.retain();
        }
        InodeRef(Arc::clone(self))
    }
}

/// A reference that keeps a [`CachedInode`] in use.
#[derive(Debug)]
pub(crate) struct InodeRef(Arc<CachedInode>);

impl Deref for InodeRef {
    type Target = CachedInode;
    fn deref(&self) -> &CachedInode {
        &self.0
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        self.0.reference()
    }
}

impl InodeRef {
    /// Deletes an inode that has no name and no other reference. A drop would delete it too, and
    /// only note a failure.
    ///
    /// # Errors
    /// The device's and the journal's, a damaged structure: the inode stays an orphan.
    pub(crate) fn delete(self) -> Result<()> {
        self.deletion_tried.store(true, Ordering::Relaxed);
        delete::delete(&self)
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        if self.0.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            if let Some(file) = self.file_if_used() {
                file.alloc.discard();
            }
            let gone = self.fs.inodes.remove_unused(&self.0);
            // Lets the flusher evict the inode later, or give its memory back.
            self.fs.flusher.stir();
            let is_tried = self.deletion_tried.load(Ordering::Relaxed);
            if gone && !is_tried && self.state.read().links_count == 0 && !self.fs.is_read_only() {
                // On failure the inode stays on the orphan list for the next recovery. That the
                // volume is being closed is no damage of it.
                if let Err(e) = delete::delete(&self.0)
                    && !self.fs.is_closed()
                {
                    self.fs.note_error(&e);
                }
            }
            self.fs.release();
        }
    }
}

impl Fs {
    /// Returns the inode of this number.
    ///
    /// # Errors
    /// A number that the volume does not have, an inode that breaks a rule, or one that has no name
    /// and is not in use ([`Corrupt::DeadInode`]).
    pub(crate) fn inode(self: &Arc<Self>, ino: u32) -> Result<InodeRef> {
        self.inodes.get(self, ino, || {
            let inode = self.read_inode(ino)?;
            if inode.links_count == 0 { Err(Corrupt::DeadInode { ino }.into()) } else { Ok(inode) }
        })
    }

    /// Returns the inode of this number, which may be on the orphan list.
    pub(crate) fn orphan_inode(self: &Arc<Self>, ino: u32) -> Result<InodeRef> {
        self.inodes.get(self, ino, || self.read_inode(ino))
    }

    /// Returns the inode of this number, if it is in use or has changes that the inode on disk does
    /// not have.
    pub(crate) fn known_inode(&self, ino: u32) -> Option<InodeRef> {
        self.inodes.find(ino)
    }

    /// Caches the inode of a number that was just taken. `write` writes it to the table, with its
    /// links, and returns it.
    ///
    /// No other thread finds it in the table before it is in the cache: that thread would change
    /// it, and a copy from before the change would be cached behind that. So nothing else may cache
    /// an inode that it has not just read, unless that has no links in the table.
    ///
    /// # Errors
    /// Those of `write`: nothing is cached.
    pub(crate) fn new_inode(
        self: &Arc<Self>,
        ino: u32,
        write: impl FnOnce() -> Result<Inode>,
    ) -> Result<InodeRef> {
        #[cfg(test)]
        tests::before_new_inode(ino);
        self.inodes.get(self, ino, write)
    }
}
