//! The inodes in use, by number.

use super::{Node, NodeRef};
use crate::error::Result;
use crate::volume::Fs;
use lanefs_format::Inode;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;

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
            return Ok(NodeRef(Arc::clone(node)));
        }
        let node = Arc::new(Node {
            ino,
            fs: Arc::clone(fs),
            ns: RwLock::new(()),
            state: RwLock::new(read()?),
            refs: AtomicUsize::new(1),
        });
        shard.insert(ino, Arc::clone(&node));
        Ok(NodeRef(node))
    }

    /// Takes `node` out if nobody took a reference meanwhile. `true` if it went.
    pub(super) fn remove_unused(&self, node: &Arc<Node>) -> bool {
        let mut shard = self.shard(node.ino).lock();
        if node.refs.load(Ordering::Acquire) != 0 {
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
