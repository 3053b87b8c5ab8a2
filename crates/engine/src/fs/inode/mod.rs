//! Inodes in core.
//!
//! A [`Node`] is an inode that somebody uses: one for each number, however many use it. A
//! [`NodeRef`] keeps it; when the last one goes and the inode has no name left, the inode is
//! deleted. So a `NodeRef` must be dropped outside of handles and locks: declare it before them.
//!
//! Two locks. `ns` is the namespace lock of a directory: exclusive for entries that change, shared
//! to look. `state` guards the decoded inode and is held for moments, to look or under a handle to
//! change it; never two of them at once. A regular file's content has its own state, [`FileData`].
//!
//! A node that nobody uses stays in the table while it knows what the inode on disk does not. What
//! else it owes passes to the volume when it is evicted ([`NodeTable`]).
//!
//! A change goes through [`Prepared`], which holds the inode's block of the table in memory: from
//! the first change of an operation on, writing the inode does no I/O. A change that fails leaves
//! the decoded inode as the table has it.

mod delete;
mod durable;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use table::NodeTable;

use crate::error::{Corrupt, Error, Result};
use crate::fs::Fs;
use crate::fs::data::FileData;
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

/// A time that no change has.
const NO_STAMP: Timestamp = Timestamp { sec: i64::MIN, nsec: 0 };

/// A namespace lock held shared.
pub(crate) type Shared<'a> = Ordered<RwLockReadGuard<'a, ()>>;
/// A namespace lock held exclusively.
pub(crate) type Exclusive<'a> = Ordered<RwLockWriteGuard<'a, ()>>;

/// An inode in use.
#[derive(Debug)]
pub(crate) struct Node {
    me: Weak<Node>,
    pub(crate) ino: u32,
    pub(crate) fs: Arc<Fs>,
    ns: RwLock<()>,
    state: RwLock<Inode>,
    /// i_flags, as in `state`: writers of one file look at them, and are not to meet in its lock.
    flags: AtomicU32,
    /// The content's state, from its first use on.
    file: OnceLock<Box<FileData>>,
    /// Which transactions changed the inode.
    pub(crate) durable: Durable,
    /// Whether it was made without a name, and has not got one since.
    linkable: AtomicBool,
    /// [`NodeRef`]s. Goes from 0 to 1 only under the table's shard lock.
    refs: AtomicUsize,
}

impl Node {
    /// The namespace lock, shared.
    pub(crate) fn share(&self) -> Shared<'_> {
        Ordered::take(Level::Namespace, self.ino.into(), || self.ns.read())
    }

    /// The namespace lock, exclusive.
    pub(crate) fn lock(&self) -> Exclusive<'_> {
        Ordered::take(Level::Namespace, self.ino.into(), || self.ns.write())
    }

    /// The inode as it is now.
    pub(crate) fn state(&self) -> Ordered<RwLockReadGuard<'_, Inode>> {
        Ordered::take(Level::Inode, 0, || self.state.read())
    }

    /// The inode, to change it under a handle; the caller also writes it to the table.
    fn state_mut(&self) -> Ordered<RwLockWriteGuard<'_, Inode>> {
        Ordered::take(Level::Inode, 0, || self.state.write())
    }

    /// i_flags as they are now.
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.load(Ordering::Acquire))
    }

    /// A reference for another thread to work on it while this one waits. It is no use of the
    /// inode.
    pub(crate) fn shared(&self) -> Option<Arc<Node>> {
        self.me.upgrade()
    }

    /// The state of a regular file's content.
    pub(crate) fn file(&self) -> &FileData {
        if let Some(file) = self.file_if_used() {
            return file;
        }
        // Held until it is set: a change of the inode before that is in it, a later one finds it.
        let state = self.state();
        self.file.get_or_init(|| Box::new(FileData::new(&self.fs, &state)))
    }

    /// As [`file`](Self::file), if the content was used.
    pub(crate) fn file_if_used(&self) -> Option<&FileData> {
        self.file.get().map(|file| &**file)
    }

    /// The inode as programs see it: with what its content knows and it does not. This is a look:
    /// the next change of the content changes i_version.
    pub(crate) fn attributes(&self) -> Inode {
        // Held to the end: a thread that moves times into the inode has done so, or not begun.
        let state = self.state();
        let mut inode = state.clone();
        // In this order: a content that comes to be used later begins as looked at.
        if let Some(file) = self.file_if_used() {
            inode.size = file.size();
            // Who asks how much space a file takes must not take what has no place yet for a hole.
            let sectors = file.delayed_blocks() * u64::from(self.fs.block_size / 512);
            inode.blocks = inode.blocks.saturating_add(sectors);
            file.times.show(&mut inode);
        }
        inode
    }

    /// Whether it knows what the inode on disk does not, and must stay in the table.
    fn is_ahead(&self) -> bool {
        self.file_if_used().is_some_and(FileData::is_ahead)
    }

    /// Returns whether the inode has no name, or a thread changes it just now: this never waits. No
    /// thread changes the inode of a node that is not in use.
    pub(crate) fn is_nameless(&self) -> bool {
        self.state.try_read().is_none_or(|inode| inode.links_count == 0)
    }

    /// Returns whether it may get its first name: a file that was made without one, not one that
    /// lost its last.
    pub(crate) fn is_linkable(&self) -> bool {
        self.linkable.load(Ordering::Relaxed)
    }

    /// Sets [`is_linkable`](Self::is_linkable).
    pub(crate) fn set_linkable(&self, linkable: bool) {
        self.linkable.store(linkable, Ordering::Relaxed);
    }

    /// Whether some of its content is cached.
    fn has_pages(&self) -> bool {
        self.file_if_used().is_some_and(FileData::has_pages)
    }

    /// Reads the inode's block of the table, for changes that then do no I/O to write the inode.
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

    /// # Errors
    /// [`Error::NotDir`] if it is none.
    pub(crate) fn check_dir(&self) -> Result<()> {
        if self.is_dir() { Ok(()) } else { Err(Error::NotDir) }
    }

    /// # Errors
    /// [`Error::NotFound`] for a directory that was removed, [`Error::NotDir`] if it is none.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.check_dir()?;
        if self.state().links_count == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// # Errors
    /// [`Error::NotPermitted`] for an immutable inode.
    pub(crate) fn check_not_immutable(&self) -> Result<()> {
        if self.state().flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted("the inode is immutable"));
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::NotPermitted`] for an immutable or append-only inode.
    pub(crate) fn check_mutable(&self) -> Result<()> {
        self.check_not_immutable()?;
        if self.state().flags.contains(InodeFlags::APPEND) {
            Err(Error::NotPermitted("the inode is append-only"))
        } else {
            Ok(())
        }
    }
}

/// An inode whose block of the table is held in memory.
#[derive(Debug)]
pub(crate) struct Prepared<'n> {
    node: &'n Node,
    slot: TableSlot<'n>,
}

impl Prepared<'_> {
    /// Changes the inode and writes it to the table.
    ///
    /// # Errors
    /// That of `change`: the inode is as it was. The blocks that `change` has changed before it
    /// failed are its own business, or that of [`Fs::transact`].
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
        // Whether a change is one that is stamped is told by the stamp, and two may be the same.
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
        // A sync that finds the size told commits what is noted by then.
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

    /// Makes the decoded inode what the table has.
    fn restore(&self, inode: &mut Inode) {
        match self.slot.read() {
            Ok(old) => *inode = old,
            // What was written there cannot be read any more: memory is not what it was.
            Err(e) => self.node.fs.journal.abort(&format!("inode {} in memory: {e}", self.node.ino)),
        }
    }
}

/// A use of a [`Node`].
#[derive(Debug)]
pub(crate) struct NodeRef(Arc<Node>);

impl Deref for NodeRef {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.0
    }
}

impl Clone for NodeRef {
    fn clone(&self) -> Self {
        self.0.refs.fetch_add(1, Ordering::Relaxed);
        self.fs.retain();
        Self(Arc::clone(&self.0))
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        if self.0.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            if let Some(file) = self.file_if_used() {
                file.alloc.discard();
            }
            let gone = self.fs.nodes.remove_unused(&self.0);
            // The node is to be swept later, or its memory to be given back.
            self.fs.flusher.stir();
            if gone && self.state.read().links_count == 0 && !self.fs.is_read_only() {
                // Failing, the inode stays on the orphan list for the next recovery.
                if let Err(e) = delete::delete(&self.0) {
                    self.fs.note_error(&e);
                }
            }
        }
        self.fs.release();
    }
}

impl Fs {
    /// The inode of this number.
    ///
    /// # Errors
    /// A number that the volume does not have, an inode that breaks a rule, or one without a
    /// name ([`Corrupt::DeadInode`]) that nobody uses.
    pub(crate) fn node(self: &Arc<Self>, ino: u32) -> Result<NodeRef> {
        self.nodes.get(self, ino, || {
            let inode = self.read_inode(ino)?;
            if inode.links_count == 0 { Err(Corrupt::DeadInode { ino }.into()) } else { Ok(inode) }
        })
    }

    /// The inode of this number, which may be on the orphan list.
    pub(crate) fn orphan_node(self: &Arc<Self>, ino: u32) -> Result<NodeRef> {
        self.nodes.get(self, ino, || self.read_inode(ino))
    }

    /// The node of this number, if it is in use or knows what the inode on disk does not.
    pub(crate) fn known_node(&self, ino: u32) -> Option<NodeRef> {
        self.nodes.find(ino)
    }

    /// A node for an inode that was just taken.
    pub(crate) fn new_node(self: &Arc<Self>, ino: u32, inode: Inode) -> Result<NodeRef> {
        self.nodes.get(self, ino, || Ok(inode))
    }
}
