//! The lane that a thread counts in.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of lanes of a counter: a power of two.
pub const LANES: usize = 16;

/// The number of the next thread that counts. Round robin spreads any number of threads evenly.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns the calling thread's lane, below [`LANES`].
#[inline]
pub fn lane() -> usize {
    MINE.with(|mine| mine.get().unwrap_or_else(|| choose(mine)))
}

#[cold]
fn choose(mine: &Cell<Option<usize>>) -> usize {
    let lane = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    mine.set(Some(lane));
    lane
}

/// A value on cache lines of its own. Two lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
