//! The arena: memory of the page cache that no shard has yet.
//!
//! Memory is mapped in slabs for all shards together, and a shard takes a few adjacent pages at a
//! time. So a file that is written from front to back has adjacent pages, which go to the device in
//! large pieces. Whole chunks, a chunk behind the last one and the first of a file get pages of
//! slabs of a huge page, which one fault supplies. All other chunks get pages of smaller slabs,
//! populated as they are taken, while the shard is locked.
//!
//! Hazard: the kernel zeroes a huge page at its first touch, which may take milliseconds and stops
//! all that runs on that processor. So only what is written or read in order gets huge pages.
//!
//! Locking: the arena's lock comes after a shard's.

use super::geometry::Geometry;
use lanefs_device::AlignedBuf;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicUsize, Ordering};
use std::mem;

/// The arena. See the head of the file.
#[derive(Debug)]
pub(super) struct Arena {
    page_size: usize,
    pages: Mutex<Slabs>,
    /// How many pages the arena and all shards have.
    all: AtomicUsize,
}

/// Pages of the last slab of each kind. The last is taken first.
#[derive(Debug, Default)]
struct Slabs {
    huge: Vec<AlignedBuf>,
    small: Vec<AlignedBuf>,
}

impl Arena {
    pub(super) fn new(geo: Geometry) -> Self {
        Self { page_size: geo.page_size(), pages: Mutex::default(), all: AtomicUsize::new(0) }
    }

    /// Adds `n` pages to a shard's free pages, for bytes that are written `in_order` or not: of
    /// several, the last comes first in memory. The shards and the arena may have `most` pages
    /// together, or as many as these `n` need.
    pub(super) fn take(&self, n: usize, in_order: bool, most: usize, free: &mut Vec<AlignedBuf>) {
        let mut slabs = self.pages.lock();
        let Slabs { huge, small } = &mut *slabs;
        let (own, other) = if in_order { (huge, small) } else { (small, huge) };
        // A slab of less than a huge page has none.
        let slab = if in_order { AlignedBuf::HUGE } else { AlignedBuf::HUGE / 2 };
        let (mut left, old) = (n, free.len());
        while left > 0 {
            let room = most.saturating_sub(self.all.load(Ordering::Relaxed));
            if own.is_empty() && (room >= left || other.is_empty()) {
                *own = self.map_slab(slab, left, most);
            }
            let pages = if own.is_empty() { &mut *other } else { &mut *own };
            let rest = pages.len().saturating_sub(left);
            left -= pages.len() - rest;
            free.extend(pages.drain(rest..));
        }
        drop(slabs);
        if !in_order {
            AlignedBuf::populate(&mut free[old..]);
        }
    }

    /// Maps a slab: for `need` pages, or of up to `bytes` as `most` and the size of the cache
    /// allow.
    fn map_slab(&self, bytes: usize, need: usize, most: usize) -> Vec<AlignedBuf> {
        let all = self.all.load(Ordering::Relaxed);
        // A cache with few pages grows by few.
        let n = (bytes / self.page_size).min(4 * all.max(4));
        let n = n.min(most.saturating_sub(all)).max(need);
        self.all.fetch_add(n, Ordering::Relaxed);
        let mut pages = AlignedBuf::slab(self.page_size, n);
        pages.reverse();
        pages
    }

    /// Notes that a shard has freed `n` pages.
    pub(super) fn freed(&self, n: usize) {
        self.all.fetch_sub(n, Ordering::Relaxed);
    }

    /// Returns how many pages the arena has.
    pub(super) fn len(&self) -> usize {
        let slabs = self.pages.lock();
        slabs.huge.len() + slabs.small.len()
    }

    /// Frees the arena's pages if it and the shards have more than `most`.
    pub(super) fn shrink(&self, most: usize) {
        if self.all.load(Ordering::Relaxed) > most {
            let Slabs { huge, small } = mem::take(&mut *self.pages.lock());
            self.freed(huge.len() + small.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use std::thread;

    const SLAB: usize = AlignedBuf::HUGE / 4096;
    const MOST: usize = 1 << 20;

    fn arena() -> Arena {
        Arena::new(Geometry::new(4096))
    }

    /// Takes pages as chunks do, `n` in all.
    fn take(arena: &Arena, n: usize, most: usize) -> Vec<AlignedBuf> {
        let mut pages = Vec::new();
        (0..n / 16).for_each(|_| arena.take(16, true, most, &mut pages));
        pages
    }

    #[test]
    fn pages_are_adjacent_and_most_lie_in_huge_pages() {
        let arena = arena();
        let pages = take(&arena, 4 * SLAB, MOST);
        let address = |page: &AlignedBuf| page.as_ptr().addr();
        assert!(
            pages.chunks(16).all(|c| c.windows(2).all(|two| address(&two[0]) == address(&two[1]) + 4096))
        );
        let apart = pages.chunks(16).zip(pages.chunks(16).skip(1));
        let apart = apart.filter(|(a, b)| address(&a[0]) + 4096 != address(&b[15])).count();
        assert!(apart <= 7, "{apart} places where a slab ends");
        let mut slabs: Vec<_> = pages.iter().map(|page| address(page) / AlignedBuf::HUGE).collect();
        slabs.sort_unstable();
        assert!(slabs.chunk_by(|a, b| a == b).filter(|slab| slab.len() == SLAB).count() >= 3);
        let places: HashSet<_> = pages.iter().map(address).collect();
        assert_eq!(places.len(), pages.len());
    }

    #[test]
    fn what_is_not_in_order_lies_in_no_huge_page_of_the_rest() {
        let arena = arena();
        let (mut whole, mut parts) = (take(&arena, 2 * SLAB, MOST), Vec::new());
        for _ in 0..SLAB {
            arena.take(4, false, MOST, &mut parts);
            arena.take(16, true, MOST, &mut whole);
        }
        let slab = |page: &AlignedBuf| page.as_ptr().addr() / AlignedBuf::HUGE;
        let mut count = HashMap::<_, usize>::new();
        whole.iter().for_each(|page| *count.entry(slab(page)).or_default() += 1);
        let huge = |page: &&AlignedBuf| count.get(&slab(page)) == Some(&SLAB);
        assert!(whole.iter().filter(huge).count() >= 16 * SLAB);
        assert_eq!(parts.iter().filter(huge).count(), 0);
    }

    #[test]
    fn the_bound_holds_and_a_need_is_met_beyond_it() {
        let most = 3 * SLAB + 48;
        let arena = arena();
        let mut pages = Vec::new();
        while pages.len() < most {
            arena.take(16, pages.len() % 32 == 0, most, &mut pages);
            assert!(pages.len() + arena.len() <= most);
        }
        assert_eq!((arena.len(), pages.len()), (0, most));
        arena.take(5, false, most, &mut pages);
        assert_eq!((arena.len(), pages.len()), (0, most + 5));
        arena.freed(most + 5);
        assert_eq!(arena.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_left_goes_when_less_is_allowed() {
        let arena = arena();
        let pages = take(&arena, 2 * SLAB, MOST);
        let left = arena.len();
        assert!(left > 0);
        arena.shrink(pages.len() + left);
        assert_eq!(arena.len(), left);
        arena.shrink(pages.len() + left - 1);
        assert_eq!((arena.len(), arena.all.load(Ordering::Relaxed)), (0, pages.len()));
    }

    #[test]
    fn threads_take_free_and_shrink() {
        let arena = arena();
        thread::scope(|scope| {
            for t in 0..4_u8 {
                let arena = &arena;
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..40 {
                        let mut pages = take(arena, SLAB / 2, MOST);
                        pages.iter_mut().for_each(|page| page.fill(t));
                        match round % 4 {
                            0 => kept.extend(pages),
                            _ => arena.freed(pages.len()),
                        }
                        if round % 10 == 9 {
                            arena.shrink(0);
                        }
                    }
                    assert!(kept.iter().all(|page| page.iter().all(|byte| *byte == t)));
                    arena.freed(kept.len());
                });
            }
        });
        assert_eq!(arena.all.load(Ordering::Relaxed), arena.len());
    }
}
