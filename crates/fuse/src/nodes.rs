//! The inodes that the kernel knows, by node id, each with its lookup count.
//!
//! Invariant: an inode without a name is held as long as the kernel knows it, so that its number
//! cannot come to mean another inode. A thread that removes a name passes the inode to
//! [`Nodes::hold`] before it drops it.

use crate::fault::{Answer, Fault};
use crate::wire::ROOT_ID;
use lanefs::{Node, Timestamp};
use lanefs_sync::IntMap;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;

const SHARDS: usize = 64;

/// The greatest number of unused inodes with a name that are held in memory.
const HELD: usize = 1024;

/// The table of inodes.
///
/// A node id is the inode's number; that of the root is 1. The kernel remembers every inode that it
/// has seen until its own memory runs short, and these can be millions. So this table holds at most
/// [`HELD`] unused inodes with a name, the most recently requested. It reads any other inode again
/// on request, and compares its generation.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: Node,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    known: IntMap<u64, Known>,
    /// Ids of inodes that are held, the oldest first. Some may have been forgotten since.
    held: VecDeque<u64>,
    /// Ids of inodes that had no name when their turn in `held` came. They are held until they are
    /// forgotten, or have got a name.
    nameless: VecDeque<u64>,
    /// The mtime that the kernel knows of inodes that were written past its cache since.
    outdated: IntMap<u64, Timestamp>,
}

#[derive(Debug)]
struct Known {
    lookups: u64,
    /// Set while the inode is held.
    node: Option<Node>,
    generation: u32,
    /// Whether it was requested since it came to the end of the queue.
    used: bool,
}

impl Nodes {
    pub(crate) fn new(root: Node) -> Self {
        Self { root, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }

    /// Returns the node id of an inode.
    pub(crate) fn id_of(&self, ino: u32) -> u64 {
        if ino == self.root.ino() { ROOT_ID } else { ino.into() }
    }

    /// Returns how many inodes the kernel knows, without the root.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().known.len()).sum()
    }

    /// Returns the ids of the inodes that the kernel knows.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|shard| shard.lock().known.keys().copied().collect::<Vec<_>>()).collect()
    }

    /// Returns the inode that the kernel means, read by `load` where it is not held.
    ///
    /// # Errors
    /// ESTALE for an inode that the kernel was not told of, or whose number another inode has now;
    /// the errors of `load`.
    pub(crate) fn get(&self, id: u64, load: impl FnOnce(u32) -> lanefs::Result<Node>) -> Answer<Node> {
        if id == ROOT_ID {
            return Ok(self.root.clone());
        }
        let generation = {
            let mut shard = self.shard(id).lock();
            let known = shard.known.get_mut(&id).ok_or(Fault(Errno::STALE))?;
            known.used = true;
            match &known.node {
                Some(node) => return Ok(node.clone()),
                None => known.generation,
            }
        };
        let node = load(u32::try_from(id).map_err(|_| Fault(Errno::STALE))?)?;
        if node.generation() != generation {
            return Err(Fault(Errno::STALE));
        }
        self.hold(node.clone());
        Ok(node)
    }

    /// Counts one more lookup of `node` by the kernel.
    pub(crate) fn remember(&self, node: Node) {
        let id = self.id_of(node.ino());
        if id == ROOT_ID {
            return;
        }
        let generation = node.generation();
        {
            let mut shard = self.shard(id).lock();
            let known = shard.known.entry(id);
            known.or_insert(Known { lookups: 0, node: None, generation, used: false }).lookups += 1;
        }
        self.hold(node);
    }

    /// Holds an inode in memory, if the kernel knows it.
    pub(crate) fn hold(&self, node: Node) {
        let id = self.id_of(node.ino());
        let mut shard = self.shard(id).lock();
        let spare = match shard.known.get_mut(&id) {
            Some(known) if known.node.is_none() => {
                known.node = Some(node);
                shard.held.push_back(id);
                shard.let_go()
            }
            _ => [Some(node), None],
        };
        // Not under the lock: the last use of an inode may delete it.
        drop(shard);
        drop(spare);
    }

    /// Notes that an inode is written past the kernel's cache, which has its time as `mtime`,
    /// unless that is noted: the kernel does not stamp such a write, and takes no time of a file
    /// from its server.
    pub(crate) fn outdate(&self, id: u64, mtime: Timestamp) {
        self.shard(id).lock().outdated.entry(id).or_insert(mtime);
    }

    /// Returns the time that the kernel knows of such an inode.
    pub(crate) fn outdated(&self, id: u64) -> Option<Timestamp> {
        self.shard(id).lock().outdated.get(&id).copied()
    }

    /// Notes that the kernel has another time of an inode.
    pub(crate) fn update(&self, id: u64) {
        self.shard(id).lock().outdated.remove(&id);
    }

    /// Takes back `lookups` lookups of the kernel. An inode without any is forgotten.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        let mut shard = self.shard(id).lock();
        let Some(known) = shard.known.get_mut(&id) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        let gone = if known.lookups == 0 { shard.known.remove(&id) } else { None };
        if gone.is_some() {
            shard.outdated.remove(&id);
        }
        // A map that was once large gives its memory back by halves, so that this costs each
        // removal little.
        if shard.known.capacity() > 64 && shard.known.len() < shard.known.capacity() / 8 {
            let keep = 2 * shard.known.len();
            shard.known.shrink_to(keep);
        }
        drop(shard);
        drop(gone);
    }
}

impl Shard {
    /// Takes out inodes that were not asked for longest, where more are held than shall be. The
    /// caller drops them.
    fn let_go(&mut self) -> [Option<Node>; 2] {
        [self.let_go_named_late(), self.let_go_oldest()]
    }

    fn let_go_oldest(&mut self) -> Option<Node> {
        while self.held.len() > HELD / SHARDS {
            let id = self.held.pop_front()?;
            let Some(known) = self.known.get_mut(&id) else { continue };
            if known.used {
                known.used = false;
                self.held.push_back(id);
                continue;
            }
            match known.node.take_if(|node| node.is_named()) {
                None if known.node.is_some() => self.nameless.push_back(id),
                // It was let go before, and its number was used again.
                None => {}
                node => return node,
            }
        }
        None
    }

    /// Looks at one inode that had no name, or none because a thread was changing it.
    fn let_go_named_late(&mut self) -> Option<Node> {
        let id = self.nameless.pop_front()?;
        let held = &mut self.known.get_mut(&id)?.node;
        let node = held.take_if(|node| node.is_named());
        if held.is_some() {
            self.nameless.push_back(id);
        }
        node
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::*;
    use lanefs::{NewAttr, NewKind, OpenOptions, Volume};
    use std::ffi::OsStr;

    const ATTR: NewAttr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };

    fn volume() -> (tempfile::TempDir, Volume) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        lanefs_tests::mke2fs(&path, 64 << 20, &["-t", "ext4", "-N", "20000"]);
        let volume = OpenOptions::new().write(true).open(path).unwrap();
        (dir, volume)
    }

    fn create(nodes: &Nodes, name: &str) -> u64 {
        let node = nodes.root.create(OsStr::new(name), NewKind::File, ATTR, 0).unwrap();
        let id = nodes.id_of(node.ino());
        nodes.remember(node);
        id
    }

    fn held(nodes: &Nodes) -> usize {
        let held = |shard: &Mutex<Shard>| shard.lock().known.values().filter(|k| k.node.is_some()).count();
        nodes.shards.iter().map(held).sum()
    }

    #[test]
    fn few_of_many_are_held() {
        let (_dir, volume) = volume();
        let nodes = Nodes::new(volume.root_node().unwrap());
        let ids: Vec<_> = (0..3 * HELD).map(|n| create(&nodes, &format!("file-{n}"))).collect();
        assert_eq!((nodes.len(), held(&nodes)), (3 * HELD, HELD));
        for id in &ids {
            assert_eq!(nodes.id_of(nodes.get(*id, |ino| volume.node_at(ino)).unwrap().ino()), *id);
        }
        assert_eq!(held(&nodes), HELD);
        ids.iter().for_each(|id| nodes.forget(*id, 1));
        assert_eq!((nodes.len(), held(&nodes)), (0, 0));
    }

    /// Unlinked while it is not held, an inode stays until the kernel forgets it.
    #[test]
    fn a_known_inode_outlives_its_name() {
        let (_dir, volume) = volume();
        let nodes = Nodes::new(volume.root_node().unwrap());
        let id = create(&nodes, "gone");
        (0..2 * HELD).for_each(|n| assert_ne!(create(&nodes, &format!("file-{n}")), id));
        assert!(nodes.shard(id).lock().known[&id].node.is_none());
        nodes.hold(nodes.root.remove_file(OsStr::new("gone")).unwrap());
        (0..2 * HELD).for_each(|n| assert_ne!(create(&nodes, &format!("other-{n}")), id));
        let node = nodes.get(id, |_| unreachable!("it is held")).unwrap();
        assert_eq!(node.metadata().nlink(), 0);
        drop(node);
        nodes.forget(id, 1);
        assert!(nodes.get(id, |ino| volume.node_at(ino)).is_err());
        assert!(volume.node_at(id as u32).is_err(), "the inode is free");
    }

    /// The number of an inode that went behind the kernel's back is not taken for the inode.
    #[test]
    fn another_generation_is_another_inode() {
        let (_dir, volume) = volume();
        let nodes = Nodes::new(volume.root_node().unwrap());
        let id = create(&nodes, "gone");
        (0..2 * HELD).for_each(|n| assert_ne!(create(&nodes, &format!("file-{n}")), id));
        volume.remove_file("/gone").unwrap();
        assert_eq!(nodes.get(id, |ino| volume.node_at(ino)).unwrap_err().0, Errno::STALE);
        let new = nodes.root.create(OsStr::new("new"), NewKind::File, ATTR, 0).unwrap();
        assert_eq!(nodes.id_of(new.ino()), id, "the first free number is taken again");
        assert_eq!(nodes.get(id, |ino| volume.node_at(ino)).unwrap_err().0, Errno::STALE);
    }

    /// A file that was made without a name is let go like others once it has one.
    #[test]
    fn few_are_held_that_got_a_name_late() {
        let (_dir, volume) = volume();
        let nodes = Nodes::new(volume.root_node().unwrap());
        let nameless: Vec<_> = (0..2 * HELD)
            .map(|_| {
                let node = nodes.root.create_nameless(ATTR, 0).unwrap();
                nodes.remember(node.clone());
                node
            })
            .collect();
        (0..2 * HELD).for_each(|n| _ = create(&nodes, &format!("file-{n}")));
        assert_eq!(held(&nodes), 3 * HELD, "all without a name, and the newest with one");
        for (n, node) in nameless.iter().enumerate() {
            nodes.root.link_file(node, OsStr::new(&format!("late-{n}"))).unwrap();
        }
        drop(nameless);
        (0..4 * HELD).for_each(|n| _ = create(&nodes, &format!("other-{n}")));
        assert_eq!(held(&nodes), HELD);
    }
}
