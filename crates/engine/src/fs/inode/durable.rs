//! The transactions that changed an inode.

use crate::error::Result;
use lanefs_journal::{Journal, Tid};
use lanefs_sync::atomic::{AtomicU64, Ordering};

/// Set if no change waits for a commit.
const IDLE: u64 = 1 << 32;
/// Counts changes, in this bit and those above. [`Durable::commit`] sets IDLE only if no change
/// came since it read the word, even one in the same transaction: an empty one stays running.
const CHANGE: u64 = 1 << 33;

fn tid_of(word: u64) -> Tid {
    Tid(word as u32)
}

/// The last transactions that changed an inode.
#[derive(Debug)]
pub(crate) struct Durable {
    /// The last that changed any part of it.
    all: AtomicU64,
    /// The last that changed its map or i_disksize.
    data: AtomicU64,
}

impl Durable {
    /// Returns the state of an inode just loaded: the running transaction, or the one that commits
    /// now, may have changed it.
    pub(crate) fn new(running: Tid) -> Self {
        let tid = u64::from(running.0);
        Self { all: AtomicU64::new(tid), data: AtomicU64::new(tid) }
    }

    /// Notes a change by transaction `tid`; with `data`, of the map or i_disksize too. The caller
    /// holds the inode's lock.
    pub(crate) fn note(&self, tid: Tid, data: bool) {
        note(&self.all, tid);
        if data {
            note(&self.data, tid);
        }
    }

    /// Waits until the changes are durable: all of them, or only those that its content needs.
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

/// Notes the newer of two transactions: a handle of an older one may note last.
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
