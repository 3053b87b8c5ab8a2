//! What was written and not flushed yet, in order: it is written again when a connection was lost,
//! because the server may have lost it with its process.
//!
//! Invariants:
//! - A write is entered before it is sent, and leaves when a flush has succeeded that was sent
//!   after its answer had come.
//! - The bytes kept are bounded. Who wants to enter more waits for a flush.
//! - A write that is in flight when the connection is lost is written again from here too, and then
//!   once more by its caller: the server may have answered it, and the caller not have said so yet.
//!   No caller may have relied on it, so no later write of the same place is undone by that.

use std::collections::VecDeque;
use std::sync::Arc;

/// A write, and its state.
#[derive(Debug)]
struct Entry {
    write: Kept,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Answered,
    /// The server failed it, and its caller was told.
    Failed,
}

/// A write that may have to be done again.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The content, `None` for zeros.
    pub(crate) bytes: Option<Arc<Vec<u8>>>,
}

impl Kept {
    /// Memory that it takes; zeros take a little.
    fn cost(&self) -> u64 {
        128 + self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)
    }
}

/// The writes since the last flush.
#[derive(Debug)]
pub(crate) struct Unflushed {
    entries: VecDeque<Entry>,
    /// The number of the first entry.
    first: u64,
    bytes: u64,
    most: u64,
}

impl Unflushed {
    pub(crate) fn new(most: u64) -> Self {
        Self { entries: VecDeque::new(), first: 0, bytes: 0, most }
    }

    /// Enters a write that is about to be sent. Returns its number, `None` if there is no room
    /// before a flush.
    pub(crate) fn enter(&mut self, write: Kept) -> Option<u64> {
        if self.bytes + write.cost() > self.most && !self.entries.is_empty() {
            return None;
        }
        self.bytes += write.cost();
        self.entries.push_back(Entry { write, state: State::InFlight });
        Some(self.first + self.entries.len() as u64 - 1)
    }

    /// Returns whether anything can be entered.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < self.most
    }

    /// Notes that the server has answered a write.
    pub(crate) fn answered(&mut self, number: u64, ok: bool) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            entry.state = if ok { State::Answered } else { State::Failed };
        }
    }

    /// Returns the number up to which a flush that is sent now covers everything.
    pub(crate) fn covered(&self) -> u64 {
        let open = self.entries.iter().take_while(|entry| entry.state != State::InFlight).count();
        self.first + open as u64
    }

    /// Forgets what a flush has made durable: all up to [`covered`](Self::covered) of before it.
    pub(crate) fn flushed(&mut self, covered: u64) {
        while self.first < covered {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.write.cost();
            self.first += 1;
        }
    }

    /// Returns the writes that the server may have lost, in order.
    pub(crate) fn to_repeat(&self) -> Vec<Kept> {
        let may_be_lost = self.entries.iter().filter(|entry| entry.state != State::Failed);
        may_be_lost.map(|entry| entry.write.clone()).collect()
    }
}

/// Splits writes into runs in which none overlaps another: those of a run may be in flight at the
/// same time.
pub(crate) fn apart(writes: &[Kept]) -> Vec<&[Kept]> {
    const MOST: usize = 64;
    let mut runs = Vec::new();
    let mut rest = writes;
    while !rest.is_empty() {
        let mut len = 1;
        while len < rest.len().min(MOST) && !rest[..len].iter().any(|other| overlap(other, &rest[len])) {
            len += 1;
        }
        let (run, later) = rest.split_at(len);
        runs.push(run);
        rest = later;
    }
    runs
}

fn overlap(a: &Kept, b: &Kept) -> bool {
    a.offset < b.offset.saturating_add(b.len.into()) && b.offset < a.offset.saturating_add(a.len.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, len: usize) -> Kept {
        Kept { offset, len: len as u32, bytes: Some(Arc::new(vec![0; len])) }
    }

    #[test]
    fn a_flush_covers_what_was_answered_before_it() {
        let mut log = Unflushed::new(1 << 20);
        let numbers: Vec<u64> = (0..4).map(|i| log.enter(write(i * 10, 10)).unwrap()).collect();
        log.answered(numbers[0], true);
        log.answered(numbers[2], true);
        let covered = log.covered();
        log.answered(numbers[1], true);
        log.flushed(covered);
        let left: Vec<u64> = log.to_repeat().iter().map(|w| w.offset).collect();
        // The last is in flight.
        assert_eq!(left, [10, 20, 30]);
        log.answered(numbers[3], false);
        log.flushed(log.covered());
        assert!(log.to_repeat().is_empty() && log.bytes == 0);
    }

    #[test]
    fn memory_is_bounded_and_one_write_fits_always() {
        let mut log = Unflushed::new(1000);
        let first = log.enter(write(0, 5000)).unwrap();
        assert_eq!(log.enter(write(0, 1)), None);
        log.answered(first, true);
        log.flushed(log.covered());
        assert!(log.enter(write(0, 500)).is_some() && log.enter(write(0, 500)).is_none());
    }

    #[test]
    fn overlapping_writes_are_apart() {
        let writes = [write(0, 10), write(10, 10), write(19, 2), write(0, 1), write(1, 1), write(0, 2)];
        let lens: Vec<usize> = apart(&writes).iter().map(|run| run.len()).collect();
        assert_eq!(lens, [2, 3, 1]);
    }
}
