//! A small number for each live thread: the lowest that no other live thread has. And a mark of
//! each thread, at no cost to speak of, that may be another's too.

#[cfg(not(any(loom, lanefs_schedule)))]
mod imp {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    use std::sync::{Mutex, PoisonError};

    struct Numbers {
        free: BinaryHeap<Reverse<usize>>,
        next: usize,
    }

    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: BinaryHeap::new(), next: 0 });

    struct Mine(usize);

    impl Drop for Mine {
        fn drop(&mut self) {
            NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).free.push(Reverse(self.0));
        }
    }

    thread_local! {
        static MINE: Mine = {
            let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            Mine(numbers.free.pop().map_or_else(
                || {
                    numbers.next += 1;
                    numbers.next - 1
                },
                |Reverse(n)| n,
            ))
        };
    }

    thread_local! {
        static HERE: u8 = const { 0 };
    }

    /// Hashes the address of the thread's own memory.
    #[inline]
    pub(crate) fn mark() -> u8 {
        let here = HERE.with(|here| std::ptr::from_ref(here).addr());
        ((here >> 6) ^ (here >> 12)) as u8
    }

    /// Returns the thread's index. A thread that is exiting gets `usize::MAX`, which no running
    /// thread has.
    #[inline]
    pub(crate) fn get() -> usize {
        MINE.try_with(|mine| mine.0).unwrap_or(usize::MAX)
    }
}

/// The number in the session: the same each time.
#[cfg(all(lanefs_schedule, not(loom)))]
mod imp {
    use lanefs_sync::schedule::thread_number;

    pub(crate) fn mark() -> u8 {
        get() as u8
    }

    pub(crate) fn get() -> usize {
        thread_number().unwrap_or(usize::MAX)
    }
}

#[cfg(loom)]
mod imp {
    use std::cell::Cell;

    loom::thread_local! {
        static MINE: Cell<usize> = Cell::new(usize::MAX);
    }

    pub(crate) fn get() -> usize {
        MINE.with(Cell::get)
    }

    pub(crate) fn mark() -> u8 {
        0
    }

    /// A model numbers its threads itself.
    #[cfg(test)]
    pub(crate) fn set(n: usize) {
        MINE.with(|mine| mine.set(n));
    }
}

pub(crate) use imp::*;
