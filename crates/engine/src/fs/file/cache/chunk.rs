//! A chunk: sixteen pages of a file, and the state of their blocks.
//!
//! A chunk has room for its first page, its first four, or all sixteen, and is replaced by a larger
//! one when it needs more: most files are small. The pages lie in the chunk itself, so that a write
//! follows no further pointer to them.
//!
//! Invariants, whenever the lock is free:
//! - A page is there exactly if one of its blocks is up to date.
//! - Dirty blocks are up to date.
//! - `cancelled` is a part of `writeback`.
//!
//! Hazard: bytes of blocks that are not up to date may belong to another file. They are never
//! copied out.

use super::geometry::{Geometry, PAGES, runs};
use super::page::Page;
use lanefs_sync::atomic::{AtomicU16, Ordering};
use std::array;
use std::ops::Range;

/// A chunk with room for some pages.
pub(super) type Chunk = ChunkOf<[Option<Page>]>;

/// A chunk. See the head of the file. All sets are of blocks, bit 0 for the first of the chunk.
#[derive(Debug, Default)]
pub(super) struct ChunkOf<P: ?Sized> {
    /// Blocks whose bytes are the file's.
    pub(super) uptodate: u64,
    /// Blocks whose bytes are newer than the device's.
    pub(super) dirty: u64,
    /// Blocks that a writeback has taken.
    pub(super) writeback: u64,
    /// Blocks in writeback that a cut has dropped: they do not become dirty again if it fails.
    pub(super) cancelled: u64,
    /// Pages that were used since the clock's hand last passed.
    referenced: AtomicU16,
    /// Whether the clock has an entry for this chunk.
    pub(super) listed: bool,
    /// The first pages. There is none behind them.
    pub(super) pages: P,
}

impl Default for Box<Chunk> {
    fn default() -> Self {
        Chunk::with_room(1)
    }
}

impl Chunk {
    /// Makes a chunk with room for its first `pages` pages, and without any.
    pub(super) fn with_room(pages: usize) -> Box<Self> {
        match pages {
            0..=1 => Box::<ChunkOf<[Option<Page>; 1]>>::default(),
            2..=4 => Box::<ChunkOf<[Option<Page>; 4]>>::default(),
            _ => Box::<ChunkOf<[Option<Page>; PAGES]>>::default(),
        }
    }

    /// Replaces the chunk by a larger one if it has no room for its first `pages` pages.
    pub(super) fn make_room(self: &mut Box<Self>, pages: usize) {
        if pages <= self.pages.len() {
            return;
        }
        let mut larger = Self::with_room(pages);
        larger.uptodate = self.uptodate;
        larger.dirty = self.dirty;
        larger.writeback = self.writeback;
        larger.cancelled = self.cancelled;
        larger.referenced = AtomicU16::new(self.forget_references());
        larger.listed = self.listed;
        self.pages.iter_mut().zip(&mut larger.pages).for_each(|(old, new)| *new = old.take());
        *self = larger;
    }

    /// Copies bytes out from `inner` on, up to the first block that is not up to date. Returns how
    /// many.
    #[inline]
    pub(super) fn copy_out(&self, geo: Geometry, inner: usize, buf: &mut [u8]) -> usize {
        let touched = geo.touched(&(inner..inner + buf.len()));
        let missing = touched & !self.uptodate;
        let len = match missing {
            0 => buf.len(),
            _ => (missing.trailing_zeros() as usize * geo.block_size()).saturating_sub(inner),
        };
        let (mut at, mut rest) = (inner, &mut buf[..len]);
        while !rest.is_empty() {
            let (page, start) = (at / geo.page_size(), at % geo.page_size());
            let n = rest.len().min(geo.page_size() - start);
            let (now, later) = rest.split_at_mut(n);
            if let Some(Some(bytes)) = self.pages.get(page) {
                now.copy_from_slice(&bytes[start..start + n]);
            }
            self.reference(1 << page);
            (at, rest) = (at + n, later);
        }
        len
    }

    /// Copies bytes from `inner` on over dirty blocks, up to the first that is not dirty or whose
    /// page is in writeback. Returns how many.
    #[inline]
    pub(super) fn overwrite(&mut self, geo: Geometry, inner: usize, bytes: &[u8]) -> usize {
        let clean = geo.touched(&(inner..inner + bytes.len())) & !self.dirty;
        let len = match clean {
            0 => bytes.len(),
            _ => (clean.trailing_zeros() as usize * geo.block_size()).saturating_sub(inner),
        };
        let (mut at, mut rest) = (inner, &bytes[..len]);
        while !rest.is_empty() {
            let (p, start) = (at / geo.page_size(), at % geo.page_size());
            let (now, later) = rest.split_at(rest.len().min(geo.page_size() - start));
            if !self.copy_to_page(p, start, now) {
                break;
            }
            (at, rest) = (at + now.len(), later);
        }
        at - inner
    }

    /// Copies into a page. Returns `false` if the page is not there, or if a writeback shares it.
    #[inline]
    pub(super) fn copy_to_page(&mut self, page: usize, start: usize, bytes: &[u8]) -> bool {
        let page = self.pages.get_mut(page).and_then(Option::as_mut).and_then(Page::get_mut);
        let Some(page) = page else { return false };
        page[start..start + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Notes that pages were used; writes only what was not noted before.
    #[inline]
    pub(super) fn reference(&self, pages: u16) {
        if self.referenced.load(Ordering::Relaxed) & pages != pages {
            self.referenced.fetch_or(pages, Ordering::Relaxed);
        }
    }

    /// Notes that the pages of `blocks` were used.
    pub(super) fn reference_blocks(&self, geo: Geometry, blocks: u64) {
        if blocks != 0 {
            let pages = (0..PAGES).filter(|p| blocks & geo.page_mask(*p) != 0);
            self.reference(pages.fold(0, |set, p| set | 1 << p));
        }
    }

    /// Returns whether any page was used since the clock's hand last passed.
    pub(super) fn is_referenced(&self) -> bool {
        self.referenced.load(Ordering::Relaxed) != 0
    }

    /// Returns the pages that were used since the last call, and forgets them.
    pub(super) fn forget_references(&mut self) -> u16 {
        std::mem::take(self.referenced.get_mut())
    }

    /// Returns the blocks whose pages must not be evicted.
    pub(super) fn busy(&self) -> u64 {
        self.dirty | self.writeback
    }

    /// Returns whether there is neither a page nor a writeback.
    pub(super) fn is_empty(&self) -> bool {
        self.uptodate == 0 && self.writeback == 0
    }

    /// Returns the pages that may be evicted.
    pub(super) fn evictable(&self, geo: Geometry) -> u16 {
        if self.uptodate & !self.busy() == 0 {
            return 0;
        }
        let busy = self.busy();
        let free = |p: &usize| self.pages[*p].is_some() && busy & geo.page_mask(*p) == 0;
        (0..self.pages.len()).filter(free).fold(0, |set, p| set | 1 << p)
    }

    /// Takes out the pages without a block that is up to date, in order.
    pub(super) fn take_unused(&mut self, geo: Geometry) -> impl DoubleEndedIterator<Item = Page> + use<> {
        let mut taken: [Option<Page>; PAGES] = array::from_fn(|_| None);
        for (p, page) in self.pages.iter_mut().enumerate() {
            if self.uptodate & geo.page_mask(p) == 0 {
                taken[p] = page.take();
            }
        }
        taken.into_iter().flatten()
    }

    /// Calls `f` with the bytes of each run of `blocks` inside a page. Skips pages that are not
    /// there, or that a writeback shares. Returns the blocks that it was called with.
    pub(super) fn each_run<'c>(
        &'c mut self,
        geo: Geometry,
        blocks: u64,
        mut f: impl FnMut(Range<u32>, &'c mut [u8]),
    ) -> u64 {
        let mut seen = 0;
        for (p, page) in self.pages.iter_mut().enumerate() {
            let here = blocks & geo.page_mask(p);
            if here == 0 {
                continue;
            }
            let Some(mut bytes) = page.as_mut().and_then(Page::get_mut) else {
                continue;
            };
            let mut at = p as u32 * geo.blocks_per_page();
            for run in runs(here) {
                let (_, from) = bytes.split_at_mut((run.start - at) as usize * geo.block_size());
                let (now, later) = from.split_at_mut(run.len() * geo.block_size());
                (at, bytes) = (run.end, later);
                f(run, now);
            }
            seen |= here;
        }
        seen
    }
}
