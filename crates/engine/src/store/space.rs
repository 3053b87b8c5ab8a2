//! How many blocks can still be taken, and how many are promised.
//!
//! Every block that is free on disk (and whose freeing has committed) is in one of three counts:
//! *available*, *claimed* (promised to data that is not allocated yet), or *held* (chosen in core
//! by a [`Reserved`](super::alloc::Reserved), not yet marked on disk). A block leaves `available`
//! in one atomic step, so claimed, held and used blocks are never more than the volume has.
//!
//! On a damaged volume whose counts are wrong, they stop at zero.

use lanefs_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Space {
    available: AtomicU64,
    claimed: AtomicU64,
    held: AtomicU64,
    /// Held blocks of preallocations, which are given back when an allocation needs them.
    spare: AtomicU64,
    /// How often blocks became available again.
    returns: AtomicU64,
}

fn sub(count: &AtomicU64, n: u64) {
    let _ = count.fetch_update(Release, Relaxed, |c| Some(c.saturating_sub(n)));
}

impl Space {
    pub(super) fn new(available: u64) -> Self {
        Self { available: AtomicU64::new(available), ..Self::default() }
    }

    pub(super) fn available(&self) -> u64 {
        self.available.load(Relaxed)
    }

    /// Returns whether blocks are claimed, or held by anything but the files' preallocations. After
    /// a `false`, all blocks that were promised before and are not used are available again.
    pub(super) fn is_promised(&self) -> bool {
        self.claimed.load(Acquire) > 0 || self.held.load(Acquire) > self.spare.load(Relaxed)
    }

    #[cfg(test)]
    pub(super) fn set_available(&self, n: u64) {
        self.available.store(n, Relaxed);
    }

    /// Returns the blocks that the bitmaps on disk have as free, once every freeing has committed.
    pub(super) fn free_on_disk(&self) -> u64 {
        self.available().saturating_add(self.claimed.load(Relaxed)).saturating_add(self.held.load(Relaxed))
    }

    /// Holds up to `n` available blocks, and leaves at least `keep`. Returns how many.
    pub(super) fn hold(&self, n: u64, keep: u64) -> u64 {
        let take = |available: u64| n.min(available.saturating_sub(keep));
        self.held.fetch_add(n, Relaxed);
        let before = self.available.fetch_update(Release, Relaxed, |a| Some(a - take(a)));
        let taken = take(before.unwrap_or_else(|a| a));
        sub(&self.held, n - taken);
        taken
    }

    /// Returns the available blocks, and those that preallocations would give back.
    pub(super) fn free(&self) -> u64 {
        self.available().saturating_add(self.spare.load(Relaxed))
    }

    pub(super) fn add_spare(&self, n: u32) {
        self.spare.fetch_add(n.into(), Relaxed);
    }

    pub(super) fn sub_spare(&self, n: u32) {
        sub(&self.spare, n.into());
    }

    /// Notes that held blocks are used on disk now.
    pub(super) fn used(&self, n: u64) {
        sub(&self.held, n);
    }

    /// Notes that blocks which were used on disk are held again.
    pub(super) fn unused(&self, n: u64) {
        self.held.fetch_add(n, Relaxed);
    }

    /// Gives held blocks back.
    pub(super) fn unhold(&self, n: u64) {
        self.give_back(n);
        sub(&self.held, n);
    }

    /// Adds blocks whose freeing is durable.
    pub(super) fn freed(&self, n: u64) {
        self.give_back(n);
    }

    /// Returns how often blocks became available again: an operation that found none may find some
    /// if this has changed since it began.
    pub(super) fn returns(&self) -> u64 {
        self.returns.load(Acquire)
    }

    fn give_back(&self, n: u64) {
        self.available.fetch_add(n, Relaxed);
        self.returns.fetch_add(1, Release);
    }

    /// Removes blocks that were counted as free and cannot be allocated.
    pub(super) fn lose(&self, n: u64) {
        sub(&self.available, n);
    }

    fn claim(&self, n: u64, keep: u64) -> bool {
        let left = |a: u64| a.checked_sub(n).filter(|left| *left >= keep);
        self.claimed.fetch_add(n, Relaxed);
        let claimed = self.available.fetch_update(Release, Relaxed, left).is_ok();
        if !claimed {
            sub(&self.claimed, n);
        }
        claimed
    }

    fn unclaim(&self, n: u64) {
        self.give_back(n);
        sub(&self.claimed, n);
    }

    fn claimed_to_held(&self, n: u64) {
        self.held.fetch_add(n, Relaxed);
        sub(&self.claimed, n);
    }

    fn held_to_claimed(&self, n: u64) {
        self.claimed.fetch_add(n, Relaxed);
        sub(&self.held, n);
    }
}

/// A promise of blocks that are not chosen yet. Dropping it gives back what is left.
///
/// Promised blocks exist: [`reserve_claimed`](super::alloc::reserve_claimed) finds them, though
/// maybe in many runs.
#[derive(Debug)]
pub(crate) struct Claim {
    space: Arc<Space>,
    blocks: u64,
}

impl Claim {
    /// Claims `blocks`, leaving `keep` available; `None` if there are not as many.
    pub(super) fn new(space: &Arc<Space>, blocks: u64, keep: u64) -> Option<Self> {
        space.claim(blocks, keep).then(|| Self { space: Arc::clone(space), blocks })
    }

    /// Returns the blocks that are left of the claim.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Splits up to `blocks` off into a claim of their own.
    pub(crate) fn split(&mut self, blocks: u64) -> Claim {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Claim { space: Arc::clone(&self.space), blocks }
    }

    /// Adds another claim on the same volume to this one.
    pub(crate) fn join(&mut self, mut other: Claim) {
        self.blocks += std::mem::take(&mut other.blocks);
    }

    /// Turns up to `n` blocks of the claim into held ones. Returns how many.
    pub(super) fn hold(&mut self, n: u64) -> u64 {
        let n = n.min(self.blocks);
        self.blocks -= n;
        self.space.claimed_to_held(n);
        n
    }

    /// Turns `n` held blocks, which are free in core, into claimed ones.
    pub(super) fn unhold(&mut self, n: u64) {
        self.blocks += n;
        self.space.held_to_claimed(n);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.blocks != 0 {
            self.space.unclaim(self.blocks);
        }
    }
}
