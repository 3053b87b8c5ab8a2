//! Blocks, pages and chunks: how the bytes of a file are divided.
//!
//! A page is a piece of memory: one block, or 4096 bytes where blocks are smaller. A chunk is
//! sixteen pages and at most 64 blocks, so that a set of its blocks fits into a word.

use std::ops::Range;

/// Pages of a chunk.
pub(super) const PAGES: usize = 16;

/// The sizes of a volume's cache, all powers of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    block_shift: u32,
    page_shift: u32,
}

impl Geometry {
    /// Returns the geometry for blocks of `block_size` bytes: 1024 to 65536, a power of two.
    pub(super) fn new(block_size: u32) -> Self {
        let block_shift = block_size.trailing_zeros().clamp(10, 16);
        Self { block_shift, page_shift: block_shift.max(12) }
    }

    pub(super) fn block_size(self) -> usize {
        1 << self.block_shift
    }

    pub(super) fn page_size(self) -> usize {
        1 << self.page_shift
    }

    pub(super) fn chunk_size(self) -> usize {
        PAGES << self.page_shift
    }

    pub(super) fn blocks_per_page(self) -> u32 {
        1 << (self.page_shift - self.block_shift)
    }

    pub(super) fn blocks_per_chunk(self) -> u32 {
        PAGES as u32 * self.blocks_per_page()
    }

    /// Returns the chunk of byte `offset`, and the byte's place in it; `None` beyond any file.
    pub(super) fn place(self, offset: u64) -> Option<(u32, usize)> {
        let chunk = u32::try_from(offset >> (self.page_shift + 4)).ok()?;
        Some((chunk, offset as usize & (self.chunk_size() - 1)))
    }

    /// Returns the chunk of block `lblk`.
    pub(super) fn chunk_of(self, lblk: u32) -> u32 {
        lblk / self.blocks_per_chunk()
    }

    /// Returns the first block of a chunk.
    pub(super) fn first_block(self, chunk: u32) -> u32 {
        chunk.saturating_mul(self.blocks_per_chunk())
    }

    /// Returns the chunks that hold any of `blocks`.
    pub(super) fn chunks(self, blocks: &Range<u32>) -> Range<u32> {
        if blocks.is_empty() {
            return 0..0;
        }
        self.chunk_of(blocks.start)..self.chunk_of(blocks.end - 1) + 1
    }

    /// Returns the blocks of `blocks` that lie in `chunk`, as a set.
    pub(super) fn mask(self, chunk: u32, blocks: &Range<u32>) -> u64 {
        let first = self.first_block(chunk);
        let inner = |lblk: u32| lblk.saturating_sub(first).min(self.blocks_per_chunk());
        bits(inner(blocks.start), inner(blocks.end))
    }

    /// Returns the blocks of page `page` of a chunk, as a set.
    pub(super) fn page_mask(self, page: usize) -> u64 {
        let first = page as u32 * self.blocks_per_page();
        bits(first, first + self.blocks_per_page())
    }

    /// Returns the blocks that hold any of the bytes `inner` of a chunk, as a set.
    pub(super) fn touched(self, inner: &Range<usize>) -> u64 {
        let last = inner.end.div_ceil(self.block_size());
        bits((inner.start / self.block_size()) as u32, last as u32)
    }

    /// Returns the blocks that lie whole in the bytes `inner` of a chunk, as a set.
    pub(super) fn whole(self, inner: &Range<usize>) -> u64 {
        let first = inner.start.div_ceil(self.block_size());
        bits(first as u32, (inner.end / self.block_size()) as u32)
    }
}

/// Returns the set of the numbers from `first` up to, not including, `end`; both at most 64.
pub(super) fn bits(first: u32, end: u32) -> u64 {
    if first >= end {
        return 0;
    }
    (u64::MAX >> (64 - (end - first))) << first
}

/// Returns the runs of a set, in order.
pub(super) fn runs(mut set: u64) -> impl Iterator<Item = Range<u32>> + Clone {
    std::iter::from_fn(move || {
        let start = set.trailing_zeros();
        if start == 64 {
            return None;
        }
        let end = start + (set >> start).trailing_ones();
        set &= !bits(start, end);
        Some(start..end)
    })
}

/// Joins runs that follow each other.
pub(super) fn joined(
    runs: impl Iterator<Item = Range<u32>> + Clone,
) -> impl Iterator<Item = Range<u32>> + Clone {
    let mut runs = runs.peekable();
    std::iter::from_fn(move || {
        let mut run = runs.next()?;
        while let Some(next) = runs.next_if(|next| next.start == run.end) {
            run.end = next.end;
        }
        Some(run)
    })
}

/// Returns the lowest `n` members of a set.
pub(super) fn lowest(set: u64, n: u64) -> u64 {
    if u64::from(set.count_ones()) <= n {
        return set;
    }
    let (mut left, mut taken) = (set, 0);
    for _ in 0..n {
        taken |= left & left.wrapping_neg();
        left &= left - 1;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_size_fits_a_word() {
        for shift in 10..=16 {
            let geo = Geometry::new(1 << shift);
            assert_eq!(geo.block_size(), 1 << shift);
            assert!(geo.blocks_per_chunk() <= 64);
            assert_eq!(geo.blocks_per_chunk() as usize * geo.block_size(), geo.chunk_size());
            assert_eq!(geo.chunk_of(geo.first_block(7)), 7);
            let (chunk, inner) = geo.place(7 * geo.chunk_size() as u64 + 5).unwrap();
            assert_eq!((chunk, inner), (7, 5));
            assert_eq!((0..PAGES).fold(0, |all, p| all | geo.page_mask(p)), bits(0, geo.blocks_per_chunk()));
        }
    }

    #[test]
    fn sets() {
        assert_eq!(bits(0, 64), u64::MAX);
        assert_eq!(bits(3, 3), 0);
        assert_eq!(bits(63, 64), 1 << 63);
        assert_eq!(runs(0b1011 | 1 << 63).collect::<Vec<_>>(), [0..2, 3..4, 63..64]);
        assert_eq!((runs(u64::MAX).next(), runs(u64::MAX).count()), (Some(0..64), 1));
        let apart = [0..2, 2..3, 4..5, 5..6, 6..9, 10..11];
        assert_eq!(joined(apart.into_iter()).collect::<Vec<_>>(), [0..3, 4..9, 10..11]);
        assert_eq!(lowest(0b1011_0100, 2), 0b0001_0100);
        assert_eq!(lowest(0b101, 9), 0b101);
    }

    #[test]
    fn blocks_of_a_chunk() {
        let geo = Geometry::new(1024);
        assert_eq!(geo.mask(1, &(60..66)), 0b11);
        assert_eq!(geo.mask(0, &(60..66)), bits(60, 64));
        assert_eq!(geo.chunks(&(60..66)), 0..2);
        assert_eq!(geo.chunks(&(60..64)), 0..1);
        assert_eq!(geo.chunks(&(5..5)), 0..0);
        assert_eq!(geo.touched(&(1023..1025)), 0b11);
        assert_eq!(geo.touched(&(1024..2048)), 0b10);
    }
}
