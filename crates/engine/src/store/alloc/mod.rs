//! The allocators of blocks and inodes.
//!
//! A group's free blocks are known twice: in the bitmap on disk, changed only by handles, and as
//! buddies in core ([`Buddy`](buddy::Buddy)). The buddies also count as used the blocks that are
//! taken for data in flight ([`Reserved`]), and the blocks whose freeing has not committed. Blocks
//! are chosen in core; a handle later sets the bits on disk. So a crash before that handle leaves
//! the blocks free, and a freed block is never allocated again before its freeing is durable.
//!
//! Lock: one mutex a group ([`Group`]), below the inode locks and above buffers. Held while the
//! bitmap and the descriptor, whose checksum covers the bitmap, change together.

mod blocks;
mod buddy;
mod group;
mod handle;
mod inodes;
mod lane;
mod orders;
mod prealloc;
mod reserve;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod trim;

pub(crate) use blocks::{HeldForFree, free_blocks, free_system_block, hold_for_free, take_reserved, unmark};
pub(crate) use group::{Group, free_runs, read_desc};
pub(crate) use inodes::{InodeHint, alloc_inode, free_inode, hold_inode, used_inodes};
pub(crate) use prealloc::{FileAlloc, Spot, reserve_at};
pub(crate) use reserve::{
    LOW_BLOCKS, Reach, Reserved, await_frees, claim, claim_for_map, keeping_reserved, keeps_reserved,
    reserve, reserve_claimed, to_come,
};
pub(crate) use slots::Slots;
pub(crate) use trim::{discard_freed, trim};

use crate::error::Result;
use crate::store::Store;
use crate::store::space::Space;
use lanefs_format::{GroupDesc, Layout};
use lanefs_journal::Freed;
use lanefs_stats::Counter;
use lanefs_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{Mutex, MutexGuard};
use orders::Orders;
use prealloc::Registry;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use table::GroupTable;

/// A group whose mutex is held.
type Locked<'a> = Ordered<MutexGuard<'a, Group>>;

/// The free blocks and inodes of a volume, by the descriptors of its groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Free {
    blocks: u64,
    inodes: u64,
    /// Runs of groups that have none.
    without_blocks: Vec<Range<u32>>,
    without_inodes: Vec<Range<u32>>,
}

impl Free {
    /// Adds the next group.
    pub(crate) fn add(&mut self, group: u32, desc: &GroupDesc) {
        self.blocks += u64::from(desc.free_blocks_count);
        self.inodes += u64::from(desc.free_inodes_count);
        let full = [
            (desc.free_blocks_count, &mut self.without_blocks),
            (desc.free_inodes_count, &mut self.without_inodes),
        ];
        for (_, runs) in full.into_iter().filter(|(free, _)| *free == 0) {
            match runs.last_mut().filter(|run| run.end == group) {
                Some(run) => run.end += 1,
                None => runs.push(group..group + 1),
            }
        }
    }
}

/// The state of the allocators in core. A group's state is made on first use, so that a volume of
/// 15 TiB costs memory only for the groups in use, whatever it claims.
#[derive(Debug)]
pub(crate) struct Alloc {
    groups: GroupTable,
    blocks_per_group: u64,
    first_data_block: u64,
    space: Arc<Space>,
    orders: Orders,
    /// How often blocks were freed in core: a search that failed is repeated if this has changed.
    releases: AtomicU64,
    /// Blocks whose freeing has not committed.
    freeing: AtomicU64,
    lanes: lane::Lanes,
    registry: Registry,
    /// The free inodes when the volume was opened. Those freed and taken since are counted apart:
    /// threads write no common cache line.
    inodes_at_open: u64,
    inodes_freed: Counter,
    inodes_taken: Counter,
    /// The groups that may have a free inode.
    inodes: Orders,
    /// Where the blocks of [`Reach::Low`] end.
    #[cfg(test)]
    low_blocks: AtomicU64,
}

impl Alloc {
    /// Returns the allocators of a volume with these descriptors, for reading only if `read_only`.
    pub(crate) fn new(layout: &Layout, free: &Free, read_only: bool) -> Self {
        let searched = if read_only { 0 } else { layout.group_count() };
        let alloc = Self {
            groups: GroupTable::new(layout.group_count()),
            blocks_per_group: u64::from(layout.blocks_per_group()),
            first_data_block: layout.first_data_block(),
            space: Arc::new(Space::new(free.blocks)),
            orders: Orders::new(searched, buddy::ORDERS as u32),
            releases: AtomicU64::new(0),
            freeing: AtomicU64::new(0),
            lanes: lane::Lanes::new(),
            registry: Registry::default(),
            inodes_at_open: free.inodes,
            inodes_freed: Counter::new(),
            inodes_taken: Counter::new(),
            inodes: Orders::new(searched, 1),
            #[cfg(test)]
            low_blocks: AtomicU64::new(LOW_BLOCKS),
        };
        free.without_blocks.iter().for_each(|groups| alloc.orders.hide(groups.clone()));
        free.without_inodes.iter().for_each(|groups| alloc.inodes.hide(groups.clone()));
        alloc
    }

    /// Returns the blocks that can still be taken: neither used on disk, nor reserved in core, nor
    /// claimed.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.space.available()
    }

    /// Returns the blocks that are free on disk, reserved and claimed ones included. Exact when no
    /// freeing waits for a commit.
    pub(crate) fn free_on_disk(&self) -> u64 {
        self.space.free_on_disk()
    }

    /// Returns the blocks that files could have once every freeing has committed.
    pub(crate) fn blocks_to_come(&self) -> u64 {
        self.space.free().saturating_add(self.freeing.load(Relaxed))
    }

    /// Returns whether blocks are claimed for data that is not allocated yet, or are about to be
    /// used for it.
    pub(crate) fn has_claims(&self) -> bool {
        self.space.is_promised()
    }

    /// Returns how often blocks became available again.
    pub(crate) fn returns(&self) -> u64 {
        self.space.returns()
    }

    /// Returns whether the freeing of blocks has not committed yet.
    pub(crate) fn is_freeing(&self) -> bool {
        self.freeing.load(Acquire) > 0
    }

    /// Returns the inodes that can still be taken. Counts of a damaged volume may be wrong: they
    /// stop at zero.
    pub(crate) fn free_inodes(&self) -> u64 {
        let taken = self.inodes_taken.get();
        self.inodes_at_open.saturating_add(self.inodes_freed.get()).saturating_sub(taken)
    }

    /// Sets a wrong count of free blocks.
    #[cfg(test)]
    fn set_free_blocks(&self, blocks: u64) {
        self.space.set_available(blocks);
    }

    /// Moves the end of the blocks of [`Reach::Low`].
    #[cfg(test)]
    pub(crate) fn set_low_blocks(&self, blocks: u64) {
        self.low_blocks.store(blocks, Relaxed);
    }

    /// Returns where the blocks of [`Reach::Low`] end.
    #[cfg(test)]
    fn low_blocks(&self) -> u64 {
        self.low_blocks.load(Relaxed)
    }

    /// Returns where the blocks of [`Reach::Low`] end.
    #[cfg(not(test))]
    fn low_blocks(&self) -> u64 {
        LOW_BLOCKS
    }

    fn group(&self, group: u32) -> Option<&Mutex<Group>> {
        self.groups.get(group, || Group::unread(self.orders.is_full(group)))
    }

    fn lock_group(&self, group: u32) -> Option<Locked<'_>> {
        let mutex = self.group(group)?;
        Some(Ordered::take(Level::Group, group.into(), || mutex.lock()))
    }

    /// Locks as [`lock_group`](Self::lock_group) does; `None` if another thread holds the mutex.
    fn try_lock_group(&self, group: u32) -> Option<Locked<'_>> {
        let mutex = self.group(group)?;
        Ordered::try_take(Level::Group, group.into(), || mutex.try_lock())
    }

    /// Updates [`Orders`] after a change of `state`.
    fn learn(&self, group: u32, state: &mut Group) {
        let (before, now) = state.change_of_top();
        if before != now {
            self.orders.set(group, before, now);
        }
    }

    /// Notes that an inode of `group` is free, under the group's mutex.
    fn add_free_inode(&self, group: u32) {
        self.inodes_freed.add(1);
        self.inodes.set(group, None, Some(0));
    }

    /// Notes that no inode of `group` can be taken, under the group's mutex.
    fn no_free_inode(&self, group: u32) {
        self.inodes.set(group, Some(0), None);
    }

    fn sub_free_inode(&self) {
        self.inodes_taken.add(1);
    }

    /// Makes blocks available after their freeing has committed. Called by the journal.
    pub(crate) fn freed(&self, extents: &[Freed]) {
        for e in extents {
            self.release(e.start, e.len);
            self.space.freed(e.len);
            let _ = self.freeing.fetch_update(Release, Relaxed, |f| Some(f.saturating_sub(e.len)));
        }
    }

    /// Makes the blocks and inodes available that a committed growth to `layout` has brought:
    /// `freed` blocks of groups that there were before, and `new` blocks and inodes of others.
    pub(crate) fn grow(&self, layout: &Layout, before: u32, freed: &[Range<u64>], new: (u64, u64)) {
        self.groups.grow(layout.group_count());
        let last = before.saturating_sub(1);
        if let (Some(mut state), Ok(blocks)) = (self.lock_group(last), layout.group_blocks(last)) {
            state.lengthen(blocks);
        }
        let mut blocks = new.0;
        for run in freed {
            self.release(run.start, run.end - run.start);
            blocks += run.end - run.start;
        }
        self.orders.grow(layout.group_count());
        self.inodes.grow(layout.group_count());
        self.space.freed(blocks);
        self.inodes_freed.add(new.1);
        self.releases.fetch_add(1, Release);
    }

    /// Holds the states of groups, loaded, so that nothing is allocated there. `groups` are in
    /// order.
    ///
    /// # Errors
    /// The errors of a journal that has ended.
    pub(crate) fn hold_groups(&self, store: &Store, groups: &BTreeSet<u32>) -> Result<impl Sized> {
        let mut held = Vec::new();
        for &group in groups {
            let Some(mut state) = self.lock_group(group) else { continue };
            state.load(store, group)?;
            held.push(state);
        }
        Ok(held)
    }

    /// Clears blocks in the busy maps, across group borders. The caller updates the counts.
    fn release(&self, start: u64, len: u64) {
        let mut at = start.saturating_sub(self.first_data_block);
        let end = at.saturating_add(len);
        while at < end {
            let (group, bit) = (at / self.blocks_per_group, at % self.blocks_per_group);
            let n = (self.blocks_per_group - bit).min(end - at);
            if let Some(mut state) = self.lock_group(group as u32) {
                state.release(bit as u32, n as u32);
                self.learn(group as u32, &mut state);
            }
            at += n;
        }
        self.releases.fetch_add(1, Release);
    }
}
