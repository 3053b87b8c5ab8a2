//! The taken blocks as merged ranges, so that a volume of any size needs little memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// The taken blocks of a volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct Space {
    /// Start to end; neither overlapping nor touching.
    taken: BTreeMap<u64, u64>,
    /// The first block, and the one behind the last.
    bounds: Range<u64>,
}

impl Space {
    pub(crate) fn new(bounds: Range<u64>) -> Self {
        Self { taken: BTreeMap::new(), bounds }
    }

    /// Takes blocks, which must be free.
    pub(crate) fn take(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.taken.range(..=start).next_back()
            && e >= start
        {
            (start, end) = (s, end.max(e));
        }
        if let Some(&e) = self.taken.get(&end) {
            self.taken.remove(&end);
            end = e;
        }
        self.taken.insert(start, end);
    }

    /// Returns the first free run at or behind `from`, up to the end of the volume.
    pub(crate) fn next_run(&self, from: u64) -> Option<Range<u64>> {
        let mut start = from.max(self.bounds.start);
        if let Some((_, &end)) = self.taken.range(..=start).next_back() {
            start = start.max(end);
        }
        let end = self.taken.range(start..).next().map_or(self.bounds.end, |(&s, _)| s);
        (start < end).then_some(start..end)
    }

    /// Finds a run as [`next_run`](Self::next_run) does, from the start of the volume if there is
    /// none behind.
    pub(crate) fn next_run_wrapped(&self, from: u64) -> Option<Range<u64>> {
        self.next_run(from).or_else(|| self.next_run(self.bounds.start))
    }

    pub(crate) fn is_free(&self, range: Range<u64>) -> bool {
        range.end <= self.bounds.end
            && self.next_run(range.start).is_some_and(|run| run.start == range.start && run.end >= range.end)
    }

    /// Returns the first place in `within` from which `len` blocks are free; the run may end behind
    /// it.
    pub(crate) fn find(&self, within: Range<u64>, len: u64) -> Option<u64> {
        let mut at = within.start;
        while let Some(run) = self.next_run(at) {
            if run.start >= within.end {
                return None;
            }
            if run.end - run.start >= len {
                return Some(run.start);
            }
            at = run.end;
        }
        None
    }

    /// Returns the taken ranges in `within`, cut to it.
    pub(crate) fn taken(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.taken.range(..within.start).next_back().map(|(&s, &e)| s..e);
        let inside = self.taken.range(within.clone()).map(|(&s, &e)| s..e);
        before.into_iter().chain(inside).filter_map(move |r| {
            let cut = r.start.max(within.start)..r.end.min(within.end);
            (!cut.is_empty()).then_some(cut)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_bitmap() {
        let mut space = Space::new(1..200);
        let mut map = [true; 200];
        map[1..].fill(false);
        let mut x = 7u64;
        for _ in 0..60 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (at, len) = (1 + (x >> 33) % 190, 1 + (x >> 20) % 9);
            let free = (at..at + len).all(|n| n < 200 && !map[n as usize]);
            assert_eq!(space.is_free(at..at + len), free);
            if free {
                space.take(at..at + len);
                map[at as usize..(at + len) as usize].fill(true);
            }
            let first = (at..200).find(|&n| !map[n as usize]);
            assert_eq!(space.next_run(at).map(|r| r.start), first);
            let fit = (1..150u64).find(|&n| (n..n + 4).all(|n| n < 200 && !map[n as usize]));
            assert_eq!(space.find(1..150, 4), fit);
            let taken: u64 = space.taken(20..120).map(|r| r.end - r.start).sum();
            assert_eq!(taken as usize, map[20..120].iter().filter(|t| **t).count());
        }
    }
}
