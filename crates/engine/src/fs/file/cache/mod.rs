//! The page cache: file data in memory, without any I/O of its own.
//!
//! A volume has one [`PageCache`], which owns the memory and its bound. Each file that has pages
//! has a [`FileCache`]: chunks of sixteen pages, each behind a reader-writer lock. A caller reads
//! cached bytes with [`FileCache::read`]; it fills or changes blocks through a locked
//! [`span`](FileCache::span). Writeback takes dirty blocks with [`FileCache::take_dirty`], in order
//! of position. A thread that changes a page in writeback copies it first.
//!
//! Locks:
//! - Chunks ([`Level::Page`](lanefs_sync::order::Level::Page)) of one file are locked in ascending
//!   order, and no thread locks chunks of two files.
//! - Below them come a file's set of dirty chunks, then the list of dirty files; and a shard of the
//!   pool, then the arena. The cache calls no function of its caller under any of these.
//! - A hit takes its chunk's lock and writes to no other shared memory.
//!
//! Hazards:
//! - The memory of pages is reused and not zeroed: a block is up to date only if its bytes are the
//!   file's.
//! - A span is filled under its chunk's lock, so older content from the device never replaces newer
//!   content.

mod arena;
mod background;
mod chunk;
mod cut;
mod dirty;
mod dirty_chunks;
mod file;
mod geometry;
mod index;
mod locked;
mod page;
mod pool;
mod read_ahead;
mod span;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod writeback;

pub(crate) use background::{Background, WriteOutJob};
pub(crate) use cut::Edge;
pub(crate) use dirty::Pressure;
pub(crate) use file::FileCache;
pub(crate) use read_ahead::ReadAhead;
pub(crate) use span::Segment;
pub(crate) use writeback::{Bytes, Item, WritebackBatch};

use dirty::Dirty;
use geometry::Geometry;
use lanefs_stats::Counter;
use pool::Pool;
use std::sync::Arc;
use streams::Streams;

/// The page cache of a volume. See the head of the file.
#[derive(Debug)]
pub(crate) struct PageCache {
    geo: Geometry,
    pool: Pool,
    dirty: Dirty,
    streams: Streams,
    hits: Counter,
    misses: Counter,
}

/// Figures of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStats {
    /// Reads that found all their bytes.
    pub(crate) hits: u64,
    /// Reads that did not.
    pub(crate) misses: u64,
    /// Pages evicted.
    pub(crate) evicted: u64,
    /// Bytes of the pages in use.
    pub(crate) used: u64,
    /// Bytes of free pages that are kept for later use.
    pub(crate) free: u64,
    /// Bytes of the files' indexes.
    pub(crate) index: u64,
    /// Bytes of blocks that are dirty or being written out.
    pub(crate) dirty: u64,
    /// Dirty bytes beyond which writers wait.
    pub(crate) dirty_limit: u64,
    /// Files with dirty blocks, or blocks that are being written out.
    pub(crate) dirty_files: u64,
}

impl PageCache {
    /// Makes a cache for blocks of `block_size` bytes (1024 to 65536, a power of two), with at most
    /// `bound` bytes of memory, and at least one chunk. Pages that are dirty, in writeback or
    /// locked may exceed the bound. Pages and the files' indexes count; the state of a chunk, 72 to
    /// 552 bytes, does not.
    pub(crate) fn new(block_size: u32, bound: u64) -> Arc<Self> {
        let geo = Geometry::new(block_size);
        let pool = Pool::new(geo, bound);
        let (hits, misses) = (Counter::new(), Counter::new());
        Arc::new(Self { geo, pool, dirty: Dirty::new(bound), streams: Streams::default(), hits, misses })
    }

    /// Lets go of all pages that are neither dirty nor in use.
    pub(crate) fn empty(&self) {
        self.pool.empty();
    }

    /// Leaves `bytes` of the bound to the journal's memory, and evicts pages above the rest.
    pub(crate) fn leave_to_others(&self, bytes: u64) {
        self.pool.leave_to_others(bytes);
    }

    /// Returns the bytes of blocks that are dirty or being written out.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.blocks() * self.geo.block_size() as u64
    }

    /// Returns what the amount of dirty bytes asks of a writer.
    pub(crate) fn pressure(&self) -> Pressure {
        self.dirty.limits.pressure(self.dirty_bytes())
    }

    /// Returns whether a file that is written from front to back waits to be written out.
    pub(crate) fn has_streams(&self) -> bool {
        self.streams.any()
    }

    /// Returns the files that have dirty blocks or blocks in writeback, the longest dirty first.
    pub(crate) fn dirty_files(&self) -> Vec<Arc<FileCache>> {
        self.dirty.all()
    }

    /// Returns the figures as they are now.
    pub(crate) fn stats(&self) -> CacheStats {
        let (used, free, evicted) = self.pool.count();
        let bytes = |pages: usize| (pages * self.geo.page_size()) as u64;
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            evicted,
            used: bytes(used),
            free: bytes(free),
            index: self.pool.index_bytes() as u64,
            dirty: self.dirty_bytes(),
            dirty_limit: self.dirty.limits.throttle,
            dirty_files: self.dirty.files() as u64,
        }
    }
}
