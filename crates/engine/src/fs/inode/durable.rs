//! Which transactions an inode's changes belong to.

use crate::error::Result;
use lanefs_journal::{Journal, Tid};
use lanefs_sync::atomic::{AtomicU64, Ordering};

/// Set if no change waits for a commit.
const IDLE: u64 = 1 << 32;
/// Counts the changes, from here on: one that joins the transaction that another thread has just
/// committed is seen by it, also where that one was empty and goes on.
const CHANGE: u64 = 1 << 33;

fn tid_of(word: u64) -> Tid {
    Tid(word as u32)
}

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
        note(&self.all, tid);
        if data {
            note(&self.data, tid);
        }
    }

    /// Returns when the changes are durable, of the inode or only of what its content needs.
    pub(crate) fn commit(&self, journal: &Journal, all: bool) -> Result<()> {
        let last = if all { &self.all } else { &self.data };
        let word = last.load(Ordering::Acquire);
        if word & IDLE != 0 {
            return Ok(());
        }
        if !journal.is_durable(tid_of(word)) {
            journal.commit(tid_of(word))?;
        }
        // Unless it was changed again meanwhile.
        let _ = last.compare_exchange(word, word | IDLE, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }
}

/// A handle of an older transaction may come last.
fn note(last: &AtomicU64, tid: Tid) {
    let change = |word: u64| {
        let older = word & IDLE == 0 && !tid.after(tid_of(word));
        let tid = if older { tid_of(word) } else { tid };
        let count = word.wrapping_add(CHANGE) & !(CHANGE - 1);
        Some(count | u64::from(tid.0))
    };
    let _ = last.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_transaction_stays_across_the_wrap() {
        let durable = Durable::new(Tid(u32::MAX - 1));
        durable.note(Tid(1), false);
        durable.note(Tid(u32::MAX), true);
        assert_eq!(tid_of(durable.all.load(Ordering::Relaxed)), Tid(1));
        assert_eq!(tid_of(durable.data.load(Ordering::Relaxed)), Tid(u32::MAX));
    }
}
