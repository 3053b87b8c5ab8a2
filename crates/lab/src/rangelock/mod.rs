//! The range lock beside older kinds of range lock, and the loops that compare them.
//!
//! The older locks are here to be measured, not to be used: they wait by spinning and yielding, and
//! have no timeouts.

mod interval_tree;
mod mutex_btree;
mod ours;
mod rwlock;
pub mod work;

pub use interval_tree::IntervalTree;
pub use lanefs_rangelock::Range;
pub use mutex_btree::MutexBTree;
pub use ours::LanefsLock;
pub use rwlock::RwLock;

use std::sync::atomic::{AtomicBool, Ordering};

/// A lock over ranges, of one kind or another.
pub trait Variant: Default + Sync {
    /// In tables.
    const NAME: &'static str;
    /// Whether one thread can hold several ranges as a writer.
    const MANY: bool = true;
    /// A range shared.
    type Read<'a>
    where
        Self: 'a;
    /// A range held alone.
    type Write<'a>
    where
        Self: 'a;

    /// Shares a range.
    fn read(&self, range: Range) -> Self::Read<'_>;
    /// Takes a range alone.
    fn write(&self, range: Range) -> Self::Write<'_>;
}

/// Waits a little longer each time; gives its core away soon, since there may be more threads than
/// cores.
pub fn pause(rounds: &mut u32) {
    *rounds += 1;
    if *rounds < 50 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// The kernel's kind of spinlock, as far as user space can have one.
#[derive(Default)]
pub(crate) struct SpinLock<T> {
    locked: AtomicBool,
    value: std::sync::Mutex<T>,
}

impl<T> SpinLock<T> {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut rounds = 0;
        while self.locked.load(Ordering::Relaxed) || self.locked.swap(true, Ordering::Acquire) {
            pause(&mut rounds);
        }
        // Never contended: the flag is the lock. It spares an `unsafe`, for two writes to a line
        // that is ours.
        let mut value = self.value.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let result = f(&mut value);
        drop(value);
        self.locked.store(false, Ordering::Release);
        result
    }
}
