//! Spans: blocks that are locked to be filled or written.

use super::file::FileCache;
use super::geometry::{Geometry, joined, runs};
use super::locked::Locked;
use std::iter;
use std::ops::Range;

/// Memory of blocks to fill: the bytes of one or more blocks that lie in one page.
#[derive(Debug)]
pub(crate) struct Segment<'s> {
    /// The first block.
    pub(crate) lblk: u32,
    /// The reader fills all of it; its old bytes have no meaning.
    pub(crate) buf: &'s mut [u8],
}

/// Locked blocks, with the rest of their chunks. Dropping the span unlocks them.
#[derive(Debug)]
pub(crate) struct Span<'f> {
    geo: Geometry,
    first: Locked<'f>,
    rest: Vec<Locked<'f>>,
}

impl FileCache {
    /// Locks the chunks of `blocks`, to change them. Waits for threads that hold one of them.
    ///
    /// Every chunk stays locked while the span lives: lock many blocks a part at a time.
    pub(crate) fn span(&self, blocks: Range<u32>) -> Span<'_> {
        Span::new(self, blocks)
    }

    /// Locks as [`span`](Self::span) does, but returns `None` instead of waiting.
    pub(crate) fn try_span(&self, blocks: Range<u32>) -> Option<Span<'_>> {
        Span::try_new(self, blocks)
    }
}

impl<'f> Span<'f> {
    fn new(file: &'f FileCache, blocks: Range<u32>) -> Self {
        let geo = file.geo();
        let no = geo.chunk_of(blocks.start);
        let first = file.lock(no);
        let rest = (no + 1..geo.chunks(&blocks).end).map(|no| file.lock(no)).collect();
        Self { geo, first, rest }
    }

    fn try_new(file: &'f FileCache, blocks: Range<u32>) -> Option<Self> {
        let geo = file.geo();
        let no = geo.chunk_of(blocks.start);
        let first = file.try_lock(no)?;
        let rest = (no + 1..geo.chunks(&blocks).end).map(|no| file.try_lock(no)).collect::<Option<_>>()?;
        Some(Self { geo, first, rest })
    }

    fn locks(&self) -> impl Iterator<Item = &Locked<'f>> + Clone {
        iter::once(&self.first).chain(&self.rest)
    }

    fn locks_mut(&mut self) -> impl Iterator<Item = &mut Locked<'f>> {
        iter::once(&mut self.first).chain(&mut self.rest)
    }

    /// Returns the runs of `blocks` that are not up to date.
    #[cfg(test)]
    pub(crate) fn missing(&self, blocks: Range<u32>) -> Vec<Range<u32>> {
        self.runs(blocks, |lock| !lock.uptodate()).collect()
    }

    /// Returns the runs of `blocks` that are neither dirty nor in writeback: space for them must be
    /// claimed before they become dirty.
    pub(crate) fn clean(&self, blocks: Range<u32>) -> impl Iterator<Item = Range<u32>> + Clone {
        self.runs(blocks, |lock| !lock.pending())
    }

    fn runs(
        &self,
        blocks: Range<u32>,
        set: impl Fn(&Locked<'f>) -> u64 + Clone,
    ) -> impl Iterator<Item = Range<u32>> + Clone {
        let geo = self.geo;
        joined(self.locks().flat_map(move |lock| {
            let first = geo.first_block(lock.no);
            let runs = runs(geo.mask(lock.no, &blocks) & set(lock));
            runs.map(move |run| first + run.start..first.saturating_add(run.end))
        }))
    }

    /// Returns the blocks, two at most, that a write of `len` bytes at `offset` covers only in part
    /// and that are not up to date. Fill them before [`copy_in`](Self::copy_in), unless their other
    /// bytes are zeros.
    pub(crate) fn partial(&self, offset: u64, len: usize) -> impl Iterator<Item = u32> + use<> {
        let size = self.geo.block_size() as u64;
        let end = offset.saturating_add(len as u64);
        let head = (!offset.is_multiple_of(size) && len > 0).then_some(offset / size);
        let tail =
            (!end.is_multiple_of(size) && len > 0).then_some(end / size).filter(|tail| Some(*tail) != head);
        let absent = |block: u64| {
            let block = u32::try_from(block).ok()?;
            self.locks()
                .any(|l| self.geo.mask(l.no, &(block..block.saturating_add(1))) & !l.uptodate() != 0)
                .then_some(block)
        };
        [head.and_then(absent), tail.and_then(absent)].into_iter().flatten()
    }

    /// Lets `read` fill those of `blocks` that are not up to date, in ascending order, and marks
    /// them as up to date. Does not call `read` if there are none.
    ///
    /// # Errors
    /// The errors of `read`: then none has become up to date.
    pub(crate) fn fill<E>(
        &mut self,
        blocks: Range<u32>,
        read: impl FnOnce(&mut [Segment<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let geo = self.geo;
        let (mut segments, mut filled) = (Vec::new(), Vec::new());
        for lock in self.locks_mut() {
            let missing = geo.mask(lock.no, &blocks) & !lock.uptodate();
            let first = geo.first_block(lock.no);
            if missing == 0 {
                filled.push(0);
                continue;
            }
            lock.own_pages(missing);
            let segment = |run: Range<u32>, buf| segments.push(Segment { lblk: first + run.start, buf });
            filled.push(lock.chunk().each_run(geo, missing, segment));
        }
        if segments.is_empty() {
            return Ok(());
        }
        let result = read(&mut segments);
        drop(segments);
        for (lock, filled) in self.locks_mut().zip(filled).filter(|(_, filled)| *filled != 0) {
            match result.is_ok() {
                true => lock.chunk().uptodate |= filled,
                false => lock.release_pages(),
            }
        }
        result
    }

    /// Copies out as [`FileCache::read`] does, from the span's chunks.
    pub(crate) fn copy_out(&self, buf: &mut [u8], offset: u64) -> usize {
        let mut done = 0;
        for lock in self.locks() {
            let at = offset.saturating_add(done as u64);
            let Some((_, inner)) = self.geo.place(at).filter(|(no, _)| *no == lock.no) else { continue };
            let n = (buf.len() - done).min(self.geo.chunk_size() - inner);
            let copied =
                lock.get().map_or(0, |chunk| chunk.copy_out(self.geo, inner, &mut buf[done..done + n]));
            done += copied;
            if copied < n {
                break;
            }
        }
        done
    }

    /// Copies `bytes` to `offset`, which must lie in the span, and makes their blocks up to date
    /// and dirty. In a block that was not up to date, the other bytes become zeros.
    ///
    /// Returns how many bytes lay in the span and were copied.
    pub(crate) fn copy_in(&mut self, bytes: &[u8], offset: u64) -> usize {
        let geo = self.geo;
        let mut done = 0;
        for lock in self.locks_mut() {
            let at = offset.saturating_add(done as u64);
            let Some((_, inner)) = geo.place(at).filter(|(no, _)| *no == lock.no) else { continue };
            let n = (bytes.len() - done).min(geo.chunk_size() - inner);
            if n > 0 {
                lock.copy_in(&bytes[done..done + n], inner);
            }
            done += n;
        }
        done
    }
}
