//! Allocates pages of 4096 bytes for [`AlignedBuf`](crate::AlignedBuf)s of at most that size, and
//! returns free memory to the system.
//!
//! The C library's allocator spends two pages on each page-aligned page, and seldom returns memory.
//! Here pages come from mapped slabs of [`SLAB`] bytes, in several pools, so that threads seldom
//! contend for a lock. The lowest slab with a free page serves the next allocation, so that high
//! slabs become empty. An empty slab is unmapped, but for one in each pool.
//!
//! Invariants:
//! - A slab lies at a multiple of its size, so a page's address gives its slab.
//! - A page returns to the pool that it came from.
#![allow(unsafe_code)]

use crate::memory;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Bytes of a slab: a page for each bit of [`Slabs::free`].
const SLAB: usize = 64 * PAGE;

/// Number of pools.
const POOLS: u8 = 8;

static ALL: [Mutex<Slabs>; POOLS as usize] =
    [const { Mutex::new(Slabs { free: BTreeMap::new(), partial: BTreeSet::new(), spare: None }) };
        POOLS as usize];

/// The slabs of one pool, by address.
#[derive(Debug)]
struct Slabs {
    /// The free pages of each slab that has a page in use: a bit each.
    free: BTreeMap<usize, u64>,
    /// The slabs that have a free page.
    partial: BTreeSet<usize>,
    /// A slab that is mapped and has no page in use.
    spare: Option<usize>,
}

thread_local! {
    /// The pool of this thread.
    static MINE: Cell<Option<u8>> = const { Cell::new(None) };
}

fn pool(number: u8) -> MutexGuard<'static, Slabs> {
    // A panic cannot have left it half changed: nothing under the lock panics.
    ALL[usize::from(number % POOLS)].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of the calling thread's pool: threads are dealt out in turn.
fn mine() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let deal = |mine: &Cell<Option<u8>>| {
        let number = mine.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % POOLS);
        mine.set(Some(number));
        number
    };
    MINE.try_with(deal).unwrap_or(0)
}

/// Takes a page with unspecified bytes, aligned to its size. Returns it and the pool that it goes
/// back to, or `None` where the system has no memory.
pub(crate) fn take() -> Option<(NonNull<u8>, u8)> {
    let number = mine();
    let page = pool(number).take()?;
    NonNull::new(std::ptr::with_exposed_provenance_mut(page)).map(|page| (page, number))
}

/// Gives a page back.
///
/// # Safety
/// `page` came from [`take`] with this pool, and is not used any more.
pub(crate) unsafe fn give_back(page: NonNull<u8>, number: u8) {
    let unused = pool(number).give_back(page.as_ptr().expose_provenance());
    if let Some(slab) = unused {
        // SAFETY: the caller's promise for each of its pages; it was mapped by `map`, and is in no
        // list any more.
        unsafe { unmap(slab) };
    }
}

/// Returns free memory to the system: that of this crate's pools of pages and, where the C library
/// can do that, of its allocator.
pub fn release_free_memory() {
    for number in 0..POOLS {
        let spare = pool(number).spare.take();
        if let Some(slab) = spare {
            // SAFETY: no page of it is in use, and it is in no list any more.
            unsafe { unmap(slab) };
        }
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and leaves what is in use alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Slabs {
    fn take(&mut self) -> Option<usize> {
        let slab = match self.partial.first() {
            Some(slab) => *slab,
            None => {
                let slab = self.spare.take().or_else(map)?;
                self.free.insert(slab, u64::MAX);
                self.partial.insert(slab);
                slab
            }
        };
        let free = self.free.get_mut(&slab)?;
        let page = free.trailing_zeros() as usize;
        *free &= *free - 1;
        if *free == 0 {
            self.partial.remove(&slab);
        }
        Some(slab + page * PAGE)
    }

    /// Takes a page back. Returns a slab that is to be unmapped.
    fn give_back(&mut self, page: usize) -> Option<usize> {
        let slab = page & !(SLAB - 1);
        let free = self.free.get_mut(&slab)?;
        if *free == 0 {
            self.partial.insert(slab);
        }
        *free |= 1 << ((page - slab) / PAGE);
        if *free != u64::MAX {
            return None;
        }
        self.free.remove(&slab);
        self.partial.remove(&slab);
        if self.spare.is_none() {
            self.spare = Some(slab);
            return None;
        }
        Some(slab)
    }
}

/// Maps a slab at a multiple of its size.
fn map() -> Option<usize> {
    memory::map(SLAB, SLAB).map(|slab| slab.as_ptr().expose_provenance())
}

/// Unmaps a slab.
///
/// # Safety
/// It came from [`map`], and no page of it is in use.
unsafe fn unmap(slab: usize) {
    if let Some(slab) = NonNull::new(std::ptr::with_exposed_provenance_mut(slab)) {
        // SAFETY: the caller's promise.
        unsafe { memory::unmap(slab, SLAB, SLAB) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_apart_and_come_from_the_bottom() {
        let mut slabs = Slabs { free: BTreeMap::new(), partial: BTreeSet::new(), spare: None };
        let mut pages: Vec<usize> = (0..3 * 64).map(|_| slabs.take().unwrap()).collect();
        pages.sort_unstable();
        assert!(pages.iter().all(|page| page.is_multiple_of(PAGE)));
        assert!(pages.windows(2).all(|two| two[1] - two[0] >= PAGE));
        assert_eq!((slabs.free.len(), slabs.partial.len()), (3, 0));
        // Of two slabs with a free page the lower gives it.
        let (low, high) = (pages[1], pages[180]);
        assert!(slabs.give_back(high).is_none() && slabs.give_back(low).is_none());
        assert_eq!(slabs.take(), Some(low));
        assert_eq!(slabs.take(), Some(high));
        // One slab is kept; the others go.
        let unmapped: Vec<usize> = pages.iter().filter_map(|page| slabs.give_back(*page)).collect();
        assert_eq!(unmapped.len(), 2);
        assert!(slabs.free.is_empty() && slabs.partial.is_empty());
        for slab in unmapped.into_iter().chain(slabs.spare.take()) {
            // SAFETY: no page of it is in use.
            unsafe { unmap(slab) };
        }
    }

    #[test]
    fn threads_share_and_give_back_what_others_took() {
        let fill = |value: usize| {
            let (page, pool) = take().unwrap();
            // SAFETY: a page of our own.
            unsafe { page.as_ptr().write_bytes(value as u8, PAGE) };
            (page.as_ptr().expose_provenance(), pool, value as u8)
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|t| scope.spawn(move || (0..100).map(|i| fill(t * 100 + i)).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for (page, pool, value) in made {
            let page = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(page)).unwrap();
            // SAFETY: no other thread has the page, and it is given back once.
            unsafe {
                assert!(std::slice::from_raw_parts(page.as_ptr(), PAGE).iter().all(|b| *b == value));
                give_back(page, pool);
            }
        }
        release_free_memory();
    }
}
