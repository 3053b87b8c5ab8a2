//! Counts writes of cache lines that several threads write, outside of sessions. From [`start`] to
//! [`stop`] each atomic write, and each lock taken or released, is noted with line, thread and
//! place. A line that one thread writes n times and others m times moves at most 2 m times between
//! processors, whatever their order: as many of its writes count. Not seen: counts of
//! `std::sync::Arc`, allocators, lanefs-stats.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The lines of a processor that has lines of 64 bytes.
const LINE_SHIFT: u32 = 6;

/// Writes of one place in the code to lines that another thread wrote too.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedWrites {
    /// The place: a call of an atomic, or of a lock. Its release counts here too.
    pub at: &'static Location<'static>,
    /// How many: its share of what its lines can move.
    pub writes: f64,
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

/// Ends counting. Returns the places that write, those with the most shared writes first.
pub fn stop() -> Vec<SharedWrites> {
    ON.store(false, Ordering::SeqCst);
    let threads = lock(&THREADS);
    // Of each line: all writes, and the most of one thread.
    let mut lines: HashMap<usize, (u64, u64)> = HashMap::new();
    for thread in &*threads {
        let mut own: HashMap<usize, u64> = HashMap::new();
        lock(thread).iter().for_each(|((line, _), writes)| *own.entry(*line).or_default() += writes);
        for (line, writes) in own {
            let (all, most) = lines.entry(line).or_default();
            *all += writes;
            *most = writes.max(*most);
        }
    }
    let mut places: HashMap<&'static Location<'static>, f64> = HashMap::new();
    for thread in &*threads {
        for ((line, at), writes) in &*lock(thread) {
            let (all, most) = lines.get(line).copied().unwrap_or_default();
            let moves = all.min(2 * (all - most));
            *places.entry(at).or_default() += *writes as f64 * moves as f64 / all.max(1) as f64;
        }
    }
    let mut places: Vec<SharedWrites> =
        places.into_iter().map(|(at, writes)| SharedWrites { at, writes }).collect();
    places.sort_by(|a, b| b.writes.total_cmp(&a.writes));
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
        let found: f64 = stop().into_iter().filter(here).map(|place| place.writes).sum();
        // Taken and released; a try may fail, and then nothing is released.
        assert!((50.0..=80.0).contains(&found), "{found}");
    }
}
