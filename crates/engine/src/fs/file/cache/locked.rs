//! A chunk that is locked to be changed. Dropping the guard brings the counts, the file's set of
//! dirty chunks and the clock in line with the changes, before it unlocks the chunk.

use super::chunk::Chunk;
use super::file::FileCache;
use super::geometry::{Geometry, PAGES};
use super::index::Slot;
use super::page::Page;
use super::pool::PoolEntry;
use lanefs_sync::RwLockWriteGuard;
use lanefs_sync::order::{Level, Ordered};
use std::ops::Range;

/// A locked chunk. See the head of the file.
#[derive(Debug)]
pub(super) struct Locked<'f> {
    file: &'f FileCache,
    pub(super) no: u32,
    slot: Ordered<RwLockWriteGuard<'f, Option<Box<Chunk>>>>,
    /// How many blocks were dirty or in writeback when it was locked.
    busy: u32,
    was_dirty: bool,
    was_empty: bool,
}

impl FileCache {
    /// Locks a chunk; makes its slot if there is none.
    pub(super) fn lock(&self, chunk: u32) -> Locked<'_> {
        Locked::new(self, chunk, self.slot_of(chunk))
    }

    /// Locks as [`lock`](Self::lock) does; `None` if another thread holds the chunk.
    pub(super) fn try_lock(&self, chunk: u32) -> Option<Locked<'_>> {
        Locked::try_new(self, chunk, self.slot_of(chunk))
    }

    /// Calls `f` with each chunk that holds any of `blocks` and has ever had pages, locked, in
    /// order, and with those blocks as a set.
    pub(super) fn each_locked(&self, blocks: &Range<u32>, mut f: impl FnMut(&mut Locked<'_>, u64)) {
        self.index.walk(&self.geo().chunks(blocks), &mut |no, slot| {
            let mut locked = Locked::new(self, no, slot);
            f(&mut locked, self.geo().mask(no, blocks));
        });
    }

    /// Lets go of clean pages far behind the writer of a stream, but not of chunks that were used.
    pub(crate) fn give_pages_behind(&self) {
        let geo = self.geo();
        let chunks = self.dirty.lock().stream.give(geo);
        if chunks.is_empty() {
            return;
        }
        self.each_locked(&(geo.first_block(chunks.start)..geo.first_block(chunks.end)), |locked, _| {
            let Some(chunk) = locked.get_mut().filter(|chunk| !chunk.is_referenced()) else { return };
            chunk.uptodate &= chunk.busy();
            locked.release_pages();
        });
    }
}

impl<'f> Locked<'f> {
    /// Waits for the chunk's lock.
    fn new(file: &'f FileCache, no: u32, slot: &'f Slot) -> Self {
        Self::of(file, no, Ordered::take(Level::Page, no.into(), || slot.write()))
    }

    /// Locks the chunk; `None` if another thread holds it.
    fn try_new(file: &'f FileCache, no: u32, slot: &'f Slot) -> Option<Self> {
        Some(Self::of(file, no, Ordered::try_take(Level::Page, no.into(), || slot.try_write())?))
    }

    fn of(file: &'f FileCache, no: u32, slot: Ordered<RwLockWriteGuard<'f, Option<Box<Chunk>>>>) -> Self {
        let (busy, was_dirty, was_empty) = match slot.as_deref() {
            Some(chunk) => (chunk.busy().count_ones(), chunk.dirty != 0, chunk.is_empty()),
            None => (0, false, true),
        };
        Self { file, no, slot, busy, was_dirty, was_empty }
    }

    fn geo(&self) -> Geometry {
        self.file.cache.geo
    }

    fn shard(&self) -> usize {
        self.file.shard(self.no)
    }

    /// Returns the chunk, if it exists.
    pub(super) fn get(&self) -> Option<&Chunk> {
        self.slot.as_deref()
    }

    /// Returns the chunk, if it exists, to change it.
    pub(super) fn get_mut(&mut self) -> Option<&mut Chunk> {
        self.slot.as_deref_mut()
    }

    /// Returns the chunk; makes it if there is none.
    pub(super) fn chunk(&mut self) -> &mut Chunk {
        self.slot.get_or_insert_default()
    }

    pub(super) fn uptodate(&self) -> u64 {
        self.get().map_or(0, |chunk| chunk.uptodate)
    }

    /// Returns the blocks that are dirty, or that will be if their writeback fails.
    pub(super) fn pending(&self) -> u64 {
        self.get().map_or(0, |chunk| chunk.dirty | chunk.writeback & !chunk.cancelled)
    }

    /// Gives `blocks` pages that no writeback shares: adds pages that are not there, and replaces a
    /// page in writeback by a copy.
    pub(super) fn own_pages(&mut self, blocks: u64) {
        let (geo, shard, pool) = (self.geo(), self.shard(), &self.file.cache.pool);
        let highest = (0..PAGES).rev().find(|p| blocks & geo.page_mask(*p) != 0);
        let room = highest.map_or(0, |p| p + 1);
        let chunk = self.slot.get_or_insert_with(|| Chunk::with_room(room));
        chunk.make_room(room);
        let pages = &mut chunk.pages;
        let mut owned = |p: usize| pages[p].as_mut().is_some_and(|page| page.get_mut().is_some());
        let wanted = |p: &usize| blocks & geo.page_mask(*p) != 0 && !owned(*p);
        let wanted = (0..PAGES).filter(wanted).fold(0_u16, |set, p| set | 1 << p);
        let (mut fresh, mut left) = ([const { None }; PAGES], wanted);
        let n = wanted.count_ones() as usize;
        let in_order = n == PAGES || n > 0 && self.file.is_next(self.no);
        pool.take(shard, n, in_order, |page| {
            fresh[left.trailing_zeros() as usize % PAGES] = Some(page);
            left &= left.wrapping_sub(1);
        });
        for (old, page) in pages.iter_mut().zip(&mut fresh) {
            let Some(copy) = page.as_mut().and_then(Page::get_mut) else { continue };
            if let Some(held) = old {
                copy.copy_from_slice(held);
            }
            std::mem::swap(old, page);
        }
        pool.give_back(shard, fresh.into_iter().flatten());
    }

    /// Lets go of pages without a block that is up to date.
    pub(super) fn release_pages(&mut self) {
        let (geo, shard, pool) = (self.geo(), self.shard(), &self.file.cache.pool);
        if let Some(chunk) = self.get_mut() {
            pool.give_back(shard, chunk.take_unused(geo).rev());
        }
    }

    /// Copies `bytes` to place `inner` of the chunk, and makes their blocks up to date and dirty.
    /// In a block that was not up to date, the other bytes become zeros.
    pub(super) fn copy_in(&mut self, bytes: &[u8], inner: usize) {
        let geo = self.geo();
        let touched = geo.touched(&(inner..inner + bytes.len()));
        let missing = touched & !self.uptodate();
        let whole = geo.whole(&(inner..inner + bytes.len()));
        if missing != 0 {
            self.own_pages(missing);
            self.chunk().each_run(geo, missing & !whole, |_, bytes| bytes.fill(0));
        }
        let chunk = self.chunk();
        // A block that is written in part would have to be read from the device if it were not
        // cached. A block that is written whole, or is dirty, would not.
        chunk.reference_blocks(geo, chunk.uptodate & touched & !whole & !chunk.busy());
        let (mut at, mut rest) = (inner, bytes);
        while !rest.is_empty() {
            let (p, start) = (at / geo.page_size(), at % geo.page_size());
            let (now, later) = rest.split_at(rest.len().min(geo.page_size() - start));
            if !self.chunk().copy_to_page(p, start, now) {
                self.own_pages(geo.page_mask(p));
                self.chunk().copy_to_page(p, start, now);
            }
            (at, rest) = (at + now.len(), later);
        }
        let chunk = self.chunk();
        chunk.uptodate |= touched;
        chunk.dirty |= touched;
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let (file, no) = (self.file, self.no);
        let (geo, cache) = (file.geo(), &file.cache);
        let Some(chunk) = self.slot.as_deref_mut() else { return };
        cache.dirty.change(self.busy, chunk.busy().count_ones());
        match (self.was_dirty, chunk.dirty != 0) {
            (false, true) => file.became_dirty(no),
            (true, false) => file.became_clean(no),
            _ => {}
        }
        if chunk.is_empty() {
            match chunk.listed {
                // The clock's hand will remove the entry.
                true if self.was_empty => {}
                true => cache.pool.note_stale(file.shard(no), 1),
                false => *self.slot = None,
            }
        } else if !chunk.listed {
            let pages = chunk.evictable(geo).count_ones() as usize;
            if pages != 0 {
                chunk.listed = true;
                // Pages that were written out, and not used since, go to the passing queue.
                let passing = if self.busy > 0 && !chunk.is_referenced() { pages } else { 0 };
                cache.pool.list(file.shard(no), PoolEntry { file: file.weak(), chunk: no, passing });
            }
        }
    }
}
