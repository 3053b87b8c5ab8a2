//! Where the time of an open volume goes: [`Stats`], which can be read at any time.

#[cfg(test)]
mod tests;
mod text;

use crate::fs::Fs;
use lanefs_device::{BlockDevice, Cached};
use lanefs_stats::Snapshot;

/// Counters and times since the volume was opened. Displayed as a table for people;
/// [`to_json`](Self::to_json) is for programs.
///
/// Exact once the threads that use the volume are idle; until then the values belong to no single
/// moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// How long operations took.
    pub times: Times,
    /// How often events happened.
    pub counts: Counts,
    /// The page cache.
    pub cache: CacheUse,
    /// The journal: handles, credits, commits and their phases.
    pub journal: lanefs_journal::Stats,
    /// The I/O of the volume that goes through the page cache of the system, as it was chosen when
    /// the volume was opened. `None` for a medium without one.
    pub cached: Option<Cached>,
}

/// Times in nanoseconds. Reads and writes are counted each time and timed once in 64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Opening a file by its path, or making it.
    pub open: Snapshot,
    /// Reading through the page cache.
    pub read: Snapshot,
    /// Reading past the page cache.
    pub read_direct: Snapshot,
    /// Writing into the page cache.
    pub write: Snapshot,
    /// Writing past the page cache, overwrites and others.
    pub write_direct: Snapshot,
    /// `sync_all` of a file.
    pub fsync: Snapshot,
    /// `sync_data` of a file.
    pub fdatasync: Snapshot,
    /// Reading pages from the device, for a read, for readahead, or for a write of a part of a
    /// block.
    pub load: Snapshot,
    /// Waiting for the lock of a file's content. Calls that did not wait are not counted.
    pub range_wait: Snapshot,
    /// Waiting of writers for memory: too many pages were dirty.
    pub throttle: Snapshot,
    /// Searching for free blocks in core.
    pub reserve: Snapshot,
    /// Writing out a batch of dirty pages of a file, and mapping it.
    pub writeback: Snapshot,
}

/// Counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Direct overwrites of mapped, written blocks inside of i_size, which started no handle.
    pub overwrites: u64,
    /// Direct overwrites that started a handle, with `overwrite=journal`.
    pub overwrites_journalled: u64,
    /// Writes that each journalled the inode, with `i_version=always`.
    pub versions_journalled: u64,
    /// Locks of content taken again, because i_size had moved before they were held.
    pub range_retries: u64,
    /// Commits that an operation waited for, because no other blocks than those that they free were
    /// left.
    pub space_retries: u64,
    /// Bytes of dirty pages that were written out.
    pub bytes_written_back: u64,
}

/// Figures of the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUse {
    /// Reads that found all their bytes.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Bytes of the pages in use.
    pub used: u64,
    /// Bytes of blocks that are dirty or being written out.
    pub dirty: u64,
    /// Dirty bytes beyond which writers are made to wait.
    pub dirty_limit: u64,
    /// Files with dirty blocks.
    pub dirty_files: u64,
}

impl Fs {
    /// Returns the counters and times so far.
    pub(crate) fn stats(&self) -> Stats {
        let of = &*self.counters;
        let times = Times {
            open: of.open.snapshot(),
            read: of.read.snapshot(),
            read_direct: of.read_direct.snapshot(),
            write: of.write.snapshot(),
            write_direct: of.write_direct.snapshot(),
            fsync: of.fsync.snapshot(),
            fdatasync: of.fdatasync.snapshot(),
            load: of.load.snapshot(),
            range_wait: of.range_wait.snapshot(),
            throttle: of.throttle.snapshot(),
            reserve: of.reserve.snapshot(),
            writeback: of.writeback.snapshot(),
        };
        let counts = Counts {
            overwrites: times.write_direct.count.saturating_sub(of.planned.get()),
            overwrites_journalled: of.overwrites_journalled.get(),
            versions_journalled: of.versions_journalled.get(),
            range_retries: of.range_retries.get(),
            space_retries: of.space_retries.get(),
            bytes_written_back: of.bytes_written_back.get(),
        };
        let cache = self.pages.stats();
        let cache = CacheUse {
            hits: cache.hits,
            misses: cache.misses,
            evicted: cache.evicted,
            used: cache.used,
            dirty: cache.dirty,
            dirty_limit: cache.dirty_limit,
            dirty_files: cache.dirty_files,
        };
        Stats { times, counts, cache, journal: self.journal.stats(), cached: self.device.cached() }
    }
}
