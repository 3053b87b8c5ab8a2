//! A snapshot of a file's map, read without a lock.
//!
//! A snapshot lists the runs of blocks that are mapped and written, and is immutable. A writer that
//! finds its blocks in it, and whose range lock keeps threads that free blocks away, overwrites
//! them without a handle. A thread that changes the map drops the snapshot; a new one is made after
//! enough misses.
//!
//! Invariant: a snapshot that can be loaded is true of every range that its reader has locked.
//! [`forget`] is called under the inode's lock, after the change. A snapshot of an earlier state
//! has an older generation and is not published.
//!
//! [`forget`]: Snapshot::forget

use arc_swap::ArcSwapOption;
use lanefs_sync::OnceLock;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Runs that a snapshot may have. A file with more is looked up in its map each time.
pub(crate) const MAX_RUNS: usize = 1 << 16;

/// Misses before a snapshot is made, and one more for so many runs: making it costs no more than
/// the lookups did. Hazard: dropping a snapshot visits the reader list of every thread, so a file
/// whose map changes all the time must not have one.
const LEAST_MISSES: u32 = 16;
const RUNS_PER_MISS: usize = 8;

/// The most misses that a file of [`MAX_RUNS`] has to wait for, beyond [`LEAST_MISSES`].
const MOST_PATIENCE: u32 = (MAX_RUNS / RUNS_PER_MISS) as u32;

/// Blocks that are adjacent both in the file and on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) lblk: u32,
    pub(crate) len: u32,
    pub(crate) block: u64,
}

#[derive(Debug)]
struct Runs {
    /// In order of `lblk`.
    runs: Box<[Run]>,
}

/// The snapshot of one file's map.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Made with the first snapshot: each thread that reads one enters a list that all threads
    /// visit, and the thread that drops it visits that list too. Files that only grow and sync
    /// never need it.
    seen: OnceLock<ArcSwapOption<Runs>>,
    generation: AtomicU64,
    /// Misses since the last snapshot was dropped.
    misses: AtomicU32,
    /// Misses needed beyond [`LEAST_MISSES`]: grows with the file's runs, and with each failure to
    /// read the map. `u32::MAX` for a file that has too many runs.
    patience: AtomicU32,
    /// Whether there is a snapshot. Changes under the inode's lock.
    made: AtomicBool,
}

impl Snapshot {
    /// Returns the block of `lblk`, and how many blocks from it on are contiguous, if the snapshot
    /// has `lblk` as mapped and written.
    pub(crate) fn find(&self, lblk: u32) -> Option<(u64, u32)> {
        let seen = self.seen.get()?.load();
        let runs = &seen.as_ref()?.runs;
        let at = runs.partition_point(|run| run.lblk <= lblk).checked_sub(1)?;
        let run = runs.get(at)?;
        let inner = lblk - run.lblk;
        (inner < run.len).then(|| (run.block + u64::from(inner), run.len - inner))
    }

    /// Drops the snapshot after a change of the map. The caller holds the inode's lock.
    pub(crate) fn forget(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        if self.made.swap(false, Ordering::AcqRel)
            && let Some(seen) = self.seen.get()
        {
            seen.store(None);
        }
        self.misses.store(0, Ordering::Relaxed);
        // The new map may have few enough runs.
        if self.patience.load(Ordering::Relaxed) == u32::MAX {
            self.patience.store(MOST_PATIENCE, Ordering::Relaxed);
        }
    }

    /// Counts a lookup that the snapshot could not answer. Returns the map's generation if it is
    /// time for a new snapshot.
    pub(crate) fn miss(&self) -> Option<u64> {
        let patience = self.patience.load(Ordering::Relaxed);
        let misses = self.misses.fetch_add(1, Ordering::Relaxed);
        let early = misses < patience.saturating_add(LEAST_MISSES);
        (!self.made.load(Ordering::Acquire) && !early).then(|| self.generation.load(Ordering::Acquire))
    }

    /// Notes the size of the next snapshot, whose making may then have to wait for more misses;
    /// `None` for a file that has too many runs: it has no snapshot until its map changes.
    pub(crate) fn expect(&self, runs: Option<usize>) {
        let patience = runs.map_or(u32::MAX, |runs| (runs / RUNS_PER_MISS) as u32);
        self.patience.store(patience, Ordering::Relaxed);
    }

    /// Notes that the map could not be read. The next attempt waits for twice as many misses, up to
    /// a bound: a device may heal, and a damaged map fails each time.
    pub(crate) fn not_read(&self) {
        let patience = self.patience.load(Ordering::Relaxed).saturating_mul(2);
        self.patience.store(patience.clamp(LEAST_MISSES, MOST_PATIENCE), Ordering::Relaxed);
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Publishes a snapshot of the map as it was in `generation`, unless it has changed since. The
    /// caller holds the inode's lock: no thread changes the map between the comparison and the
    /// store.
    pub(crate) fn publish(&self, runs: Vec<Run>, generation: u64) {
        if self.generation.load(Ordering::Acquire) == generation {
            self.seen.get_or_init(ArcSwapOption::default).store(Some(Arc::new(Runs { runs: runs.into() })));
            self.made.store(true, Ordering::Release);
        }
    }
}
