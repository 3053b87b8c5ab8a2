//! A small number for each thread that allocates on a volume, so that threads begin in groups of
//! their own.
//!
//! Lanes are counted for each volume: a volume that one thread writes is laid out the same each
//! time.

use lanefs_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::cell::Cell;

#[derive(Debug)]
pub(super) struct Lanes {
    /// Tells volumes apart; never 0.
    volume: u64,
    next: AtomicU32,
}

thread_local! {
    /// The volume that this thread allocated on last, and its lane there.
    static LANE: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

impl Lanes {
    pub(super) fn new() -> Self {
        static VOLUMES: AtomicU64 = AtomicU64::new(1);
        Self { volume: VOLUMES.fetch_add(1, Relaxed), next: AtomicU32::new(0) }
    }

    /// Returns this thread's lane.
    pub(super) fn mine(&self) -> u32 {
        LANE.with(|lane| {
            if lane.get().0 != self.volume {
                lane.set((self.volume, self.next.fetch_add(1, Relaxed)));
            }
            lane.get().1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_differ_and_each_volume_counts_from_zero() {
        let (a, b) = (Lanes::new(), Lanes::new());
        assert_eq!((a.mine(), a.mine()), (0, 0));
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!((a.mine(), b.mine()), (1, 0)));
        });
        assert_eq!(b.mine(), 1);
    }
}
