//! Chooses blocks in core.
//!
//! A [`Reserved`] run is busy in core and still free on disk.
//!
//! A search visits the groups that may have a run ([`Orders`](super::orders::Orders)), from the
//! goal's group on: for the size that was asked for, then for ever smaller ones. It skips a group
//! whose mutex another thread holds, and returns to it later. It reports "no space" only after a
//! search for single blocks that waited for every mutex, while no block was freed.

use super::buddy::ORDERS;
use super::{Alloc, Locked};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::space::{Claim, Space};
use lanefs_sync::atomic::Ordering::Acquire;
use std::cell::Cell;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

/// Where the blocks end that 32 bits can number.
pub(crate) const LOW_BLOCKS: u64 = 1 << 32;

/// The blocks that an allocation may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of all groups.
    Volume,
    /// Those of the groups below [`LOW_BLOCKS`]: a map without extents can number no others.
    Low,
}

impl Reach {
    /// Returns the group where it ends.
    fn end(self, store: &Store) -> u32 {
        let (layout, low) = (store.layout(), store.alloc.low_blocks());
        if self == Self::Volume || layout.blocks_count() <= low {
            return u32::MAX;
        }
        let whole = low.saturating_sub(layout.first_data_block()) / u64::from(layout.blocks_per_group());
        // At least the group of the superblock, whose blocks all volumes have.
        u32::try_from(whole).unwrap_or(u32::MAX).max(1)
    }
}

/// How many bitmaps a search reads for a longer run, before it accepts a shorter run of a group
/// whose bitmap is known.
const MAX_LOADS: u32 = 16;

/// A run of blocks taken in core and not on disk. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct Reserved {
    alloc: Arc<Alloc>,
    start: u64,
    len: u32,
}

impl Reserved {
    /// Returns the first block.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the number of blocks: at least 1, except after a split.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Keeps the first `blocks` (at most all) and returns the rest, which may be empty.
    pub(crate) fn split_off(&mut self, blocks: u32) -> Reserved {
        let keep = blocks.min(self.len);
        let (start, len) = (self.start + u64::from(keep), self.len - keep);
        self.len = keep;
        Reserved { alloc: Arc::clone(&self.alloc), start, len }
    }

    /// Returns the counts of its volume's blocks.
    pub(super) fn space(&self) -> &Space {
        &self.alloc.space
    }

    /// Notes that the first `blocks` are marked on disk.
    pub(super) fn used(&mut self, blocks: u32) {
        let used = blocks.min(self.len);
        self.start += u64::from(used);
        self.len -= used;
        self.alloc.space.used(used.into());
    }

    /// Returns the run of blocks whose marks on disk were taken back. They are busy in core still.
    pub(super) fn again(store: &Store, start: u64, len: u32) -> Self {
        store.alloc.space.unused(len.into());
        Self { alloc: Arc::clone(&store.alloc), start, len }
    }

    /// Frees the blocks in core, and adds as many to `claim`.
    pub(super) fn put_into(mut self, claim: &mut Claim) {
        let len = u64::from(mem::take(&mut self.len));
        self.alloc.release(self.start, len);
        claim.unhold(len);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.len != 0 {
            self.alloc.release(self.start, u64::from(self.len));
            self.alloc.space.unhold(self.len.into());
        }
    }
}

/// Claims `blocks` for data that is not allocated yet.
///
/// # Errors
/// [`Error::NoSpace`] if there are too few, even after the files' preallocations are given back.
pub(crate) fn claim(store: &Store, blocks: u64) -> Result<Claim> {
    or_discard(store, || Claim::new(&store.alloc.space, blocks, keep(store)).ok_or(Error::NoSpace))
}

/// Claims `blocks` for the map of data that is allocated. May use reserved blocks too.
///
/// # Errors
/// [`Error::NoSpace`] if there are too few, even after the files' preallocations are given back.
pub(crate) fn claim_for_map(store: &Store, blocks: u64) -> Result<Claim> {
    or_discard(store, || Claim::new(&store.alloc.space, blocks, 0).ok_or(Error::NoSpace))
}

/// Takes 1..=`want` contiguous blocks in core: at `goal`, else a run of `want` near it, else
/// anywhere within `reach`. If no run is so long, takes the longest there is, down to single
/// blocks.
///
/// # Errors
/// [`Error::NoSpace`]: damaged groups count as full.
pub(crate) fn reserve(store: &Store, goal: u64, want: u32, reach: Reach) -> Result<Reserved> {
    or_discard(store, || take_free(store, Goal::at(store, goal), want, reach))
}

/// Takes blocks as [`reserve`] does, but of a claim: it succeeds while the claim has any.
///
/// # Errors
/// [`Error::NoSpace`] if nothing is left of the claim, if the volume's count of free blocks was
/// wrong, or if all that is left lies beyond `reach`.
pub(crate) fn reserve_claimed(
    store: &Store,
    goal: u64,
    want: u32,
    reach: Reach,
    claim: &mut Claim,
) -> Result<Reserved> {
    or_discard(store, || take_claimed(store, Goal::at(store, goal), want, reach, claim))
}

/// Waits until freed blocks can be allocated again, if there are any. Returns whether to try again
/// after [`Error::NoSpace`]. The caller holds no handle, nor anything that another thread needs to
/// end its handle.
///
/// # Errors
/// The journal's.
pub(crate) fn await_frees(store: &Store) -> Result<bool> {
    if !store.alloc.is_freeing() {
        return Ok(false);
    }
    store.counters.space_retries.add(1);
    store.journal.sync()?;
    Ok(true)
}

/// Runs `f`. If it finds no space, gives the files' preallocations back and runs it again.
pub(super) fn or_discard<T>(store: &Store, mut f: impl FnMut() -> Result<T>) -> Result<T> {
    match f() {
        Err(Error::NoSpace) => {
            store.alloc.registry.discard();
            f()
        }
        done => done,
    }
}

thread_local! {
    /// Whether this thread serves an unprivileged user, without the blocks of s_r_blocks_count.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread serves an unprivileged user.
pub(crate) fn keeps_reserved() -> bool {
    KEEPS.get()
}

/// Runs `f`. Meanwhile the calling thread may take the blocks reserved for root, unless `keeps`.
pub(crate) fn keeping_reserved<T>(keeps: bool, f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            KEEPS.set(self.0);
        }
    }
    let _restore = Restore(KEEPS.replace(keeps));
    f()
}

/// Returns the blocks that this thread must leave, because its user may not use them.
pub(super) fn keep(store: &Store) -> u64 {
    if store.use_reserved && !KEEPS.get() { 0 } else { store.reserved_blocks() }
}

/// Returns the blocks that this thread can take now.
pub(super) fn available(store: &Store) -> u64 {
    store.alloc.free_blocks().saturating_sub(keep(store))
}

/// Returns the blocks that this thread can take once every freeing has committed.
pub(crate) fn to_come(store: &Store) -> u64 {
    store.alloc.blocks_to_come().saturating_sub(keep(store))
}

/// Where blocks should lie.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// Right here: group and bit.
    At(u32, u32),
    /// In this group.
    Group(u32),
}

impl Goal {
    /// Returns a goal at `block`, or anywhere if there is no such block.
    pub(super) fn at(store: &Store, block: u64) -> Self {
        store.layout().group_of_block(block).map_or(Goal::Group(0), |(group, bit)| Goal::At(group, bit))
    }

    /// Returns where this thread begins a file whose inode is in `group`: each thread has a group
    /// of its own, near the inode's.
    pub(super) fn stream(store: &Store, group: u32) -> Self {
        let near = store.layout().groups_per_flex().max(8);
        let base = group / near * near;
        let near = near.min(store.layout().group_count().saturating_sub(base)).max(1);
        let lane = store.alloc.lanes.mine() % near;
        Goal::Group(base + ((group - base) % near + lane) % near)
    }
}

/// Takes available blocks.
pub(super) fn take_free(store: &Store, goal: Goal, want: u32, reach: Reach) -> Result<Reserved> {
    let want = u64::from(want.max(1)).min(available(store)) as u32;
    search(store, goal, want, reach, &mut |n| store.alloc.space.hold(n, keep(store)))
}

/// Takes claimed blocks.
pub(super) fn take_claimed(
    store: &Store,
    goal: Goal,
    want: u32,
    reach: Reach,
    claim: &mut Claim,
) -> Result<Reserved> {
    let want = u64::from(want.max(1)).min(claim.blocks()) as u32;
    search(store, goal, want, reach, &mut |n| claim.hold(n))
}

/// Finds a run and takes as much of it as `hold` permits.
fn search(
    store: &Store,
    goal: Goal,
    want: u32,
    reach: Reach,
    hold: &mut dyn FnMut(u64) -> u64,
) -> Result<Reserved> {
    if want == 0 {
        return Err(Error::NoSpace);
    }
    let _timer = store.counters.reserve.start();
    let want = want.min(store.layout().blocks_per_group().min(32768));
    let end = reach.end(store);
    let (home, bit) = match goal {
        Goal::At(group, bit) if group < end => (group, Some(bit)),
        // Goals beyond the reach are spread over it.
        Goal::At(group, _) | Goal::Group(group) => (group % end, None),
    };
    let mut search = Search { store, want, home, bit, end, hold, loads: 0 };
    if let Some(run) = search.at_goal()? {
        return Ok(run);
    }
    // The next power of two: a run that includes it is long enough.
    let first = want.next_power_of_two().ilog2().min(ORDERS as u32 - 1);
    loop {
        let releases = store.alloc.releases.load(Acquire);
        for order in (0..=first).rev() {
            if let Some(run) = search.of_order(order)? {
                return Ok(run);
            }
        }
        // Blocks freed meanwhile may lie in a group that the search had passed.
        if store.alloc.releases.load(Acquire) == releases {
            return Err(Error::NoSpace);
        }
    }
}

struct Search<'s, 'f> {
    store: &'f Store,
    want: u32,
    home: u32,
    bit: Option<u32>,
    /// The group where the reach ends.
    end: u32,
    hold: &'s mut dyn FnMut(u64) -> u64,
    /// Bitmaps that this search has read.
    loads: u32,
}

impl Search<'_, '_> {
    /// Takes the run at the goal, unless it is much shorter than wanted.
    fn at_goal(&mut self) -> Result<Option<Reserved>> {
        let Some(bit) = self.bit else { return Ok(None) };
        let Some(mut state) = self.store.alloc.lock_group(self.home) else { return Ok(None) };
        state.load(self.store, self.home)?;
        let run = state.find_at(bit, self.want);
        if (run.len() as u32) < self.want.div_ceil(4) {
            return Ok(None);
        }
        self.take(self.home, state, run).map(Some)
    }

    /// Takes a run that includes an aligned run of `order`, from the home group on and around the
    /// end of the reach. First tries only groups whose mutex is free.
    fn of_order(&mut self, order: u32) -> Result<Option<Reserved>> {
        for patient in [false, true] {
            let mut skipped = false;
            for (mut at, to) in [(self.home, self.end), (0, self.home)] {
                while let Some(group) = self.store.alloc.orders.next(order, at, to) {
                    at = group + 1;
                    let state = match patient {
                        true => self.store.alloc.lock_group(group),
                        false => self.store.alloc.try_lock_group(group),
                    };
                    let Some(mut state) = state else {
                        skipped = true;
                        continue;
                    };
                    if !state.may_have(self.store, group, order)? {
                        continue;
                    }
                    if state.is_unread() {
                        // A longer run is not worth reading every bitmap of a large volume.
                        if order > 0 && self.loads == MAX_LOADS {
                            continue;
                        }
                        self.loads += 1;
                        state.load(self.store, group)?;
                    }
                    let from = self.bit.filter(|_| group == self.home).unwrap_or(state.next());
                    if let Some(run) = state.find(from, self.want, order) {
                        return self.take(group, state, run).map(Some);
                    }
                }
            }
            if !skipped {
                break;
            }
        }
        Ok(None)
    }

    fn take(&mut self, group: u32, mut state: Locked<'_>, run: Range<u32>) -> Result<Reserved> {
        let first = self.store.layout().group_first_block(group)?;
        let len = (self.hold)(run.len() as u64) as u32;
        if len == 0 {
            return Err(Error::NoSpace);
        }
        state.mark(run.start..run.start + len);
        self.store.alloc.learn(group, &mut state);
        Ok(Reserved { alloc: Arc::clone(&self.store.alloc), start: first + u64::from(run.start), len })
    }
}
