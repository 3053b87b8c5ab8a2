//! The cached pages of one file.
//!
//! Invariants:
//! - A chunk that no thread has locked is in `dirty` if and only if it has a dirty block.
//! - A file with dirty chunks or a writeback is in the list of the volume.
//!
//! Hazard: dropping the last reference drops dirty pages too. The inode keeps one until they are
//! written.

use super::PageCache;
use super::chunk::Chunk;
use super::dirty_chunks::DirtyChunks;
use super::geometry::{Geometry, runs};
use super::index::{Index, Slot};
use super::stream;
use lanefs_sync::atomic::{AtomicU32, Ordering};
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The cached pages of one file: some hundred bytes, and the pages. Dropping the last reference
/// drops all pages, dirty ones too.
#[derive(Debug)]
pub(crate) struct FileCache {
    me: Weak<Self>,
    pub(super) cache: Arc<PageCache>,
    ino: u32,
    pub(super) index: Index,
    pub(super) dirty: Mutex<DirtyChunks>,
    /// Signals that a writeback has taken enough of a stream whose writer was far ahead.
    taken: Condvar,
    /// The number of dirty chunks when the file last asked to be written out as a stream.
    ahead: AtomicU32,
}

impl FileCache {
    /// Returns a cache without pages for inode `ino`, which is only a name here.
    pub(crate) fn new(cache: &Arc<PageCache>, ino: u32) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            cache: Arc::clone(cache),
            ino,
            index: Index::default(),
            dirty: Mutex::default(),
            taken: Condvar::new(),
            ahead: AtomicU32::new(0),
        })
    }

    /// Returns the number of the inode.
    pub(crate) fn ino(&self) -> u32 {
        self.ino
    }

    /// Copies the bytes at `offset`, up to the first block that is not cached. Returns how many: if
    /// fewer than `buf` takes, the block of byte `offset` + that number is not cached.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.copy_out::<true>(offset, buf)
    }

    /// Reads as [`read`](Self::read) does, but stops at the first chunk that another thread has
    /// locked.
    pub(crate) fn try_read(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.copy_out::<false>(offset, buf)
    }

    fn copy_out<const WAIT: bool>(&self, offset: u64, buf: &mut [u8]) -> usize {
        let geo = self.geo();
        let mut done = 0;
        while done < buf.len() {
            let Some((no, inner)) = geo.place(offset.saturating_add(done as u64)) else { break };
            let n = (buf.len() - done).min(geo.chunk_size() - inner);
            let copied = self.index.get(no).map_or(0, |slot| {
                let chunk = match WAIT {
                    true => Some(Ordered::take(Level::Page, no.into(), || slot.read())),
                    false => Ordered::try_take(Level::Page, no.into(), || slot.try_read()),
                };
                let chunk = chunk.as_ref().and_then(|chunk| chunk.as_deref());
                chunk.map_or(0, |chunk| chunk.copy_out(geo, inner, &mut buf[done..done + n]))
            });
            done += copied;
            if copied < n {
                break;
            }
        }
        match done == buf.len() {
            true => self.cache.hits.add(1),
            false => self.cache.misses.add(1),
        }
        done
    }

    /// Has the processor fetch byte `offset`, for a write that comes. Most of a small write's time
    /// goes into the fetch, which the caller's locks and checks take as long as.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        let geo = self.geo();
        let Some((no, inner)) = geo.place(offset) else { return };
        let Some(slot) = self.index.get(no).and_then(|slot| slot.try_read()) else { return };
        let page = slot.as_ref().and_then(|chunk| chunk.pages.get(inner / geo.page_size())?.as_ref());
        page.inspect(|page| page.prefetch(inner % geo.page_size()));
    }

    /// Copies `bytes` over blocks that are dirty already, which need not be filled, claimed or
    /// counted. Stops at the first that is not dirty, or whose page is in writeback. Returns how
    /// many bytes were copied: the rest takes a [`span`](Self::span).
    pub(crate) fn overwrite(&self, offset: u64, bytes: &[u8]) -> usize {
        let geo = self.geo();
        let mut done = 0;
        while done < bytes.len() {
            let Some((no, inner)) = geo.place(offset.saturating_add(done as u64)) else { break };
            let n = (bytes.len() - done).min(geo.chunk_size() - inner);
            let copied = self.index.get(no).map_or(0, |slot| {
                let mut chunk = Ordered::take(Level::Page, no.into(), || slot.write());
                chunk.as_deref_mut().map_or(0, |chunk| chunk.overwrite(geo, inner, &bytes[done..done + n]))
            });
            done += copied;
            if copied < n {
                break;
            }
        }
        done
    }

    /// Returns the runs of `blocks` that are not cached. Another thread may change that before it
    /// returns.
    #[cfg(test)]
    pub(crate) fn missing(&self, blocks: Range<u32>) -> Vec<Range<u32>> {
        let geo = self.geo();
        let mut missing = Vec::new();
        for no in geo.chunks(&blocks) {
            let cached = self.index.get(no).map_or(0, |slot| {
                let chunk = Ordered::take(Level::Page, no.into(), || slot.read());
                chunk.as_deref().map_or(0, |chunk| chunk.uptodate)
            });
            push_runs(&mut missing, geo.first_block(no), geo.mask(no, &blocks) & !cached);
        }
        missing
    }

    /// Returns whether any of `blocks` is dirty or in writeback. While the caller keeps writers
    /// away from them, the answer only changes from yes to no.
    pub(crate) fn is_busy(&self, blocks: Range<u32>) -> bool {
        let geo = self.geo();
        geo.chunks(&blocks).any(|no| {
            let busy = |slot: &Slot| {
                let chunk = Ordered::take(Level::Page, no.into(), || slot.read());
                chunk.as_deref().map_or(0, Chunk::busy)
            };
            self.index.get(no).map_or(0, busy) & geo.mask(no, &blocks) != 0
        })
    }

    /// Returns whether any block is dirty. Blocks in writeback do not count;
    /// [`is_busy`](Self::is_busy) counts them too.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.lock().is_empty()
    }

    /// Returns the first dirty chunk from `chunk` on.
    pub(super) fn next_dirty(&self, chunk: u32) -> Option<u32> {
        self.dirty.lock().next(chunk)
    }

    pub(super) fn became_dirty(&self, chunk: u32) {
        let mut dirty = self.dirty.lock();
        let left = dirty.insert(chunk, || self.cache.dirty.add(self.weak()));
        self.cache.dirty.remove(left);
        if dirty.stream.goes_on(self.geo(), chunk) {
            self.ahead.store(dirty.len(), Ordering::Relaxed);
            self.cache.streams.add(&self.me, chunk);
        }
    }

    /// Returns whether `chunk` lies behind the one that became dirty last.
    pub(super) fn is_next(&self, chunk: u32) -> bool {
        self.dirty.lock().stream.is_next(chunk)
    }

    /// Notes that a writeback is about to take dirty blocks.
    pub(super) fn writeback_begins(&self) {
        self.dirty.lock().writeback_begins();
    }

    pub(super) fn writeback_ends(&self) {
        let mut dirty = self.dirty.lock();
        let left = dirty.writeback_ends();
        self.cache.dirty.remove(left);
    }

    /// Returns whether the file is a stream whose writer is far ahead of the device, and should
    /// wait.
    pub(crate) fn is_ahead(&self) -> bool {
        let most = stream::most_dirty(self.geo());
        if self.ahead.load(Ordering::Relaxed) <= most {
            return false;
        }
        let now = self.dirty.lock().len();
        self.ahead.store(now, Ordering::Relaxed);
        now > most
    }

    /// Waits, at most for `most`, until other threads have written out so much that the writer is
    /// not far ahead any more. Returns `false` if the time ran out.
    pub(crate) fn wait_while_ahead(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut dirty = self.dirty.lock();
        while dirty.len() > stream::most_dirty(self.geo()) {
            if self.taken.wait_until(&mut dirty, until).timed_out() {
                return false;
            }
        }
        self.ahead.store(dirty.len(), Ordering::Relaxed);
        true
    }

    pub(super) fn became_clean(&self, chunk: u32) {
        let mut dirty = self.dirty.lock();
        let left = dirty.remove(chunk);
        self.cache.dirty.remove(left);
        if dirty.len() == stream::most_dirty(self.geo()) {
            self.taken.notify_all();
        }
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.me)
    }

    pub(super) fn geo(&self) -> Geometry {
        self.cache.geo
    }

    pub(super) fn shard(&self, chunk: u32) -> usize {
        self.cache.pool.shard(self.ino, chunk)
    }

    pub(super) fn slot(&self, chunk: u32) -> Option<&Slot> {
        self.index.get(chunk)
    }

    /// Returns the slot of a chunk; makes it if there is none.
    pub(super) fn slot_of(&self, chunk: u32) -> &Slot {
        let (slot, made) = self.index.get_or_make(chunk);
        if made != 0 {
            self.cache.pool.index_grew(made);
        }
        slot
    }
}

impl Drop for FileCache {
    fn drop(&mut self) {
        let (cache, ino) = (&self.cache, self.ino);
        let bytes = self.index.drain(&mut |no, mut chunk| {
            let shard = cache.pool.shard(ino, no);
            cache.dirty.change(chunk.busy().count_ones(), 0);
            cache.pool.give_back(shard, chunk.pages.iter_mut().rev().filter_map(Option::take));
            if chunk.listed {
                cache.pool.note_stale(shard, 1);
            }
        });
        cache.pool.index_gone(bytes);
        cache.dirty.remove(self.dirty.get_mut().clear());
    }
}

/// Adds the runs of a set of blocks, counted from `first`, and joins adjacent ones.
pub(super) fn push_runs(list: &mut Vec<Range<u32>>, first: u32, set: u64) {
    for run in runs(set) {
        let run = first + run.start..first.saturating_add(run.end);
        match list.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => list.push(run),
        }
    }
}
