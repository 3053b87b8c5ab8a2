//! Counts writes of cache lines that several threads write, outside of sessions.
//!
//! Between [`start`] and [`stop`] each atomic write, and each lock taken or released, is noted with
//! line, thread and place. It is in the result if another thread wrote the line too: what any number
//! of processors has to move. Not seen: counts of `std::sync::Arc`, allocators, lanefs-stats.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The lines of a processor that has lines of 64 bytes.
const LINE_SHIFT: u32 = 6;

/// Writes of one place in the code to lines that another thread wrote too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedWrites {
    /// The place: a call of an atomic, or of a lock. Its release counts here too.
    pub at: &'static Location<'static>,
    /// How many.
    pub writes: u64,
}

type Written = HashMap<(usize, &'static Location<'static>), u64>;
type OfThread = Arc<Mutex<Written>>;

static ON: AtomicBool = AtomicBool::new(false);
static THREADS: Mutex<Vec<OfThread>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: OnceCell<OfThread> = const { OnceCell::new() };
}

/// Notes a write of `place` by the calling thread.
pub(super) fn note<T: ?Sized>(place: &T, at: &'static Location<'static>) {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let line = ptr::from_ref(place).cast::<()>().addr() >> LINE_SHIFT;
    // A thread that is ending has no notes any more.
    let _ = MINE.try_with(|mine| {
        let mine = mine.get_or_init(|| {
            let mine = OfThread::default();
            lock(&THREADS).push(Arc::clone(&mine));
            mine
        });
        *lock(mine).entry((line, at)).or_default() += 1;
    });
}

/// Begins to count, for all threads of the process.
pub fn start() {
    for thread in &*lock(&THREADS) {
        lock(thread).clear();
    }
    ON.store(true, Ordering::SeqCst);
}

/// Ends counting. Returns the places that wrote lines of several threads, the busiest first.
pub fn stop() -> Vec<SharedWrites> {
    ON.store(false, Ordering::SeqCst);
    let mut writers: HashMap<usize, (usize, bool)> = HashMap::new();
    let threads = lock(&THREADS);
    for (number, thread) in threads.iter().enumerate() {
        for (line, _) in lock(thread).keys() {
            let (first, shared) = writers.entry(*line).or_insert((number, false));
            *shared |= *first != number;
        }
    }
    let mut places: HashMap<&'static Location<'static>, u64> = HashMap::new();
    for thread in &*threads {
        for ((line, at), writes) in &*lock(thread) {
            if writers.get(line).is_some_and(|(_, shared)| *shared) {
                *places.entry(at).or_default() += writes;
            }
        }
    }
    let mut places: Vec<SharedWrites> =
        places.into_iter().map(|(at, writes)| SharedWrites { at, writes }).collect();
    places.sort_by_key(|place| (std::cmp::Reverse(place.writes), place.at.file(), place.at.line()));
    places
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;
    use crate::{Mutex, thread};

    #[repr(align(128))]
    #[derive(Default)]
    struct Padded<T>(T);

    #[test]
    fn only_lines_of_several_threads_count() {
        let shared: Arc<Padded<Mutex<u32>>> = Arc::default();
        start();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let own = Padded(AtomicU64::new(0));
                    for _ in 0..10 {
                        own.0.fetch_add(1, Ordering::Relaxed);
                        *shared.0.lock() += 1;
                        shared.0.try_lock().map(drop);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let here = |place: &SharedWrites| place.at.file().ends_with("written.rs");
        let found: u64 = stop().into_iter().filter(here).map(|place| place.writes).sum();
        // Taken and released; a try may fail, and then nothing is released.
        assert!((50..=80).contains(&found), "{found}");
    }
}
