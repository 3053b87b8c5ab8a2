//! An uncontended lock allocates no memory: a volume has one lock for each open file.

#![allow(unsafe_code)]

use lanefs_rangelock::{MutexRangeLock, Range, RangeLock};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts what this thread asks for.
struct Counting;

// SAFETY: hands everything to `System`, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

#[test]
fn an_idle_lock_allocates_nothing() {
    assert!(size_of::<RangeLock>() <= 256);
    let used = allocations(|| {
        let lock = RangeLock::new();
        for i in 0..1000 {
            let _a = lock.read(Range::with_len(i, 10).unwrap());
            let _b = lock.read(Range::with_len(i, 10).unwrap());
            let _c = lock.write(Range::starting_at(i + 10));
        }
    });
    assert_eq!(used, 0);
    assert_eq!(allocations(|| drop(MutexRangeLock::new())), 0);
    assert_ne!(allocations(|| drop(std::hint::black_box(Box::new(1_u8)))), 0, "the count counts");
}
