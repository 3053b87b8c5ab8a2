//! The generations of new inodes (i_generation): unpredictable, but the same sequence under a fixed
//! clock. Each thread takes numbers in batches, so that threads that create files write no common
//! cache line each time. One thread alone gets all numbers in order.

use lanefs_sync::Padded;
use lanefs_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::cell::Cell;

/// Numbers that a thread takes at a time.
const BATCH: u32 = 64;

#[derive(Debug)]
pub(super) struct Generations {
    /// Tells volumes apart; never 0.
    volume: u64,
    next: Padded<AtomicU32>,
}

thread_local! {
    /// The volume that this thread took numbers of last, the next number, and how many are left.
    static BATCH_OF_THREAD: Cell<(u64, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

impl Generations {
    /// Returns the sequence that begins with `first`.
    pub(super) fn new(first: u32) -> Self {
        static VOLUMES: AtomicU64 = AtomicU64::new(1);
        Self { volume: VOLUMES.fetch_add(1, Relaxed), next: Padded(AtomicU32::new(first)) }
    }

    /// Returns the next one.
    pub(super) fn next(&self) -> u32 {
        let (volume, mut number, mut left) = BATCH_OF_THREAD.get();
        if volume != self.volume || left == 0 {
            (number, left) = (self.next.fetch_add(BATCH, Relaxed), BATCH);
        }
        BATCH_OF_THREAD.set((self.volume, number.wrapping_add(1), left - 1));
        lanefs_format::ext4_chksum(!0, &number.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn threads_get_different_ones_and_one_thread_gets_all_in_order() {
        let (some, same) = (Generations::new(7), Generations::new(7));
        let take = |from: &Generations| (0..200).map(|_| from.next()).collect::<Vec<_>>();
        assert_eq!(take(&some), take(&same));
        let all: HashSet<u32> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|_| s.spawn(|| take(&some))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).chain(take(&some)).collect()
        });
        assert_eq!(all.len(), 1000);
    }
}
