//! The free blocks of a group, as buddies.
//!
//! Order 0 has a bit for each block, set if the block is free. Order k has a bit for each aligned
//! run of 2^k blocks, set if all of them are free: the "and" of its two buddies below. A change of
//! blocks is carried upwards word by word, without lists to split and merge, and a search for one
//! bit finds a run of any size.

use std::ops::Range;

/// Orders of buddies: the largest is a whole group of 32,768 blocks.
pub(super) const ORDERS: usize = 16;

/// How many runs a search examines before it takes the longest of them.
const LOOKS: u32 = 32;

/// The buddies of one group.
#[derive(Debug)]
pub(super) struct Buddy {
    /// The bits of all orders, one behind the other, each order from a word of its own on.
    words: Box<[u64]>,
    /// Where an order begins in `words`.
    starts: [u32; ORDERS + 1],
    /// Set bits of each order.
    counts: [u32; ORDERS],
    /// Blocks of the group.
    blocks: u32,
}

/// Combines bits 0 and 1, 2 and 3, ... into one bit each, in the lower half: whether both are set.
fn pairs(word: u64) -> u64 {
    let mut x = word & word >> 1 & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0F0F_0F0F_0F0F_0F0F),
        (4, 0x00FF_00FF_00FF_00FF),
        (8, 0x0000_FFFF_0000_FFFF),
        (16, 0x0000_0000_FFFF_FFFF),
    ] {
        x = (x | x >> shift) & mask;
    }
    x
}

/// Returns the bits of `range` that lie in word `at`.
fn mask(range: &Range<u32>, at: u32) -> u64 {
    let low = range.start.saturating_sub(at * 64).min(64);
    let high = range.end.saturating_sub(at * 64).min(64);
    let below = |n: u32| if n == 64 { !0 } else { (1 << n) - 1 };
    below(high) & !below(low)
}

impl Buddy {
    /// Returns a group of `blocks` with none free.
    pub(super) fn full(blocks: u32) -> Self {
        let mut starts = [0; ORDERS + 1];
        for order in 0..ORDERS {
            starts[order + 1] = starts[order] + (blocks >> order).div_ceil(64);
        }
        let words = vec![0; starts[ORDERS] as usize].into();
        Self { words, starts, counts: [0; ORDERS], blocks }
    }

    /// Makes a group of `blocks` from `bitmap`, whose set bits are used blocks; blocks beyond it
    /// are used.
    pub(super) fn new(bitmap: &[u8], blocks: u32) -> Self {
        let mut buddy = Self::full(blocks);
        for (at, bytes) in (0..blocks.div_ceil(64)).zip(bitmap.chunks_exact(8)) {
            let used = bytes.first_chunk().map_or(!0, |b| u64::from_le_bytes(*b));
            buddy.words[at as usize] = !used & mask(&(0..blocks), at);
            buddy.counts[0] += buddy.words[at as usize].count_ones();
        }
        buddy.carry(0..blocks);
        buddy
    }

    /// Returns a copy with the same free blocks in a group of more blocks.
    pub(super) fn lengthened(&self, blocks: u32) -> Self {
        let mut longer = Self::full(blocks);
        for run in self.runs() {
            longer.release(run);
        }
        longer
    }

    /// Returns the blocks of the group.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the free blocks.
    pub(super) fn free(&self) -> u32 {
        self.counts[0]
    }

    /// Returns the largest order with a free run.
    pub(super) fn top(&self) -> Option<u32> {
        self.counts.iter().rposition(|c| *c > 0).map(|order| order as u32)
    }

    /// Marks blocks as used. Returns how many were free.
    pub(super) fn take(&mut self, range: Range<u32>) -> u32 {
        self.change(range, |word, mask| word & !mask)
    }

    /// Marks blocks as free. Returns how many were used.
    pub(super) fn release(&mut self, range: Range<u32>) -> u32 {
        self.change(range, |word, mask| word | mask)
    }

    fn change(&mut self, range: Range<u32>, f: impl Fn(u64, u64) -> u64) -> u32 {
        let range = range.start..range.end.min(self.blocks);
        if range.is_empty() {
            return 0;
        }
        let before = self.counts[0];
        for at in range.start / 64..=(range.end - 1) / 64 {
            let word = &mut self.words[at as usize];
            let new = f(*word, mask(&range, at));
            self.counts[0] = self.counts[0] + new.count_ones() - word.count_ones();
            *word = new;
        }
        self.carry(range);
        self.counts[0].abs_diff(before)
    }

    /// Updates the orders above 0 after a change of the blocks of `range`.
    fn carry(&mut self, range: Range<u32>) {
        let (mut first, mut last) = (range.start, range.end.saturating_sub(1));
        for order in 1..ORDERS {
            (first, last) = (first / 2, last / 2);
            let words = self.starts[order + 1] - self.starts[order];
            let below = self.starts[order - 1]..self.starts[order];
            let mut changed = false;
            for at in first / 64..(last / 64 + 1).min(words) {
                let half = |i: u32| match below.start + 2 * at + i {
                    word if word < below.end => pairs(self.words[word as usize]),
                    _ => 0,
                };
                let new = half(0) | half(1) << 32;
                let word = &mut self.words[(self.starts[order] + at) as usize];
                self.counts[order] = self.counts[order] + new.count_ones() - word.count_ones();
                changed |= new != *word;
                *word = new;
            }
            if !changed {
                return;
            }
        }
    }

    fn order(&self, order: u32) -> &[u64] {
        let order = order as usize;
        &self.words[self.starts[order] as usize..self.starts[order + 1] as usize]
    }

    /// Returns the first set bit of an order in `range`.
    fn next(&self, order: u32, range: Range<u32>) -> Option<u32> {
        let words = self.order(order);
        let mut at = range.start;
        while at < range.end {
            let bits = words.get(at as usize / 64)? >> (at % 64);
            if bits != 0 {
                return Some(at + bits.trailing_zeros()).filter(|hit| *hit < range.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Returns how many blocks from `from` on are free, at most `max`.
    pub(super) fn run_at(&self, from: u32, max: u32) -> u32 {
        let end = from.saturating_add(max).min(self.blocks);
        let mut at = from;
        while at < end {
            let used = !self.words[at as usize / 64] >> (at % 64);
            if used != 0 {
                return (at + used.trailing_zeros()).min(end) - from;
            }
            at = (at / 64 + 1) * 64;
        }
        end.saturating_sub(from)
    }

    /// Returns how many blocks before `to` are free, at most `max`.
    fn run_before(&self, to: u32, max: u32) -> u32 {
        let start = to.saturating_sub(max);
        let mut end = to;
        while end > start {
            // The blocks of this word before `end`, moved up to the top.
            let used = !self.words[(end as usize - 1) / 64] << (63 - (end - 1) % 64);
            if used != 0 {
                return to - (end - used.leading_zeros()).max(start);
            }
            end = (end - 1) / 64 * 64;
        }
        to - start
    }

    /// Returns all runs of free blocks, in order.
    pub(super) fn runs(&self) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        let mut at = 0;
        while let Some(start) = self.next(0, at..self.blocks) {
            at = start + self.run_at(start, self.blocks);
            runs.push(start..at);
        }
        runs
    }

    /// Returns up to `want` free blocks that include an aligned run of `order`. Takes the first run
    /// that is long enough, from `from` on and then from the start, or else the longest one
    /// examined.
    pub(super) fn find(&self, from: u32, want: u32, order: u32) -> Option<Range<u32>> {
        let from = from.min(self.blocks);
        let bits = self.blocks >> order;
        let mut best: Option<Range<u32>> = None;
        let mut looks = 0;
        for part in [from >> order..bits, 0..from >> order] {
            let mut at = part.start;
            while let Some(bit) = self.next(order, at..part.end) {
                let aligned = bit << order;
                let mut start = aligned - self.run_before(aligned, want);
                let end = aligned + self.run_at(aligned, want.saturating_add(1 << order));
                // Leaves the blocks before `from` for later, if they are not needed.
                if (start..end).contains(&from) && end - from >= want.min(1 << order) {
                    start = from;
                }
                let run = start..end.min(start + want);
                if run.len() as u32 == want {
                    return Some(run);
                }
                if best.as_ref().is_none_or(|b| b.len() < run.len()) {
                    best = Some(run);
                }
                looks += 1;
                if looks == LOOKS {
                    return best;
                }
                at = (end >> order).max(bit + 1);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Against one bool a block.
    fn check(buddy: &Buddy, free: &[bool]) {
        assert_eq!(buddy.free() as usize, free.iter().filter(|f| **f).count());
        let mut top = None;
        for order in 0..ORDERS {
            let runs = free.chunks_exact(1 << order).map(|run| run.iter().all(|f| *f));
            let count = runs.clone().filter(|r| *r).count();
            assert_eq!(buddy.counts[order] as usize, count, "order {order}");
            for (bit, run) in runs.enumerate() {
                assert_eq!(buddy.order(order as u32)[bit / 64] >> (bit % 64) & 1 == 1, run);
            }
            top = if count > 0 { Some(order as u32) } else { top };
        }
        assert_eq!(buddy.top(), top);
    }

    fn longest(free: &[bool]) -> usize {
        free.split(|f| !f).map(<[bool]>::len).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_bitmap(
            blocks in prop_oneof![1..300u32, Just(512), Just(32_768), Just(65_528)],
            seed in any::<[u8; 16]>(),
            ops in proptest::collection::vec((any::<bool>(), any::<u32>(), 1..200u32, 0..6u32), 1..40),
        ) {
            let bitmap: Vec<u8> = seed.iter().cycle().take(blocks.div_ceil(64) as usize * 8).copied().collect();
            let mut free: Vec<bool> =
                (0..blocks as usize).map(|i| bitmap[i / 8] >> (i % 8) & 1 == 0).collect();
            let mut buddy = Buddy::new(&bitmap, blocks);
            check(&buddy, &free);
            for (take, at, len, order) in ops {
                let at = at % blocks;
                let range = at as usize..(at + len).min(blocks) as usize;
                let changed = free[range.clone()].iter().filter(|f| **f == take).count();
                free[range].fill(!take);
                let said = match take {
                    true => buddy.take(at..at + len),
                    false => buddy.release(at..at + len),
                };
                prop_assert_eq!(said as usize, changed);
                let run = free[at as usize..].iter().take_while(|f| **f).count();
                prop_assert_eq!(buddy.run_at(at, len) as usize, run.min(len as usize));
                let run = free[..at as usize].iter().rev().take_while(|f| **f).count();
                prop_assert_eq!(buddy.run_before(at, len) as usize, run.min(len as usize));
                let found = buddy.find(at, len, order);
                let there = free.chunks_exact(1 << order).any(|run| run.iter().all(|f| *f));
                prop_assert_eq!(found.is_some(), there);
                if let Some(run) = found {
                    prop_assert!(free[run.start as usize..run.end as usize].iter().all(|f| *f));
                    prop_assert!(run.len() as u32 >= len.min(1 << order) && run.len() as u32 <= len);
                    prop_assert!(run.len() <= longest(&free));
                }
            }
            check(&buddy, &free);
            let longer = buddy.lengthened(blocks + 77);
            let mut same = free.clone();
            same.resize(blocks as usize + 77, false);
            check(&longer, &same);
            let runs = buddy.runs();
            prop_assert!(runs.windows(2).all(|w| w[0].end < w[1].start));
            prop_assert_eq!(runs.iter().map(|r| r.len()).sum::<usize>() as u32, buddy.free());
            prop_assert!(runs.into_iter().flatten().all(|block| free[block as usize]));
        }
    }

    #[test]
    fn a_run_that_is_aligned_to_nothing_is_found_whole() {
        let mut buddy = Buddy::full(32_768);
        buddy.release(1001..1101);
        buddy.release(5000..5050);
        assert_eq!(buddy.find(0, 100, 5), Some(1001..1101));
        assert_eq!(buddy.find(5010, 40, 3), Some(5010..5050));
        assert_eq!(buddy.find(5020, 200, 3), Some(1001..1101), "the longest");
        assert_eq!(buddy.find(0, 100, 7), None);
        assert_eq!(buddy.find(1050, 8, 3), Some(1050..1058), "from where it was asked for");
    }
}
