//! The committed contents of blocks that are not checkpointed yet.
//!
//! For each block that a transaction in the log has changed, this keeps the newest committed
//! content. A checkpoint of the log up to transaction T writes home the contents that no
//! transaction after T has replaced: a replaced one would be replayed from the later transaction.
//!
//! Invariants:
//!
//! - A checkpoint never reads a buffer, so uncommitted changes cannot reach a home block.
//! - A block whose freeing is committed leaves the map before it may be allocated again. If its
//!   batch is in flight, the committer waits for the writes to end: they would overwrite the new
//!   owner's data.

use crate::Tid;
use crate::buffer::Content;
use lanefs_sync::{Condvar, IntMap, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Committed {
    state: Mutex<CheckpointState>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct CheckpointState {
    /// By block, with the transaction that it is from.
    contents: IntMap<u64, (Tid, Content)>,
    /// The blocks that a checkpoint is writing home, sorted.
    in_flight: Vec<u64>,
}

/// Guard of a batch in flight. Dropping it ends the batch, also during a panic.
#[derive(Debug)]
pub(crate) struct Landing<'a>(pub(crate) &'a Committed);

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.0.landed();
    }
}

/// A committed content and where it belongs.
#[derive(Debug)]
pub(crate) struct Uncheckpointed {
    pub(crate) block: u64,
    pub(crate) tid: Tid,
    pub(crate) content: Content,
}

impl Committed {
    /// Returns the newest committed content of a block that is not checkpointed.
    pub(crate) fn get(&self, block: u64) -> Option<Content> {
        self.state.lock().contents.get(&block).map(|(_, content)| Content::clone(content))
    }

    /// Returns the number of blocks that are not checkpointed.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().contents.len()
    }

    /// Adds the contents that transaction `tid` has committed.
    pub(crate) fn insert(&self, tid: Tid, blocks: Vec<(u64, Content)>) {
        let mut state = self.state.lock();
        for (block, content) in blocks {
            state.contents.insert(block, (tid, content));
        }
    }

    /// Frees the memory of a map that was once large.
    pub(crate) fn shrink(&self) {
        self.state.lock().contents.shrink_to_fit();
    }

    /// Forgets blocks whose freeing is committed. None of them is being written home afterwards.
    pub(crate) fn forget(&self, blocks: &[u64]) {
        let mut state = self.state.lock();
        for block in blocks {
            state.contents.remove(block);
        }
        while blocks.iter().any(|block| state.in_flight.binary_search(block).is_ok()) {
            self.landed.wait(&mut state);
        }
    }

    /// Returns the contents that must be written home before the log up to transaction `last` can
    /// be freed, sorted by block.
    pub(crate) fn take_off(&self, last: Tid) -> Vec<Uncheckpointed> {
        let state = self.state.lock();
        let due = state.contents.iter().filter(|(_, (tid, _))| last.at_or_after(*tid));
        let of = |(&block, (tid, content)): (&u64, &(Tid, Content))| Uncheckpointed {
            block,
            tid: *tid,
            content: Content::clone(content),
        };
        let mut due: Vec<_> = due.map(of).collect();
        drop(state);
        due.sort_unstable_by_key(|uncheckpointed| uncheckpointed.block);
        due
    }

    /// Returns the part of a batch that must still be written. It counts as in flight until a
    /// [`Landing`] is dropped.
    pub(crate) fn depart<'a>(&self, batch: &'a [Uncheckpointed]) -> Vec<(u64, &'a [u8])> {
        let mut state = self.state.lock();
        let newest = |uncheckpointed: &Uncheckpointed| {
            state.contents.get(&uncheckpointed.block).is_some_and(|(tid, _)| *tid == uncheckpointed.tid)
        };
        let still_due = batch.iter().filter(|uncheckpointed| newest(uncheckpointed));
        let writes: Vec<(u64, &[u8])> = still_due.map(|h| (h.block, &h.content[..])).collect();
        state.in_flight = writes.iter().map(|(block, _)| *block).collect();
        writes
    }

    /// Ends the writes of a batch, whether they succeeded or not, and wakes waiting committers.
    fn landed(&self) {
        self.state.lock().in_flight.clear();
        self.landed.notify_all();
    }

    /// Forgets contents that are durable at their home locations and still the newest.
    pub(crate) fn settle(&self, home: &[Uncheckpointed]) {
        let mut state = self.state.lock();
        for Uncheckpointed { block, tid, .. } in home {
            if state.contents.get(block).is_some_and(|(newest, _)| newest == tid) {
                state.contents.remove(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_device::AlignedBuf;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    fn content(value: u8) -> Content {
        let mut content = AlignedBuf::zeroed(8);
        content.fill(value);
        Arc::new(content)
    }

    #[test]
    fn a_newer_content_outlives_the_checkpoint_of_an_older() {
        let committed = Committed::default();
        committed.insert(Tid(1), vec![(5, content(1)), (6, content(1))]);
        let home = committed.take_off(Tid(1));
        assert_eq!(committed.depart(&home).len(), 2);
        committed.insert(Tid(2), vec![(6, content(2))]);
        committed.landed();
        committed.settle(&home);
        assert!(committed.get(5).is_none());
        assert_eq!(committed.get(6).unwrap()[0], 2);
        assert_eq!(committed.len(), 1);
        assert!(committed.take_off(Tid(1)).is_empty());
        assert_eq!(committed.take_off(Tid(2)).len(), 1);
    }

    #[test]
    fn forgetting_waits_for_a_write_on_its_way() {
        let committed = Committed::default();
        committed.insert(Tid(1), vec![(5, content(1)), (6, content(1))]);
        committed.depart(&committed.take_off(Tid(1)));
        committed.forget(&[4, 7]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| committed.forget(&[6]));
            thread::sleep(Duration::from_millis(30));
            assert!(!waiter.is_finished());
            committed.landed();
            waiter.join().unwrap();
        });
        assert!(committed.get(6).is_none());
    }

    #[test]
    fn what_a_later_transaction_holds_or_was_freed_is_not_due() {
        let committed = Committed::default();
        committed.insert(Tid(1), vec![(5, content(1)), (6, content(1)), (7, content(1))]);
        committed.insert(Tid(2), vec![(6, content(2)), (8, content(2))]);
        let home = committed.take_off(Tid(1));
        // Freed before its batch departs: another owner may have written there.
        committed.forget(&[7]);
        let writes: Vec<(u64, u8)> = committed.depart(&home).iter().map(|(b, c)| (*b, c[0])).collect();
        assert_eq!(writes, [(5, 1)]);
        committed.landed();
        committed.settle(&home);
        let rest: Vec<u64> = committed.take_off(Tid(2)).iter().map(|h| h.block).collect();
        assert_eq!(rest, [6, 8]);
    }
}
