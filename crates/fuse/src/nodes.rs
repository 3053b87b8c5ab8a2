//! The inodes that the kernel knows, by node id, with how often it was told of each.
//!
//! A node id is the inode's number, but for the root's, which is 1. An inode stays in use as long as the kernel knows it,
//! with a name or without: so no number comes to mean another inode meanwhile.

use crate::fault::{Answer, Fault};
use crate::wire::ROOT_ID;
use lanefs::Node;
use lanefs_sync::IntMap;
use parking_lot::Mutex;
use rustix::io::Errno;

const SHARDS: usize = 64;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: Node,
    shards: [Mutex<IntMap<u64, Known>>; SHARDS],
}

#[derive(Debug)]
struct Known {
    node: Node,
    lookups: u64,
}

impl Nodes {
    pub(crate) fn new(root: Node) -> Self {
        Self { root, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, id: u64) -> &Mutex<IntMap<u64, Known>> {
        &self.shards[id as usize % SHARDS]
    }

    /// The node id of an inode.
    pub(crate) fn id_of(&self, ino: u32) -> u64 {
        if ino == self.root.ino() { ROOT_ID } else { ino.into() }
    }

    /// How many there are, but for the root.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// The inode that the kernel means.
    ///
    /// # Errors
    /// ESTALE for one that it was not told of.
    pub(crate) fn get(&self, id: u64) -> Answer<Node> {
        if id == ROOT_ID {
            return Ok(self.root.clone());
        }
        self.shard(id).lock().get(&id).map(|known| known.node.clone()).ok_or(Fault(Errno::STALE))
    }

    /// The kernel is told of `node` once more.
    pub(crate) fn remember(&self, node: Node) {
        let id = self.id_of(node.ino());
        if id == ROOT_ID {
            return;
        }
        let mut shard = self.shard(id).lock();
        let spare = match shard.get_mut(&id) {
            Some(known) => {
                known.lookups += 1;
                Some(node)
            }
            None => {
                shard.insert(id, Known { node, lookups: 1 });
                None
            }
        };
        // Not under the lock: the last use of an inode may delete it.
        drop(shard);
        drop(spare);
    }

    /// The kernel forgets what it was told `lookups` times.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        let mut shard = self.shard(id).lock();
        let Some(known) = shard.get_mut(&id) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        let gone = if known.lookups == 0 { shard.remove(&id) } else { None };
        // A map that was once large gives its memory back by halves, so that this costs each removal little.
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
            let keep = 2 * shard.len();
            shard.shrink_to(keep);
        }
        drop(shard);
        drop(gone);
    }
}
