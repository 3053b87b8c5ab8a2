//! The writes since the last flush. They are written again when a connection was lost, because the
//! server may have lost them with its process.
//!
//! Invariants:
//! - A write is entered before it is sent. It leaves when a flush has succeeded that was sent after
//!   its answer had come; with FUA it leaves with its answer.
//! - The bytes kept are bounded. A write that finds no room waits for a flush, or for answers.
//! - Of several writes of one place only the last content is repeated: a server that is killed
//!   between two of them would keep the first.
//!
//! Hazard: a write that is in flight when the connection is lost is written again from here, and
//! once more by its caller. No caller may have relied on it, so no later write of the same place is
//! undone by that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of a buffer from which on it is used again.
const REUSED: usize = 128 << 10;

/// A write that may have to be done again.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The content, `None` for zeros.
    pub(crate) bytes: Option<Arc<Vec<u8>>>,
}

impl Kept {
    /// Returns the bytes of its content; zeros have none.
    pub(crate) fn content(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.len())
    }

    /// Memory that it takes; zeros take a little.
    fn cost(&self) -> u64 {
        128 + self.content() as u64
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len.into())
    }

    /// Returns the part of it between two bytes that are in it.
    fn part(&self, from: u64, to: u64) -> Self {
        if (from, to) == (self.offset, self.end()) {
            return self.clone();
        }
        let place = |at: u64| (at - self.offset) as usize;
        let of_content =
            |bytes: &Arc<Vec<u8>>| bytes.get(place(from)..place(to)).unwrap_or_default().to_vec();
        let bytes = self.bytes.as_ref().map(|bytes| Arc::new(of_content(bytes)));
        Self { offset: from, len: (to - from) as u32, bytes }
    }
}

/// The writes since the last flush.
#[derive(Debug, Default)]
struct Log {
    /// By number, in the order in which they were entered.
    in_flight: BTreeMap<u64, Kept>,
    /// Those that the server has answered, in the order of the answers.
    answered: VecDeque<(u64, Kept)>,
    next: u64,
    /// Answered writes that have left.
    left: u64,
    bytes: u64,
    /// A thread flushes to make room.
    making_room: bool,
    /// Threads that wait for room.
    waiting: usize,
    /// Buffers of what the last flush covered, for the next writes: new memory costs more than a
    /// copy.
    spare: Vec<Vec<u8>>,
}

impl Log {
    fn has_room_for(&self, write: &Kept, most: u64) -> bool {
        let is_empty = self.in_flight.is_empty() && self.answered.is_empty();
        is_empty || self.bytes + write.cost() <= most
    }
}

/// The answers up to which a flush covers writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(u64);

/// What a thread without room does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It tries again.
    Enter,
    /// It flushes, and calls [`Unflushed::made_room`].
    Flush,
}

/// The writes since the last flush, shared by threads.
#[derive(Debug)]
pub(crate) struct Unflushed {
    log: Mutex<Log>,
    most: u64,
    /// Something has left.
    changed: Condvar,
}

impl Unflushed {
    pub(crate) fn new(most: u64) -> Self {
        Self { log: Mutex::default(), most, changed: Condvar::new() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters writes that are about to be sent, from the front, as many as there is room for. The
    /// first of them always fits if nothing is kept. Returns the number of the first, and how many
    /// they are.
    pub(crate) fn enter(&self, writes: &[Kept]) -> (u64, usize) {
        let mut log = self.log();
        let first = log.next;
        let mut count = 0;
        for write in writes {
            if !log.has_room_for(write, self.most) {
                break;
            }
            log.bytes += write.cost();
            let number = log.next;
            log.in_flight.insert(number, write.clone());
            log.next += 1;
            count += 1;
        }
        (first, count)
    }

    /// Notes what became of writes, from the number `first` on: whether the server has done each,
    /// and all durably. One that it failed is kept no longer, as its caller is told.
    pub(crate) fn answered(&self, first: u64, done: impl Iterator<Item = bool>, durable: bool) {
        let mut log = self.log();
        for (number, done) in (first..).zip(done) {
            let Some(write) = log.in_flight.remove(&number) else { continue };
            if done && !durable {
                log.answered.push_back((number, write));
            } else {
                log.bytes -= write.cost();
            }
        }
        // One that waits may flush what was answered, or has room.
        if log.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Returns what a flush covers that is sent now: each write that has its answer.
    pub(crate) fn mark(&self) -> Mark {
        let log = self.log();
        Mark(log.left + log.answered.len() as u64)
    }

    /// Forgets what a flush has made durable.
    pub(crate) fn flushed(&self, mark: Mark) {
        let mut covered = Vec::new();
        let mut log = self.log();
        while log.left < mark.0 {
            let Some((_, write)) = log.answered.pop_front() else { break };
            log.bytes -= write.cost();
            log.left += 1;
            covered.extend(write.bytes);
        }
        if log.waiting > 0 {
            self.changed.notify_all();
        }
        let before = std::mem::take(&mut log.spare);
        drop(log);
        drop(before);
        let large = covered.into_iter().filter(|bytes| bytes.capacity() >= REUSED);
        let spare: Vec<Vec<u8>> = large.filter_map(|bytes| Arc::try_unwrap(bytes).ok()).collect();
        self.log().spare = spare;
    }

    /// Returns an empty buffer for `len` bytes.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        let spare = if len >= REUSED { self.log().spare.pop() } else { None };
        let mut buffer = spare.unwrap_or_default();
        buffer.clear();
        buffer.reserve_exact(len);
        buffer
    }

    /// Waits until something has left, or there is something to flush that no other thread
    /// flushes. For a thread that has no write in flight and wants to enter `write`.
    pub(crate) fn wait_for_room(&self, write: &Kept) -> Next {
        let mut log = self.log();
        if log.has_room_for(write, self.most) {
            return Next::Enter;
        }
        if !log.making_room && !log.answered.is_empty() {
            log.making_room = true;
            return Next::Flush;
        }
        if log.making_room || !log.in_flight.is_empty() {
            log.waiting += 1;
            log = self.changed.wait(log).unwrap_or_else(PoisonError::into_inner);
            log.waiting -= 1;
        }
        Next::Enter
    }

    /// Ends what [`Next::Flush`] began, whatever became of the flush.
    pub(crate) fn made_room(&self) {
        self.log().making_room = false;
        self.changed.notify_all();
    }

    /// Returns the writes that the server may have lost. None overlaps another.
    pub(crate) fn to_repeat(&self) -> Vec<Kept> {
        let log = self.log();
        let mut kept: Vec<(u64, Kept)> =
            log.in_flight.iter().map(|(number, write)| (*number, write.clone())).collect();
        kept.extend(log.answered.iter().cloned());
        drop(log);
        kept.sort_unstable_by_key(|(number, _)| *number);
        last_contents(kept.iter().map(|(_, write)| write).rev())
    }
}

/// Returns of writes, the last one first, those parts that no later one has covered.
fn last_contents<'a>(latest_first: impl Iterator<Item = &'a Kept>) -> Vec<Kept> {
    // Ranges that later writes cover, apart from each other: first byte, the byte behind.
    let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut parts = Vec::new();
    for write in latest_first {
        let (mut start, mut end) = (write.offset, write.end());
        let mut at = start;
        // A range that begins before it may reach into it, or end where it begins.
        if let Some((&first, &behind)) = covered.range(..=start).next_back()
            && behind >= start
        {
            (start, at) = (first, at.max(behind));
        }
        for (&first, &behind) in covered.range(write.offset..=write.end()) {
            if first > at {
                parts.push(write.part(at, first));
            }
            at = at.max(behind);
        }
        if at < write.end() {
            parts.push(write.part(at, write.end()));
        }
        end = end.max(at);
        let inside: Vec<u64> = covered.range(start..=end).map(|(first, _)| *first).collect();
        for first in inside {
            covered.remove(&first);
        }
        covered.insert(start, end);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(offset: u64, len: usize) -> Kept {
        filled(offset, len, 0)
    }

    fn filled(offset: u64, len: usize, with: u8) -> Kept {
        Kept { offset, len: len as u32, bytes: Some(Arc::new(vec![with; len])) }
    }

    fn places(log: &Unflushed) -> Vec<u64> {
        let mut places: Vec<u64> = log.to_repeat().iter().map(|write| write.offset).collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn a_flush_covers_what_was_answered_before_it() {
        let log = Unflushed::new(1 << 20);
        let writes: Vec<Kept> = (0..4).map(|i| write(i * 10, 10)).collect();
        assert_eq!(log.enter(&writes), (0, 4));
        log.answered(2, [true].into_iter(), false);
        log.answered(0, [true].into_iter(), false);
        let mark = log.mark();
        log.answered(1, [true].into_iter(), false);
        log.flushed(mark);
        // The last is in flight.
        assert_eq!(places(&log), [10, 30]);
        log.answered(3, [false].into_iter(), false);
        log.flushed(log.mark());
        assert!(places(&log).is_empty() && log.log().bytes == 0);
        assert_eq!(log.enter(&writes), (4, 4));
        log.answered(4, [false, true].into_iter(), true);
        assert_eq!(places(&log), [20, 30]);
    }

    #[test]
    fn memory_is_bounded_and_one_write_fits_always() {
        let log = Unflushed::new(1000);
        assert_eq!(log.enter(&[write(0, 5000), write(0, 1)]), (0, 1));
        assert_eq!(log.enter(&[write(0, 1)]), (1, 0));
        log.answered(0, [true].into_iter(), false);
        assert_eq!(log.wait_for_room(&write(0, 1)), Next::Flush);
        log.flushed(log.mark());
        assert_eq!(log.wait_for_room(&write(0, 1)), Next::Enter);
        log.made_room();
        assert_eq!(log.enter(&[write(0, 500), write(0, 500)]), (1, 1));
    }

    proptest! {
        /// What is repeated, in any order, is what all writes in their order leave.
        #[test]
        fn the_last_content_of_each_byte_is_repeated(
            writes in prop::collection::vec((0u64..60, 1usize..30, prop::bool::ANY), 0..30)
        ) {
            let mut want = vec![None; 100];
            let mut kept = Vec::new();
            for (i, (offset, len, zeros)) in writes.into_iter().enumerate() {
                let with = i as u8 + 1;
                let mut write = filled(offset, len, with);
                if zeros {
                    write.bytes = None;
                }
                want[offset as usize..][..len].fill(Some(if zeros { 0 } else { with }));
                kept.push(write);
            }
            let mut got = vec![None; 100];
            for part in last_contents(kept.iter().rev()) {
                let content = part.bytes.as_ref().map_or(vec![0; part.len as usize], |bytes| bytes.to_vec());
                prop_assert_eq!(content.len(), part.len as usize);
                for (at, byte) in content.into_iter().enumerate() {
                    let place = &mut got[part.offset as usize + at];
                    prop_assert!(place.is_none(), "repeated twice");
                    *place = Some(byte);
                }
            }
            prop_assert_eq!(got, want);
        }
    }
}
