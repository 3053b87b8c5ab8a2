//! A file's map as it was last seen, read without a lock.
//!
//! A snapshot lists the runs of blocks that are mapped and written. It is immutable: who changes
//! the map drops it, and who looks for it often enough afterwards makes a new one. So it is the
//! permission for an overwrite: whoever finds its bytes here, while its range lock keeps those who
//! would free blocks away, writes them without a handle.
//!
//! Invariant: a snapshot that can be loaded is true of every range that the loader has locked.
//! [`forget`] is called under the inode's lock, after the change; a snapshot made from what was
//! read before that carries an older generation and is not put in place.
//!
//! [`forget`]: Snapshot::forget

use crate::error::Result;
use crate::fs::inode::Node;
use crate::store::map::{Mapping, lookup, max_blocks};
use arc_swap::ArcSwapOption;
use lanefs_format::InodeFlags;
use lanefs_sync::OnceLock;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// A file with more runs is looked up in its map each time.
const MAX_RUNS: usize = 1 << 16;

/// Lookups that must miss a snapshot before it is made, and one more for so many runs: making it
/// costs no more than the lookups did. Hazard: taking one away costs a look at every thread's
/// readers, so a file whose map changes all the time must not get one.
const LEAST_MISSES: u32 = 16;
const RUNS_PER_MISS: usize = 8;

/// Blocks that follow each other, in the file and on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    lblk: u32,
    len: u32,
    block: u64,
}

#[derive(Debug)]
struct Runs {
    /// In order of `lblk`.
    runs: Box<[Run]>,
}

/// The last seen map of one file.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Not there before the first is made: each thread that looks into one takes a place in a list
    /// that all threads go through, and who drops one goes through it too. Files that only grow and
    /// sync never need it.
    seen: OnceLock<ArcSwapOption<Runs>>,
    generation: AtomicU64,
    /// Lookups since the last one was dropped.
    misses: AtomicU32,
    /// Misses that it takes beyond [`LEAST_MISSES`]: grows with the file's runs.
    patience: AtomicU32,
    /// Whether there is one. Changes under the inode's lock.
    made: AtomicBool,
}

impl Snapshot {
    /// The block that holds `lblk`, and how many follow it, if `lblk` is known as mapped and
    /// written.
    pub(crate) fn find(&self, lblk: u32) -> Option<(u64, u32)> {
        let seen = self.seen.get()?.load();
        let runs = &seen.as_ref()?.runs;
        let at = runs.partition_point(|run| run.lblk <= lblk).checked_sub(1)?;
        let run = runs.get(at)?;
        let inner = lblk - run.lblk;
        (inner < run.len).then(|| (run.block + u64::from(inner), run.len - inner))
    }

    /// The map was changed. The inode's lock is held.
    pub(crate) fn forget(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        if self.made.swap(false, Ordering::AcqRel)
            && let Some(seen) = self.seen.get()
        {
            seen.store(None);
        }
        self.misses.store(0, Ordering::Relaxed);
    }

    /// A lookup found nothing here: makes a new snapshot if that happens often. Whether it made
    /// one.
    pub(crate) fn miss(&self, node: &Node) -> Result<bool> {
        let patience = self.patience.load(Ordering::Relaxed);
        let misses = self.misses.fetch_add(1, Ordering::Relaxed);
        if self.made.load(Ordering::Acquire) || misses < patience.saturating_add(LEAST_MISSES) {
            return Ok(false);
        }
        let generation = self.generation.load(Ordering::Acquire);
        let Some(runs) = walk(node)? else {
            self.patience.store(u32::MAX, Ordering::Relaxed);
            return Ok(false);
        };
        self.patience.store((runs.len() / RUNS_PER_MISS) as u32, Ordering::Relaxed);
        // Under the inode's lock nobody changes the map between the comparison and the store.
        let _state = node.state();
        if self.generation.load(Ordering::Acquire) == generation {
            self.seen.get_or_init(ArcSwapOption::default).store(Some(Arc::new(Runs { runs: runs.into() })));
            self.made.store(true, Ordering::Release);
        }
        Ok(true)
    }
}

/// All runs of a file that may be written; `None` if there are too many.
fn walk(node: &Node) -> Result<Option<Vec<Run>>> {
    let fs = &*node.fs;
    let mut runs: Vec<Run> = Vec::new();
    let mut lblk = 0;
    for _ in 0..MAX_RUNS {
        let state = node.state();
        if state.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Ok(Some(Vec::new()));
        }
        let blocks =
            state.size.div_ceil(u64::from(fs.block_size)).min(max_blocks(fs, state.flags).into()) as u32;
        if lblk >= blocks {
            return Ok(Some(runs));
        }
        let mapping = lookup(fs, node.ino, &state, lblk)?;
        drop(state);
        if let Mapping::Mapped { block, len, unwritten: false } = mapping {
            match runs.last_mut() {
                Some(last) if last.lblk + last.len == lblk && last.block + u64::from(last.len) == block => {
                    last.len += len;
                }
                _ => runs.push(Run { lblk, len, block }),
            }
        }
        lblk = lblk.saturating_add(mapping.len());
    }
    Ok(None)
}
