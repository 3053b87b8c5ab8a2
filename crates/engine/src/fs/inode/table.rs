//! The inodes in use, by number.
//!
//! A node leaves the table in one of two ways. [`NodeTable::sweep`] and [`NodeTable::clear_unused`]
//! evict nodes that have a name. A node without one is removed, and then deleted, by the thread
//! that dropped its last reference.
//!
//! Invariant: no state is lost with a node. Dirty pages and pending times keep it in the table. The
//! ticket of the flush that its data needs passes to the volume, and the next node of the inode
//! begins with it.

use super::durable::Durable;
use super::{Node, NodeRef};
use crate::error::Result;
use crate::fs::Fs;
use lanefs_format::Inode;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use lanefs_sync::{IntMap, Mutex, OnceLock, RwLock};
use std::sync::{Arc, Weak};

const SHARDS: usize = 64;

/// Files that are not in use whose pages stay cached, in all shards.
const KEPT: usize = 16 << 10;

/// A map from number to node, in shards. A shard's mutex is held while an inode is read, so that
/// two threads that read one inode do not make two nodes of it.
#[derive(Debug)]
pub(crate) struct NodeTable {
    shards: [Mutex<IntMap<u32, Arc<Node>>>; SHARDS],
}

impl NodeTable {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, ino: u32) -> &Mutex<IntMap<u32, Arc<Node>>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Returns the node of `ino`. Makes it from what `read` returns, if there is none.
    pub(super) fn get(
        &self,
        fs: &Arc<Fs>,
        ino: u32,
        read: impl FnOnce() -> Result<Inode>,
    ) -> Result<NodeRef> {
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get(&ino) {
            node.refs.fetch_add(1, Ordering::Relaxed);
            fs.retain();
            return Ok(NodeRef(Arc::clone(node)));
        }
        let inode = read()?;
        let node = Arc::new_cyclic(|me| Node {
            me: Weak::clone(me),
            ino,
            fs: Arc::clone(fs),
            ns: RwLock::new(()),
            flags: AtomicU32::new(inode.flags.bits()),
            state: RwLock::new(inode),
            file: OnceLock::new(),
            durable: Durable::new(fs.journal.running()),
            linkable: AtomicBool::new(false),
            refs: AtomicUsize::new(1),
        });
        shard.insert(ino, Arc::clone(&node));
        fs.retain();
        Ok(NodeRef(node))
    }

    /// Returns the node of `ino`, if there is one.
    pub(super) fn find(&self, ino: u32) -> Option<NodeRef> {
        let shard = self.shard(ino).lock();
        let node = shard.get(&ino)?;
        node.refs.fetch_add(1, Ordering::Relaxed);
        node.fs.retain();
        Some(NodeRef(Arc::clone(node)))
    }

    /// Evicts all nodes that are not in use, at the end of a volume: node and volume reference each
    /// other.
    pub(crate) fn clear_unused(&self) {
        for shard in &self.shards {
            let unused = evict(&mut shard.lock(), |_| true);
            // Outside of the lock: the last of them may drop the last reference to the volume.
            drop(unused);
        }
    }

    /// Evicts nodes that are not in use and have no change that the inode on disk does not have.
    /// Keeps some thousand files whose pages may be read again.
    pub(crate) fn sweep(&self) {
        self.sweep_but(KEPT / SHARDS);
    }

    /// Evicts every node that is not in use and not ahead, and frees the memory of the maps.
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
    /// on disk does not have. Returns `true` if it did. A node without a name is evicted in any
    /// case, and the caller, which dropped the last reference, deletes the inode. The name is
    /// checked under the shard's lock: before, another thread may have used the node, and given it
    /// its first name or removed its last.
    pub(super) fn remove_unused(&self, node: &Arc<Node>) -> bool {
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

/// Takes out of a shard the nodes that are not in use and that `may_go` chooses. Leaves a node
/// without a name to the thread that dropped its last reference, which deletes the inode.
fn evict(shard: &mut IntMap<u32, Arc<Node>>, mut may_go: impl FnMut(&Node) -> bool) -> Vec<Arc<Node>> {
    let gone = shard.extract_if(|_, node| {
        let goes = node.refs.load(Ordering::Acquire) == 0 && may_go(node) && !node.is_nameless();
        if goes {
            hand_over(node);
        }
        goes
    });
    gone.map(|(_, node)| node).collect()
}

/// Passes a node's ticket to the volume before the node leaves the table: from then on another
/// thread may load the inode anew.
fn hand_over(node: &Node) {
    if let Some(file) = node.file_if_used() {
        node.fs.keep_unflushed(file.unflushed());
    }
}
