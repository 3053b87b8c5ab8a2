//! The orphan list, chained through i_dtime.

use crate::error::Result;
use crate::store::txn::Txn;
use lanefs_sync::atomic::{AtomicUsize, Ordering};
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{Mutex, MutexGuard};

/// The list in core, oldest first. The last one is `s_last_orphan`, and `i_dtime` of each inode on
/// disk is the number of the one before it.
#[derive(Debug, Default)]
pub(super) struct List {
    inodes: Mutex<Vec<u32>>,
    /// Length, read without the lock.
    len: AtomicUsize,
}

/// The locked list, while an inode on it is written.
pub(crate) struct Chain<'a>(Option<(Ordered<MutexGuard<'a, Vec<u32>>>, u32)>);

impl Chain<'_> {
    /// Returns the `i_dtime` that the list needs, if the inode is on it.
    pub(crate) fn next(&self) -> Option<u32> {
        self.0.as_ref().map(|c| c.1)
    }
}

fn older(inodes: &[u32], place: usize) -> u32 {
    place.checked_sub(1).and_then(|p| inodes.get(p)).copied().unwrap_or(0)
}

fn place(inodes: &[u32], ino: u32) -> Option<usize> {
    inodes.iter().rposition(|&i| i == ino)
}

impl List {
    fn lock(&self) -> Ordered<MutexGuard<'_, Vec<u32>>> {
        Ordered::take(Level::Orphans, 0, || self.inodes.lock())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    pub(super) fn contains(&self, ino: u32) -> bool {
        !self.is_empty() && place(&self.lock(), ino).is_some()
    }

    pub(super) fn chain(&self, ino: u32) -> Chain<'_> {
        if self.is_empty() {
            return Chain(None);
        }
        let inodes = self.lock();
        match place(&inodes, ino) {
            Some(p) => {
                let next = older(&inodes, p);
                Chain(Some((inodes, next)))
            }
            None => Chain(None),
        }
    }

    /// Loads the list that the volume had when it was opened, oldest first.
    pub(super) fn load(&self, inodes: Vec<u32>) {
        self.len.store(inodes.len(), Ordering::Release);
        *self.lock() = inodes;
    }

    pub(super) fn add(&self, txn: &Txn<'_>, ino: u32) -> Result<()> {
        let mut inodes = self.lock();
        txn.store().write_super(txn, |sb| sb.set_last_orphan(ino))?;
        inodes.push(ino);
        self.len.store(inodes.len(), Ordering::Release);
        Ok(())
    }

    /// Takes `ino` off the list; `false` if it was not on it.
    pub(super) fn remove(&self, txn: &Txn<'_>, ino: u32) -> Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        let mut inodes = self.lock();
        let Some(p) = place(&inodes, ino) else { return Ok(false) };
        let next = older(&inodes, p);
        match inodes.get(p + 1) {
            // The newer neighbour's i_dtime must skip it. Only that field of its slot belongs to
            // the list.
            Some(&newer) => txn.store().table_slot(newer)?.write_dtime(txn, next)?,
            None => txn.store().write_super(txn, |sb| sb.set_last_orphan(next))?,
        }
        inodes.remove(p);
        self.len.store(inodes.len(), Ordering::Release);
        Ok(true)
    }
}
