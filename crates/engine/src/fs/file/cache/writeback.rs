//! Writeback: dirty blocks that were taken to be written to the device.

use super::file::FileCache;
use super::geometry::{lowest, runs};
use super::page::Page;
use lanefs_device::AlignedBuf;
use std::iter;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Blocks of one page that were taken.
#[derive(Debug)]
pub(crate) struct Item {
    /// The first block.
    pub(crate) lblk: u32,
    /// How many.
    pub(crate) blocks: u32,
    pub(super) page: Arc<AlignedBuf>,
    /// The place of the first byte in the page.
    start: usize,
    len: usize,
}

/// Bytes of a page in writeback. They do not change, and any thread may write them to the device.
/// Drop them before [`Writeback::done`] or [`Writeback::failed`] is called.
#[derive(Debug)]
pub(crate) struct Bytes {
    page: Arc<AlignedBuf>,
    start: usize,
    len: usize,
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.page[self.start..self.start + self.len]
    }
}

impl Item {
    /// Returns the bytes of the blocks. They do not change while this lives.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.page[self.start..self.start + self.len]
    }

    /// Returns how many bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns `len` bytes from byte `from` on, or as many as there are.
    pub(crate) fn part(&self, from: usize, len: usize) -> Bytes {
        let from = from.min(self.len);
        Bytes { page: Arc::clone(&self.page), start: self.start + from, len: len.min(self.len - from) }
    }

    /// Returns the block behind the last one.
    pub(crate) fn end(&self) -> u32 {
        self.lblk.saturating_add(self.blocks)
    }
}

/// Dirty blocks that were taken to be written out, in order of position. They stay cached, clean
/// but not evictable, until [`done`](Self::done) or [`failed`](Self::failed) is called. Dropping it
/// is a failure.
#[derive(Debug)]
pub(crate) struct WritebackBatch {
    file: Arc<FileCache>,
    items: Vec<Item>,
    ended: bool,
}

impl FileCache {
    /// Takes dirty blocks of `blocks` to be written out, in order of position: as many as fit in
    /// `max` bytes, and at least one. Returns `None` if no block is dirty, or if all dirty blocks
    /// are in writeback already.
    pub(crate) fn take_dirty(&self, blocks: Range<u32>, max: u64) -> Option<WritebackBatch> {
        let geo = self.geo();
        let mut items = Vec::new();
        let mut left = (max / geo.block_size() as u64).max(1);
        let chunks = geo.chunks(&blocks);
        let mut from = chunks.start;
        // With nothing to take, no writeback begins: other threads would wait for it.
        self.next_dirty(from).filter(|no| *no < chunks.end)?;
        self.writeback_begins();
        while left > 0 {
            let Some(no) = self.next_dirty(from).filter(|no| *no < chunks.end) else { break };
            let mut locked = self.lock(no);
            from = no + 1;
            let Some(chunk) = locked.get_mut() else { continue };
            let set = lowest(chunk.dirty & geo.mask(no, &blocks) & !chunk.writeback, left);
            if set == 0 {
                continue;
            }
            for (p, page) in chunk.pages.iter_mut().enumerate() {
                let Some(page) = page else { continue };
                let page_start = p as u32 * geo.blocks_per_page();
                items.extend(runs(set & geo.page_mask(p)).map(|run| Item {
                    lblk: geo.first_block(no) + run.start,
                    blocks: run.len() as u32,
                    page: page.share(),
                    start: (run.start - page_start) as usize * geo.block_size(),
                    len: run.len() * geo.block_size(),
                }));
            }
            chunk.dirty &= !set;
            chunk.writeback |= set;
            left -= u64::from(set.count_ones());
        }
        let file = self.weak().upgrade().filter(|_| !items.is_empty());
        match file {
            Some(file) => Some(WritebackBatch { file, items, ended: false }),
            None => {
                self.writeback_ends();
                None
            }
        }
    }
}

impl WritebackBatch {
    /// Returns the file of the blocks.
    #[cfg(test)]
    pub(crate) fn file(&self) -> &Arc<FileCache> {
        &self.file
    }

    /// Returns the blocks in order, one item for each run inside a page.
    #[cfg(test)]
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the blocks, as runs that are contiguous in the file.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[Item]> {
        self.items.chunk_by(|a, b| a.end() == b.lblk)
    }

    /// Returns the end of the last block.
    pub(crate) fn end(&self) -> u32 {
        self.items.last().map_or(u32::MAX, Item::end)
    }

    /// Returns how many blocks.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.items.iter().map(|item| u64::from(item.blocks)).sum()
    }

    /// Ends the writeback: the blocks are on the device. Blocks that were not written again
    /// meanwhile are clean, except block `again`, which stays dirty.
    pub(crate) fn done(mut self, again: Option<u32>) {
        let again = again.map_or(0..0, |lblk| lblk..lblk.saturating_add(1));
        self.finish(again);
    }

    /// Ends the writeback: the blocks may not be on the device. All are dirty again, except blocks
    /// that were dropped from the cache meanwhile.
    pub(crate) fn failed(mut self) {
        self.finish(0..u32::MAX);
    }

    /// Ends the writeback. The blocks of `again` that are still cached are dirty.
    fn finish(&mut self, again: Range<u32>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let geo = self.file.geo();
        let mut items = std::mem::take(&mut self.items).into_iter().peekable();
        while let Some(no) = items.peek().map(|item| geo.chunk_of(item.lblk)) {
            let mut set = 0;
            let here = iter::from_fn(|| items.next_if(|item| geo.chunk_of(item.lblk) == no));
            let pages = here.map(|item| {
                set |= geo.mask(no, &(item.lblk..item.end()));
                Page::Shared(item.page)
            });
            self.file.cache.pool.give_back(self.file.shard(no), pages);
            let mut locked = self.file.lock(no);
            let Some(chunk) = locked.get_mut() else { continue };
            chunk.dirty |= set & geo.mask(no, &again) & chunk.uptodate & !chunk.cancelled;
            chunk.writeback &= !set;
            chunk.cancelled &= !set;
        }
        self.file.writeback_ends();
    }
}

impl Drop for WritebackBatch {
    fn drop(&mut self) {
        self.finish(0..u32::MAX);
    }
}
