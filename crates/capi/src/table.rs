//! Handles: what C holds in place of a volume, a file or a directory.
//!
//! A handle is the number of a slot, the slot's generation and the kind of the table. Slots are
//! never given back to the system and their generation grows with each use, so a closed handle is
//! detected, until 2^40 other handles have had its slot. A call holds its slot shared. Closing
//! first takes the handle out of the slot, so that no call begins any more, and then the slot
//! exclusively, and so waits for the calls that run.

use parking_lot::{MappedRecursiveRwLockReadGuard, Mutex, RecursiveRwLock, RecursiveRwLockReadGuard};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots are made this many at a time.
const CHUNK: usize = 256;
/// Chunks at most.
const CHUNKS: usize = 1024;

const KIND_BITS: u32 = 4;
const INDEX_BITS: u32 = (CHUNK * CHUNKS).ilog2();
const GENERATION_SHIFT: u32 = KIND_BITS + INDEX_BITS;

/// A table of the open objects of one kind.
pub(crate) struct Table<T> {
    /// In each handle, so that a file is not taken for a directory. Not 0: no handle is null.
    kind: usize,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Slots that have been used.
    again: Vec<usize>,
    /// The first slot that has not.
    next: usize,
}

/// A place of the table, on cache lines of its own: threads that use different files do not share
/// one.
#[repr(align(128))]
struct Slot<T> {
    /// The handle that calls may use now. 0: none.
    handle: AtomicUsize,
    held: RecursiveRwLock<SlotContent<T>>,
}

struct SlotContent<T> {
    generation: usize,
    value: Option<T>,
}

/// A reference to the object behind a handle, which stays open while this lives.
pub(crate) type Open<'t, T> = MappedRecursiveRwLockReadGuard<'t, T>;

impl<T> Table<T> {
    /// Returns an empty table.
    pub(crate) const fn new(kind: usize) -> Self {
        let free = Mutex::new(Free { again: Vec::new(), next: 0 });
        Self { kind, chunks: [const { OnceLock::new() }; CHUNKS], free }
    }

    /// Makes a handle for `value`. The value comes back if the table is full.
    pub(crate) fn insert(&self, value: T) -> Result<usize, T> {
        let index = {
            let mut free = self.free.lock();
            match free.again.pop() {
                Some(index) => index,
                None if free.next < CHUNK * CHUNKS => {
                    free.next += 1;
                    free.next - 1
                }
                None => return Err(value),
            }
        };
        let new = || {
            let held = RecursiveRwLock::new(SlotContent { generation: 0, value: None });
            Slot { handle: AtomicUsize::new(0), held }
        };
        let Some(chunk) = self.chunks.get(index / CHUNK) else { return Err(value) };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| new()).collect());
        let Some(slot) = chunk.get(index % CHUNK) else { return Err(value) };
        let mut held = slot.held.write();
        // The generation keeps only the bits that a handle has room for, so that both compare
        // equal.
        held.generation = held.generation.wrapping_add(1) << GENERATION_SHIFT >> GENERATION_SHIFT;
        held.value = Some(value);
        let handle = held.generation << GENERATION_SHIFT | index << KIND_BITS | self.kind;
        slot.handle.store(handle, Ordering::Release);
        Ok(handle)
    }

    /// Returns the value of `handle`, `None` if it is closed. Holds the slot shared meanwhile.
    pub(crate) fn get(&self, handle: usize) -> Option<Open<'_, T>> {
        // A call may hold one slot twice (a copy within a file), also while another thread waits to
        // close it.
        let slot = self.slot(handle)?;
        // Before the lock too: calls that begin one after the other must not keep out the thread
        // that closes.
        let is_open = || slot.handle.load(Ordering::Acquire) == handle;
        let held = is_open().then(|| slot.held.read())?;
        RecursiveRwLockReadGuard::try_map(held, |held| held.value.as_ref().filter(|_| is_open())).ok()
    }

    /// Closes `handle` and returns its value, once all calls that use it have returned. `None` if
    /// it is closed already.
    pub(crate) fn remove(&self, handle: usize) -> Option<T> {
        let slot = self.slot(handle)?;
        slot.handle.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        let value = slot.held.write().value.take()?;
        self.free.lock().again.push(Self::index(handle));
        Some(value)
    }

    fn slot(&self, handle: usize) -> Option<&Slot<T>> {
        if handle & ((1 << KIND_BITS) - 1) != self.kind {
            return None;
        }
        let index = Self::index(handle);
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    fn index(handle: usize) -> usize {
        handle >> KIND_BITS & ((1 << INDEX_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_handle_is_good_until_it_is_closed() {
        let table = Table::new(3);
        let (a, b) = (table.insert("a").unwrap(), table.insert("b").unwrap());
        assert_eq!((*table.get(a).unwrap(), *table.get(b).unwrap()), ("a", "b"));
        assert_eq!(table.remove(a), Some("a"));
        assert!(table.get(a).is_none() && table.remove(a).is_none());
        // The slot has another user now, and the old handle is still none.
        let c = table.insert("c").unwrap();
        assert!(c != a && Table::<&str>::index(c) == Table::<&str>::index(a));
        assert!(table.get(a).is_none() && table.remove(a).is_none());
        assert_eq!(*table.get(c).unwrap(), "c");
    }

    #[test]
    fn what_is_no_handle_is_found_out() {
        let (table, other) = (Table::new(1), Table::new(2));
        let handle = table.insert(()).unwrap();
        let _ = other.insert(()).unwrap();
        assert!(other.get(handle).is_none());
        for bad in [0, 1, usize::MAX, handle + 1, handle ^ 1 << KIND_BITS, handle ^ 1 << GENERATION_SHIFT] {
            assert!(table.get(bad).is_none() && table.remove(bad).is_none(), "{bad:#x}");
        }
        assert!(table.get(handle).is_some());
    }

    #[test]
    fn a_generation_wraps_within_its_handle() {
        let table = Table::new(1);
        let first = table.insert(()).unwrap();
        table.remove(first).unwrap();
        table.slot(first).unwrap().held.write().generation = usize::MAX >> GENERATION_SHIFT;
        let wrapped = table.insert(()).unwrap();
        assert_eq!(wrapped >> GENERATION_SHIFT, 0);
        assert!(table.get(wrapped).is_some() && wrapped != 0);
    }

    #[test]
    fn a_full_table_gives_the_value_back() {
        let table = Table::new(1);
        table.free.lock().next = CHUNK * CHUNKS;
        assert_eq!(table.insert(7), Err(7));
    }

    #[test]
    fn closing_waits_for_its_users() {
        let table = Arc::new(Table::new(1));
        let handle = table.insert(()).unwrap();
        let open = table.get(handle).unwrap();
        let closed = Arc::new(AtomicBool::new(false));
        let closer = {
            let (table, closed) = (Arc::clone(&table), Arc::clone(&closed));
            std::thread::spawn(move || {
                table.remove(handle).unwrap();
                closed.store(true, Ordering::Release);
            })
        };
        assert!(!closed.load(Ordering::Acquire));
        drop(open);
        closer.join().unwrap();
        assert!(closed.load(Ordering::Acquire) && table.get(handle).is_none());
    }

    /// Calls begin all the time, each before the last one has ended. So it is for a closer.
    #[test]
    fn calls_that_overlap_keep_no_closer_out() {
        let table = Arc::new(Table::new(1));
        let handle = table.insert(()).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        let mut open = table.get(handle).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(table.remove(handle)).unwrap());
            while let Some(next) = table.get(handle) {
                open = next;
            }
            drop(open);
        });
        assert_eq!(is_done.recv(), Ok(Some(())));
    }
}
