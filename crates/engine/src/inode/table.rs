//! The inodes in use, by number.

use super::durable::Durable;
use super::{Node, NodeRef};
use crate::error::Result;
use crate::volume::Fs;
use lanefs_format::Inode;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

const SHARDS: usize = 64;

/// Files that nobody uses whose pages are kept.
const KEPT: usize = 16 << 10;

/// Shards of a map from number to node. A shard's mutex is held while an inode is read, so that
/// two readers of one inode cannot make two nodes of it.
#[derive(Debug)]
pub(crate) struct NodeTable {
    shards: [Mutex<HashMap<u32, Arc<Node>>>; SHARDS],
}

impl NodeTable {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, ino: u32) -> &Mutex<HashMap<u32, Arc<Node>>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The node of `ino`, made from what `read` gives if nobody uses it yet.
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
            refs: AtomicUsize::new(1),
        });
        shard.insert(ino, Arc::clone(&node));
        fs.retain();
        Ok(NodeRef(node))
    }

    /// The node of `ino`, if it is here.
    pub(super) fn find(&self, ino: u32) -> Option<NodeRef> {
        let shard = self.shard(ino).lock();
        let node = shard.get(&ino)?;
        node.refs.fetch_add(1, Ordering::Relaxed);
        node.fs.retain();
        Some(NodeRef(Arc::clone(node)))
    }

    /// Takes out all that nobody uses, at the end of a volume: they hold it as it holds them.
    pub(crate) fn clear_unused(&self) {
        for shard in &self.shards {
            let unused: Vec<Arc<Node>> = {
                let mut shard = shard.lock();
                let gone = shard.extract_if(|_, node| node.refs.load(Ordering::Acquire) == 0);
                gone.map(|(_, node)| node).collect()
            };
            // The last of them may be the last to hold the volume: not under the lock.
            drop(unused);
        }
    }

    /// Takes out what nobody uses and knows nothing that the inode on disk does not, but for some thousand files
    /// whose pages may be wanted again.
    pub(crate) fn sweep(&self) {
        for shard in &self.shards {
            let mut kept = 0;
            let gone: Vec<Arc<Node>> = {
                let mut shard = shard.lock();
                let gone = shard.extract_if(|_, node| {
                    let idle = node.refs.load(Ordering::Acquire) == 0 && !node.is_ahead();
                    kept += usize::from(idle);
                    idle && (kept > KEPT / SHARDS || !node.has_pages())
                });
                gone.map(|(_, node)| node).collect()
            };
            drop(gone);
        }
    }

    /// Takes `node` out if nobody took a reference meanwhile and it knows nothing that the inode on
    /// disk does not. `true` if it went.
    pub(super) fn remove_unused(&self, node: &Arc<Node>, nameless: bool) -> bool {
        let mut shard = self.shard(node.ino).lock();
        if node.refs.load(Ordering::Acquire) != 0
            || !nameless && (node.is_ahead() || node.has_pages()) && !node.fs.is_closed()
        {
            return false;
        }
        match shard.get(&node.ino) {
            Some(known) if Arc::ptr_eq(known, node) => {
                shard.remove(&node.ino);
                true
            }
            _ => false,
        }
    }
}
