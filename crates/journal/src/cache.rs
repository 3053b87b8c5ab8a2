//! The cache of metadata blocks: a sharded map with clock eviction.
//!
//! A buffer is evicted only if the cache holds the only reference, so a block is in memory at most
//! once. Transactions keep references to the buffers they changed. The checkpoint keeps contents
//! that are committed and not checkpointed; a read looks there before it reads the device.
//!
//! The capacity counts all buffers of a shard, referenced ones too. An insertion into a full shard
//! looks at a few buffers and evicts the idle ones. If there is none among them, the shard grows
//! beyond its capacity, and later insertions evict more than one each.
//!
//! The capacity follows what changed blocks leave of the memory (`Core::divide`). A lower one
//! evicts nothing by itself; the next insertions do. The bound of the memory holds until then: a
//! block that becomes uncheckpointed shares its content with its buffer. It needs memory of its own
//! only if an insertion evicts the buffer, and then the lower capacity counts, or if a transaction
//! changes it, and the capacity always leaves room for two transactions.

use crate::Buffer;
use lanefs_sync::atomic::AtomicUsize;
use lanefs_sync::atomic::Ordering::Relaxed;
use lanefs_sync::{IntMap, Mutex, Padded};
use std::collections::VecDeque;

/// So many that threads with blocks of their own seldom meet in one.
const SHARDS: usize = 64;
/// The number of buffers that an insertion looks at to find room.
const SWEEP: usize = 32;

#[derive(Debug)]
pub(crate) struct Cache {
    shards: Vec<Padded<Mutex<Shard>>>,
    /// Blocks that a shard keeps. Relaxed: it guards no other memory. An insertion that sees an old
    /// value evicts too much or too little, and a later one corrects that.
    capacity: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    buffers: IntMap<u64, Buffer>,
    /// Blocks in clock order. May name blocks that were evicted.
    clock: VecDeque<u64>,
}

impl Cache {
    pub(crate) fn new(blocks: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Padded::default()).collect();
        let cache = Self { shards, capacity: AtomicUsize::new(0) };
        cache.set_capacity(blocks);
        cache
    }

    /// Sets how many blocks the cache keeps. Evicts none.
    pub(crate) fn set_capacity(&self, blocks: usize) {
        self.capacity.store((blocks / SHARDS).max(8), Relaxed);
    }

    fn shard(&self, block: u64) -> &Mutex<Shard> {
        // The golden ratio spreads neighbours over the shards, and blocks at the same place of
        // different groups too.
        let spread = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(spread >> (64 - SHARDS.ilog2())) as usize]
    }

    /// Returns the buffer of `block`, whose content may still be loading. Inserts a new buffer
    /// without content if the block is not cached.
    #[cfg_attr(lanefs_schedule, track_caller)]
    pub(crate) fn get_or_insert(&self, block: u64) -> Buffer {
        let mut shard = self.shard(block).lock();
        if let Some(buffer) = shard.buffers.get(&block) {
            buffer.touch();
            return buffer.clone();
        }
        shard.make_room(self.capacity.load(Relaxed));
        let buffer = Buffer::empty(block);
        shard.buffers.insert(block, buffer.clone());
        shard.clock.push_back(block);
        buffer
    }

    /// Takes the buffer of `block` out of the cache.
    pub(crate) fn remove(&self, block: u64) -> Option<Buffer> {
        self.shard(block).lock().buffers.remove(&block)
    }

    /// Returns the blocks of a range that are in the cache.
    pub(crate) fn blocks_in(&self, start: u64, len: u64) -> Vec<u64> {
        let end = start.saturating_add(len);
        if len <= 1024 {
            return (start..end).filter(|&b| self.shard(b).lock().buffers.contains_key(&b)).collect();
        }
        let in_range = |shard: &Padded<Mutex<Shard>>| {
            let shard = shard.lock();
            shard.buffers.keys().copied().filter(|b| (start..end).contains(b)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(in_range).collect()
    }

    /// Returns the number of buffers.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().buffers.len()).sum()
    }

    /// Drops every buffer without another reference, and shrinks the maps.
    pub(crate) fn clear_unused(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard { buffers, clock } = &mut *shard;
            buffers.retain(|_, buffer| buffer.is_used());
            buffers.shrink_to_fit();
            clock.retain(|block| buffers.contains_key(block));
            clock.shrink_to_fit();
        }
    }
}

impl Shard {
    fn make_room(&mut self, capacity: usize) {
        for _ in 0..SWEEP {
            if self.clock.len() < capacity {
                return;
            }
            let Some(block) = self.clock.pop_front() else { return };
            match self.buffers.get(&block) {
                None => {}
                Some(buffer) if buffer.is_idle() => {
                    self.buffers.remove(&block);
                }
                Some(_) => self.clock.push_back(block),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    fn insert(cache: &Cache, blocks: Range<u64>) {
        blocks.for_each(|block| drop(cache.get_or_insert(block)));
    }

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let cache = Cache::new(SHARDS * 10);
        let held: Vec<Buffer> = (0..100).map(|b| cache.get_or_insert(b)).collect();
        insert(&cache, 1000..20_000);
        assert_eq!(cache.len(), SHARDS * 10, "buffers in use count");
        for buffer in &held {
            assert_eq!(cache.blocks_in(buffer.block(), 1), [buffer.block()]);
        }
    }

    #[test]
    fn what_is_used_goes_beyond_the_capacity_and_insertions_evict_it_later() {
        let cache = Cache::new(SHARDS * 10);
        let held: Vec<Buffer> = (0..SHARDS as u64 * 20).map(|b| cache.get_or_insert(b)).collect();
        assert_eq!(cache.len(), held.len());
        drop(held);
        insert(&cache, 10_000..20_000);
        assert_eq!(cache.len(), SHARDS * 10);
    }

    #[test]
    fn the_capacity_changes_and_a_lower_one_is_reached_by_insertions() {
        let cache = Cache::new(SHARDS * 24);
        insert(&cache, 0..10_000);
        assert_eq!(cache.len(), SHARDS * 24);
        cache.set_capacity(SHARDS * 10);
        assert_eq!(cache.len(), SHARDS * 24);
        insert(&cache, 10_000..20_000);
        assert_eq!(cache.len(), SHARDS * 10);
        cache.set_capacity(SHARDS * 24);
        insert(&cache, 20_000..30_000);
        assert_eq!(cache.len(), SHARDS * 24);
    }

    #[test]
    fn what_nobody_uses_can_be_dropped_at_once() {
        let cache = Cache::new(1000);
        let held = cache.get_or_insert(3);
        (0..500).for_each(|block| _ = cache.get_or_insert(block));
        cache.clear_unused();
        assert_eq!((cache.len(), cache.blocks_in(0, 1000)), (1, vec![held.block()]));
        assert_eq!(cache.shards.iter().map(|shard| shard.lock().clock.len()).sum::<usize>(), 1);
    }

    #[test]
    fn ranges() {
        let cache = Cache::new(1000);
        for block in [5, 6, 900, 5000] {
            cache.get_or_insert(block);
        }
        assert_eq!(cache.blocks_in(5, 10), [5, 6]);
        let mut all = cache.blocks_in(6, u64::MAX);
        all.sort_unstable();
        assert_eq!(all, [6, 900, 5000]);
        assert!(cache.remove(6).is_some());
        assert!(cache.remove(6).is_none());
        assert_eq!(cache.blocks_in(5, 10), [5]);
    }
}
