//! Drops cached blocks: for truncation, for hole punching, and before direct I/O.

use super::file::{FileCache, push_runs};
use std::ops::Range;

/// The state of a block that a cut covers only in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    /// There is no such block: the cut ends at a block boundary.
    Whole,
    /// Not cached: the caller zeroes the block on the device, if there is one.
    Absent,
    /// Zeroed in the cache, and clean: the caller zeroes the block on the device too.
    Clean,
    /// Zeroed in the cache, and dirty: a writeback will write it.
    Dirty,
}

/// The result of a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The dirty blocks that were dropped, in order: their claims are to be given back.
    pub(crate) dropped: Vec<Range<u32>>,
    /// The block of the first byte, if it begins before that byte; also if the last byte lies in
    /// the same block.
    pub(crate) head: Edge,
    /// The block of the last byte, if it goes on behind it and is another one.
    pub(crate) tail: Edge,
}

impl FileCache {
    /// Drops the blocks that lie in `bytes` whole, dirty ones too, and zeroes the covered parts of
    /// the others. For a truncation, the end is [`u64::MAX`].
    ///
    /// The caller has excluded writeback. A block that is in writeback all the same does not become
    /// dirty if that fails; a block in writeback that is zeroed in part becomes dirty.
    pub(crate) fn cut(&self, bytes: Range<u64>) -> Cut {
        let size = self.geo().block_size() as u64;
        if bytes.is_empty() {
            return Cut { dropped: Vec::new(), head: Edge::Whole, tail: Edge::Whole };
        }
        let border = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        let whole = border(bytes.start.div_ceil(size))..border(bytes.end / size);
        let head_end =
            bytes.start.checked_next_multiple_of(size).map_or(bytes.end, |next| next.min(bytes.end));
        let head = self.zero(bytes.start..head_end);
        // Behind the head, in another block.
        let tail_start = bytes.end / size * size;
        let tail = match tail_start >= head_end && bytes.end != u64::MAX {
            true => self.zero(tail_start..bytes.end),
            false => Edge::Whole,
        };
        Cut { dropped: self.invalidate(whole), head, tail }
    }

    /// Drops `blocks`, dirty ones too. Returns the runs that were dirty.
    pub(crate) fn invalidate(&self, blocks: Range<u32>) -> Vec<Range<u32>> {
        let mut dropped = Vec::new();
        self.each_locked(&blocks, |locked, set| {
            let first = self.geo().first_block(locked.no);
            let Some(chunk) = locked.get_mut() else { return };
            push_runs(&mut dropped, first, chunk.dirty & set);
            chunk.uptodate &= !set;
            chunk.dirty &= !set;
            chunk.cancelled |= chunk.writeback & set;
            locked.release_pages();
        });
        dropped
    }

    /// Drops those of `blocks` that are neither dirty nor in writeback. Returns whether all were
    /// so.
    pub(crate) fn drop_clean(&self, blocks: Range<u32>) -> bool {
        let mut all = true;
        self.each_locked(&blocks, |locked, set| {
            let Some(chunk) = locked.get_mut() else { return };
            all &= chunk.busy() & set == 0;
            chunk.uptodate &= !set | chunk.busy();
            locked.release_pages();
        });
        all
    }

    /// Zeroes `bytes`, which are empty or a part of one block.
    fn zero(&self, bytes: Range<u64>) -> Edge {
        let geo = self.geo();
        if bytes.is_empty() {
            return Edge::Whole;
        }
        let Some((no, inner)) = geo.place(bytes.start) else { return Edge::Absent };
        if self.slot(no).is_none() {
            return Edge::Absent;
        }
        let mut locked = self.lock(no);
        let block = inner / geo.block_size();
        let set = 1 << block;
        if locked.uptodate() & set == 0 {
            return Edge::Absent;
        }
        locked.own_pages(set);
        let start = inner % geo.block_size();
        let len = (bytes.end - bytes.start) as usize;
        let chunk = locked.chunk();
        chunk.each_run(geo, set, |_, block| block[start..start + len].fill(0));
        chunk.dirty |= chunk.writeback & !chunk.cancelled & set;
        match chunk.dirty & set {
            0 => Edge::Clean,
            _ => Edge::Dirty,
        }
    }
}
