//! The orphan list, chained through i_dtime.

use crate::error::Result;
use crate::store::txn::Txn;
use lanefs_sync::atomic::{AtomicUsize, Ordering};
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{IntMap, Mutex, MutexGuard};
use std::mem;

/// The list in core. The newest inode is `s_last_orphan`, and `i_dtime` of each inode on disk is
/// the number of the next older one.
#[derive(Debug, Default)]
pub(super) struct List {
    links: Mutex<Links>,
    /// Length, read without the lock.
    len: AtomicUsize,
}

/// The inodes of the list by number: each write of an inode looks whether it is on it, and a volume
/// may have millions. 0 stands for no inode.
#[derive(Debug, Default)]
struct Links {
    of: IntMap<u32, Link>,
    newest: u32,
}

/// The neighbours of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    older: u32,
    newer: u32,
}

impl Links {
    /// Adds an inode that is not on the list, as the newest.
    fn push(&mut self, ino: u32) {
        let older = mem::replace(&mut self.newest, ino);
        if let Some(link) = self.of.get_mut(&older) {
            link.newer = ino;
        }
        self.of.insert(ino, Link { older, newer: 0 });
    }

    /// Takes an inode off the list.
    fn remove(&mut self, ino: u32) {
        let Some(Link { older, newer }) = self.of.remove(&ino) else { return };
        match self.of.get_mut(&newer) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        if let Some(link) = self.of.get_mut(&older) {
            link.newer = newer;
        }
    }
}

/// The locked list, while an inode on it is written.
pub(crate) struct Chain<'a>(Option<(Ordered<MutexGuard<'a, Links>>, u32)>);

impl Chain<'_> {
    /// Returns the `i_dtime` that the list needs, if the inode is on it.
    pub(crate) fn next(&self) -> Option<u32> {
        self.0.as_ref().map(|c| c.1)
    }
}

impl List {
    fn lock(&self) -> Ordered<MutexGuard<'_, Links>> {
        Ordered::take(Level::Orphans, 0, || self.links.lock())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    pub(super) fn contains(&self, ino: u32) -> bool {
        self.chain(ino).next().is_some()
    }

    pub(super) fn chain(&self, ino: u32) -> Chain<'_> {
        if self.is_empty() {
            return Chain(None);
        }
        let links = self.lock();
        let older = links.of.get(&ino).map(|link| link.older);
        Chain(older.map(|older| (links, older)))
    }

    /// Loads the list that the volume had when it was opened: different inodes, oldest first.
    pub(super) fn load(&self, inodes: impl Iterator<Item = u32>) {
        let mut links = self.lock();
        inodes.for_each(|ino| links.push(ino));
        self.len.store(links.of.len(), Ordering::Release);
    }

    pub(super) fn add(&self, txn: &Txn<'_>, ino: u32) -> Result<()> {
        let mut links = self.lock();
        txn.store().write_super(txn, |sb| sb.set_last_orphan(ino))?;
        links.push(ino);
        self.len.store(links.of.len(), Ordering::Release);
        Ok(())
    }

    /// Takes `ino` off the list; `false` if it was not on it.
    pub(super) fn remove(&self, txn: &Txn<'_>, ino: u32) -> Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        let mut links = self.lock();
        let Some(&Link { older, newer }) = links.of.get(&ino) else { return Ok(false) };
        match newer {
            0 => txn.store().write_super(txn, |sb| sb.set_last_orphan(older))?,
            // The newer neighbour's i_dtime must skip it. Only that field of its slot belongs to
            // the list.
            _ => txn.store().table_slot(newer)?.write_dtime(txn, older)?,
        }
        links.remove(ino);
        self.len.store(links.of.len(), Ordering::Release);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::time::{Duration, Instant};

    /// Returns the numbers of a list from the newest on.
    fn chained(list: &List) -> Vec<u32> {
        let newest = list.lock().newest;
        let next = |ino: &u32| list.chain(*ino).next().filter(|older| *older != 0);
        std::iter::successors(Some(newest).filter(|ino| *ino != 0), next).collect()
    }

    #[test]
    fn neighbours_are_those_of_a_list() {
        let mut rng = StdRng::seed_from_u64(1);
        let list = List::default();
        let mut model: Vec<u32> = (20..40).collect();
        list.load(model.iter().copied());
        for ino in 40..2000 {
            let mut links = list.lock();
            if rng.random_bool(0.5) && !model.is_empty() {
                links.remove(model.remove(rng.random_range(0..model.len())));
            } else {
                links.push(ino);
                model.push(ino);
            }
        }
        assert_eq!(chained(&list), model.iter().rev().copied().collect::<Vec<_>>());
        assert!(model.iter().all(|ino| list.contains(*ino)) && !list.contains(2000));
        model.iter().for_each(|ino| list.lock().remove(*ino));
        let links = list.lock();
        assert_eq!((links.of.len(), links.newest), (0, 0));
    }

    /// A walk of the list at each look-up would take hours.
    #[test]
    fn a_look_up_on_a_long_list_is_no_walk() {
        const LEN: u32 = 1_000_000;
        let list = List::default();
        list.load(1..=LEN);
        let began = Instant::now();
        for ino in 1..=LEN {
            assert_eq!(list.chain(ino).next(), Some(ino - 1));
            assert!(began.elapsed() < Duration::from_secs(60), "{ino} look-ups");
        }
    }
}
