//! Which transactions an inode's changes belong to.

use crate::error::Result;
use lanefs_journal::{Journal, Tid};
use lanefs_sync::atomic::{AtomicU64, Ordering};

/// No transaction that might not be durable.
const NONE: u64 = u64::MAX;

/// The last transactions that changed an inode.
#[derive(Debug)]
pub(crate) struct Durable {
    /// Any of it.
    all: AtomicU64,
    /// Its map or i_disksize.
    data: AtomicU64,
}

impl Durable {
    /// Of an inode just loaded: the running transaction, and the one being committed, may have
    /// changed it.
    pub(crate) fn new(running: Tid) -> Self {
        let tid = u64::from(running.0);
        Self { all: AtomicU64::new(tid), data: AtomicU64::new(tid) }
    }

    /// Transaction `tid` changes the inode, whose lock is held; `data`: its map or i_disksize too.
    pub(crate) fn note(&self, tid: Tid, data: bool) {
        later(&self.all, tid);
        if data {
            later(&self.data, tid);
        }
    }

    /// Returns when the changes are durable, of the inode or only of what its content needs.
    pub(crate) fn commit(&self, journal: &Journal, all: bool) -> Result<()> {
        let last = if all { &self.all } else { &self.data };
        let tid = last.load(Ordering::Acquire);
        if tid == NONE {
            return Ok(());
        }
        if !journal.is_durable(Tid(tid as u32)) {
            journal.commit(Tid(tid as u32))?;
        }
        // Unless it was changed again meanwhile.
        let _ = last.compare_exchange(tid, NONE, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }
}

/// A handle of an older transaction may come last.
fn later(last: &AtomicU64, tid: Tid) {
    let newer = |known: u64| (known == NONE || tid.after(Tid(known as u32))).then_some(u64::from(tid.0));
    let _ = last.fetch_update(Ordering::AcqRel, Ordering::Relaxed, newer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_transaction_stays_across_the_wrap() {
        let durable = Durable::new(Tid(u32::MAX - 1));
        durable.note(Tid(1), false);
        durable.note(Tid(u32::MAX), true);
        assert_eq!(durable.all.load(Ordering::Relaxed), 1);
        assert_eq!(durable.data.load(Ordering::Relaxed), u64::from(u32::MAX));
    }
}
