//! What of an open volume depends on its size.
//!
//! Growth publishes new [`Dimensions`]. Threads read the newest without a lock, as often as they
//! like, and may go on with older ones: those stay valid for what they describe, and are kept until
//! the volume is closed ([`History`]). So a handle that starts costs nothing more for growth.

use super::dir::DirParams;
use super::zones::Zones;
use lanefs_format::{Layout, Superblock};
use lanefs_sync::OnceLock;
use lanefs_sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// The parts of a volume's description that growth changes.
#[derive(Debug)]
pub(super) struct Dimensions {
    pub(super) layout: Layout,
    /// Shared by dimensions that differ within the last group.
    pub(super) zones: Arc<Zones>,
    pub(super) dirs: DirParams,
    pub(super) reserved_blocks: u64,
    /// Blocks that files can never have.
    pub(super) overhead: u64,
}

impl Dimensions {
    pub(super) fn new(sb: &Superblock, zones: Arc<Zones>, journal_blocks: u64) -> Self {
        let layout = sb.layout();
        let overhead = match u64::from(sb.raw().s_overhead_clusters.get()) {
            0 => layout.overhead().saturating_add(journal_blocks),
            stored => layout.blocks_of(stored),
        };
        let (dirs, reserved_blocks) = (DirParams::new(sb), sb.reserved_blocks_count());
        Self { layout, zones, dirs, reserved_blocks, overhead }
    }
}

/// All dimensions since the volume was opened. Only the newest are read.
#[derive(Debug)]
pub(super) struct History<T = Dimensions> {
    first: T,
    /// The later ones, numbered from 1: bucket `n` has 2^n of them.
    later: [OnceLock<Box<[OnceLock<T>]>>; 32],
    /// The number of the newest.
    newest: AtomicUsize,
}

impl<T> History<T> {
    pub(super) fn new(first: T) -> Self {
        Self { first, later: std::array::from_fn(|_| OnceLock::new()), newest: AtomicUsize::new(0) }
    }

    /// Returns the newest dimensions. One atomic load while there was no growth.
    pub(super) fn newest(&self) -> &T {
        match self.newest.load(Ordering::Acquire) {
            0 => &self.first,
            n => self.later(n).and_then(OnceLock::get).unwrap_or(&self.first),
        }
    }

    /// Makes `next` the newest. The caller excludes other calls.
    pub(super) fn push(&self, next: T) {
        let n = self.newest.load(Ordering::Acquire) + 1;
        if self.later(n).is_some_and(|place| place.set(next).is_ok()) {
            self.newest.store(n, Ordering::Release);
        }
    }

    fn later(&self, n: usize) -> Option<&OnceLock<T>> {
        let bucket = n.checked_ilog2()?;
        let len = 1 << bucket;
        let places = self.later.get(bucket as usize)?;
        places.get_or_init(|| (0..len).map(|_| OnceLock::new()).collect()).get(n - len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_read_and_older_ones_stay() {
        let history = History::new(0);
        let first = history.newest();
        for n in 1..=1000 {
            history.push(n);
            assert_eq!(*history.newest(), n);
        }
        assert_eq!(*first, 0);
        let seven = History::new(7);
        std::thread::scope(|scope| {
            scope.spawn(|| (8..2000).for_each(|n| seven.push(n)));
            let mut last = 7;
            while last < 1999 {
                let now = *seven.newest();
                assert!(now >= last);
                last = now;
            }
        });
    }
}
