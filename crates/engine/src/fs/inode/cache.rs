//! The inodes in use, by number.
//!
//! An inode leaves the cache in one of two ways. [`InodeCache::sweep`] and
//! [`InodeCache::clear_unused`] evict inodes that have a name. An inode without one is removed, and
//! then deleted, by the thread that dropped its last reference.
//!
//! Invariant: no state is lost by an eviction. Dirty pages and pending times keep an inode in the
//! cache. The ticket of the flush that its data needs passes to the volume, and the inode begins
//! with it when it is cached again.

use super::durable::Durable;
use super::{CachedInode, InodeRef};
use crate::error::Result;
use crate::fs::Fs;
use lanefs_format::Inode;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use lanefs_sync::{IntMap, Mutex, OnceLock, Padded, RwLock};
use std::sync::{Arc, Weak};

const SHARDS: usize = 64;

/// Files that are not in use whose pages stay cached, in all shards.
const KEPT: usize = 16 << 10;

/// A part of the map, on cache lines of its own.
type Shard = Padded<Mutex<IntMap<u32, Arc<CachedInode>>>>;

/// The inode cache: a map from number to inode, in shards. A shard's mutex is held while an inode
/// is read, so that two threads do not cache one inode twice.
#[derive(Debug)]
pub(crate) struct InodeCache {
    shards: [Shard; SHARDS],
}

impl InodeCache {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Padded::default()) }
    }

    fn shard(&self, ino: u32) -> &Mutex<IntMap<u32, Arc<CachedInode>>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Returns the inode `ino`. Makes it from what `read` returns, if there is none.
    pub(super) fn get(
        &self,
        fs: &Arc<Fs>,
        ino: u32,
        read: impl FnOnce() -> Result<Inode>,
    ) -> Result<InodeRef> {
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get(&ino) {
            return Ok(node.reference());
        }
        let inode = read()?;
        let node = Arc::new_cyclic(|me| CachedInode {
            me: Weak::clone(me),
            ino,
            fs: Arc::clone(fs),
            ns: RwLock::new(()),
            flags: AtomicU32::new(inode.flags.bits()),
            state: RwLock::new(inode),
            file: OnceLock::new(),
            durable: Durable::new(fs.journal.running()),
            linkable: AtomicBool::new(false),
            deletion_tried: AtomicBool::new(false),
            refs: AtomicUsize::new(1),
        });
        shard.insert(ino, Arc::clone(&node));
        fs.retain();
        Ok(InodeRef(node))
    }

    /// Returns the inode `ino`, if it is cached.
    pub(super) fn find(&self, ino: u32) -> Option<InodeRef> {
        let shard = self.shard(ino).lock();
        Some(shard.get(&ino)?.reference())
    }

    /// Evicts all inodes that are not in use, at the end of a volume: inode and volume reference
    /// each other.
    pub(crate) fn clear_unused(&self) {
        for shard in &self.shards {
            let unused = evict(&mut shard.lock(), |_| true);
            // Outside of the lock: the last of them may drop the last reference to the volume.
            drop(unused);
        }
    }

    /// Evicts inodes that are not in use and have no change that the inode on disk does not have.
    /// Keeps some thousand files whose pages may be read again.
    pub(crate) fn sweep(&self) {
        self.sweep_but(KEPT / SHARDS);
    }

    /// Evicts every inode that is not in use and not ahead, and frees the memory of the maps.
    pub(crate) fn sweep_all(&self) {
        self.sweep_but(0);
        self.shards.iter().for_each(|shard| shard.lock().shrink_to_fit());
    }

    /// Evicts as [`sweep`](Self::sweep) does, but keeps `most` files with pages in each shard.
    pub(super) fn sweep_but(&self, most: usize) {
        for shard in &self.shards {
            let mut kept = 0;
            let gone = evict(&mut shard.lock(), |node| {
                let idle = !node.is_ahead();
                kept += usize::from(idle);
                idle && (kept > most || !node.has_pages())
            });
            drop(gone);
        }
    }

    /// Evicts `node`, if no thread took a reference meanwhile and it has no change that the inode
    /// on disk does not have. Returns `true` if it did. An inode without a name is evicted in any
    /// case, and the caller, which dropped the last reference, deletes the inode. The name is
    /// checked under the shard's lock: before, another thread may have used the inode, and given it
    /// its first name or removed its last.
    pub(super) fn remove_unused(&self, node: &Arc<CachedInode>) -> bool {
        let mut shard = self.shard(node.ino).lock();
        if node.refs.load(Ordering::Acquire) != 0
            || !node.is_nameless() && (node.is_ahead() || node.has_pages()) && !node.fs.is_closed()
        {
            return false;
        }
        match shard.get(&node.ino) {
            Some(known) if Arc::ptr_eq(known, node) => {
                hand_over(node);
                shard.remove(&node.ino);
                true
            }
            _ => false,
        }
    }
}

/// Takes out of a shard the inodes that are not in use and that `may_go` chooses. Leaves an inode
/// without a name to the thread that dropped its last reference, which deletes the inode.
fn evict(
    shard: &mut IntMap<u32, Arc<CachedInode>>,
    mut may_go: impl FnMut(&CachedInode) -> bool,
) -> Vec<Arc<CachedInode>> {
    let gone = shard.extract_if(|_, node| {
        let goes = node.refs.load(Ordering::Acquire) == 0 && may_go(node) && !node.is_nameless();
        if goes {
            hand_over(node);
        }
        goes
    });
    gone.map(|(_, node)| node).collect()
}

/// Passes an inode's ticket to the volume before the inode leaves the cache: from then on another
/// thread may load the inode anew.
fn hand_over(node: &CachedInode) {
    if let Some(file) = node.file_if_used() {
        node.fs.keep_unflushed(file.unflushed());
    }
}
