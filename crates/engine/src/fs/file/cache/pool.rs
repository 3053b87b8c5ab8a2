//! The memory of all pages: its bound, the free list, and the clock that evicts.
//!
//! Chunks are spread over shards. Each shard has an equal part of the bound, a free list that the
//! [arena](super::arena) fills, and two queues of chunks with pages to evict:
//!
//! - *Passing*: pages that were written, are clean, and were not used since. Above [`PASSING`]
//!   bytes, the oldest are evicted before the cache allocates new memory, even below the bound.
//! - *Clock*: all others, up to the bound. The hand evicts the front chunk's clean pages that were
//!   not used since it last passed, and moves the chunk to the back.
//!
//! Invariants:
//! - A chunk without a page to evict leaves its queue, and returns when one of its pages is clean.
//! - A shard exceeds its part by pages that are dirty, in writeback or locked, and by no others.
//!
//! Locking: a shard's lock comes after a chunk's. The hand only tries the locks of chunks.

use super::arena::Arena;
use super::chunk::Chunk;
use super::file::FileCache;
use super::geometry::{Geometry, PAGES};
use super::page::Page;
use lanefs_device::AlignedBuf;
use lanefs_stats::Counter;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Weak};

/// Bytes that a shard has at least; smaller bounds have one shard.
const SHARD_BYTES: u64 = 4 << 20;
/// Shards at most.
const SHARDS: u64 = 32;

/// Bytes of passing pages at most, and at most half of the bound: bytes that a program writes and
/// reads soon after are still there.
const PASSING: u64 = 256 << 20;

/// A chunk that is in a queue: `listed` is set in it.
#[derive(Debug)]
pub(super) struct PoolEntry {
    pub(super) file: Weak<FileCache>,
    pub(super) chunk: u32,
    /// Its passing pages when it was listed; 0: the chunk is in the clock.
    pub(super) passing: usize,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Pages that are not in the free list: in chunks, or held by a writeback alone.
    used: usize,
    free: Vec<AlignedBuf>,
    clock: VecDeque<PoolEntry>,
    /// Chunks with passing pages, in order of time.
    passing: VecDeque<PoolEntry>,
    /// About how many pages those chunks have.
    passing_pages: usize,
    /// About how many entries belong to chunks that have no page any more.
    stale: usize,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<PoolState>);

/// The memory of all pages of a volume. See the head of the file.
#[derive(Debug)]
pub(super) struct Pool {
    geo: Geometry,
    bound: u64,
    shards: Box<[Shard]>,
    arena: Arena,
    /// Bytes of all files' indexes, which the bound includes.
    index: AtomicUsize,
    /// Bytes of the bound that are left to the journal's memory.
    others: AtomicU64,
    evicted: Counter,
}

impl Pool {
    /// Returns a pool of at most `bound` bytes, or of a chunk where that is more.
    pub(super) fn new(geo: Geometry, bound: u64) -> Self {
        let most = (bound / SHARD_BYTES.max(8 * geo.chunk_size() as u64)).clamp(1, SHARDS);
        let shards = (0..1_u64 << most.ilog2()).map(|_| Shard::default()).collect();
        Self {
            geo,
            bound,
            shards,
            arena: Arena::new(geo),
            index: AtomicUsize::new(0),
            others: AtomicU64::new(0),
            evicted: Counter::new(),
        }
    }

    /// Returns the shard of a file's chunk.
    pub(super) fn shard(&self, ino: u32, chunk: u32) -> usize {
        let key = u64::from(ino) << 32 | u64::from(chunk);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & (self.shards.len() - 1)
    }

    /// Returns how many pages a shard may have. Indexes and the journal's memory take at most three
    /// quarters of the bound: beyond that, the indexes of very large files exceed it.
    fn quota(&self) -> usize {
        let taken = (self.index_bytes() as u64).saturating_add(self.others.load(Ordering::Relaxed));
        let left = self.bound.saturating_sub(taken).max(self.bound / 4);
        let pages = left / (self.shards.len() * self.geo.page_size()) as u64;
        usize::try_from(pages).unwrap_or(usize::MAX).max(PAGES)
    }

    /// Returns how many pages all shards and the arena may have, if a shard may have `quota`.
    fn most(&self, quota: usize) -> usize {
        quota.saturating_mul(self.shards.len())
    }

    /// Returns how many of the `quota` pages may be passing.
    fn passing_quota(&self, quota: usize) -> usize {
        let pages = PASSING / (self.shards.len() * self.geo.page_size()) as u64;
        usize::try_from(pages).unwrap_or(usize::MAX).min(quota / 2)
    }

    /// Hands `n` pages with unspecified bytes to `each`; `in_order`: for bytes that are written in
    /// order. Evicts passing pages for them, and any other page that may go if the shard is full.
    pub(super) fn take(&self, shard: usize, n: usize, in_order: bool, mut each: impl FnMut(Page)) {
        if n == 0 {
            return;
        }
        let quota = self.quota();
        let mut dead = Vec::new();
        let mut state = self.shards[shard].0.lock();
        if state.free.len() < n {
            self.sweep(&mut state, n, quota, &mut dead);
        }
        for left in (1..=n).rev() {
            if state.free.is_empty() {
                self.refill(&mut state, left, in_order, quota);
            }
            let Some(page) = state.free.pop() else { break };
            state.used += 1;
            each(Page::Owned(page));
        }
        self.trim(&mut state, quota);
        drop(state);
        // Dropping the last reference to a file gives its pages back, which locks shards: do it
        // unlocked.
        drop(dead);
    }

    /// Takes pages back, from each holder its reference. That happens under the lock, so that one
    /// of two holders is the last.
    pub(super) fn give_back(&self, shard: usize, pages: impl Iterator<Item = Page>) {
        let mut pages = pages.peekable();
        if pages.peek().is_none() {
            return;
        }
        let quota = self.quota();
        let mut state = self.shards[shard].0.lock();
        pages.for_each(|page| state.give_back(page));
        self.trim(&mut state, quota);
    }

    /// Puts a chunk into its queue.
    pub(super) fn list(&self, shard: usize, entry: PoolEntry) {
        self.shards[shard].0.lock().list(entry);
    }

    /// Notes that `n` entries have become stale, and drops stale entries when there are many.
    pub(super) fn note_stale(&self, shard: usize, n: usize) {
        let mut dead = Vec::new();
        let mut state = self.shards[shard].0.lock();
        state.stale += n;
        if state.stale > 64 + (state.clock.len() + state.passing.len()) / 2 {
            self.step_all(&mut state, &mut dead, |_, _| 0);
            state.stale = 0;
        }
        drop(state);
        drop(dead);
    }

    /// Evicts all pages that may go, even if used lately, and frees their memory.
    pub(super) fn empty(&self) {
        for shard in &self.shards {
            let mut dead = Vec::new();
            let mut state = shard.0.lock();
            let before = state.used;
            self.step_all(&mut state, &mut dead, |_, evictable| evictable);
            self.evicted.add((before - state.used) as u64);
            self.trim(&mut state, 0);
            drop(state);
            drop(dead);
        }
        self.arena.shrink(0);
    }

    /// Leaves `bytes` of the bound to the journal's memory, and evicts pages above the rest.
    pub(super) fn leave_to_others(&self, bytes: u64) {
        self.others.store(bytes, Ordering::Relaxed);
        let quota = self.quota();
        for shard in &self.shards {
            let mut dead = Vec::new();
            let mut state = shard.0.lock();
            if state.used + state.free.len() > quota {
                self.sweep(&mut state, 0, quota, &mut dead);
                self.trim(&mut state, quota);
            }
            drop(state);
            drop(dead);
        }
        self.arena.shrink(self.most(quota));
    }

    /// Counts the bytes of an index.
    pub(super) fn index_grew(&self, bytes: usize) {
        self.index.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts the bytes of an index that is gone.
    pub(super) fn index_gone(&self, bytes: usize) {
        self.index.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of all indexes.
    pub(super) fn index_bytes(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    /// Returns the pages in use, pages that are free, pages evicted so far.
    pub(super) fn count(&self) -> (usize, usize, u64) {
        let (used, free) = self.shards.iter().fold((0, 0), |(used, free), shard| {
            let state = shard.0.lock();
            (used + state.used, free + state.free.len())
        });
        (used, free + self.arena.len(), self.evicted.get())
    }

    /// Returns the entries of all queues.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        let entries = |state: &PoolState| state.clock.len() + state.passing.len();
        self.shards.iter().map(|shard| entries(&shard.0.lock())).sum()
    }

    /// Adds `n` pages to an empty free list, or a chunk's if the quota has room. `in_order` as of
    /// [`take`](Self::take).
    fn refill(&self, state: &mut PoolState, n: usize, in_order: bool, quota: usize) {
        let room = quota.saturating_sub(state.used).min(PAGES);
        // A shard with few pages grows by few.
        let n = room.min(4 * state.used).max(n);
        self.arena.take(n, in_order, self.most(quota), &mut state.free);
    }

    /// Frees the memory of free pages above the quota.
    fn trim(&self, state: &mut PoolState, quota: usize) {
        let keep = quota.saturating_sub(state.used);
        if state.free.len() > keep {
            self.arena.freed(state.free.len() - keep);
            state.free.truncate(keep);
        }
    }

    /// Makes room for `n` pages as far as possible: from passing pages above their quota, then from
    /// the clock, then from the other passing pages.
    fn sweep(&self, state: &mut PoolState, n: usize, quota: usize, dead: &mut Vec<FileCache>) {
        let before = state.used;
        let few = self.passing_quota(quota);
        let full = |state: &PoolState| state.used + n > quota;
        let steps = state.passing.len();
        let much = |state: &PoolState| state.passing_pages > few && state.free.len() < n;
        self.turn(state, steps, PoolState::next_passing, much, dead);
        // The first round may only clear the references.
        let steps = 2 * state.clock.len();
        self.turn(state, steps, |state| state.clock.pop_front(), full, dead);
        let steps = state.passing.len();
        self.turn(state, steps, PoolState::next_passing, full, dead);
        self.evicted.add((before - state.used) as u64);
    }

    /// Moves a hand by at most `steps`, while `wanted`.
    fn turn(
        &self,
        state: &mut PoolState,
        steps: usize,
        next: impl Fn(&mut PoolState) -> Option<PoolEntry>,
        wanted: impl Fn(&PoolState) -> bool,
        dead: &mut Vec<FileCache>,
    ) {
        for _ in 0..steps {
            if !wanted(state) {
                break;
            }
            let Some(entry) = next(state) else { break };
            self.step(state, entry, dead, |chunk, evictable| evictable & !chunk.forget_references());
        }
    }

    /// Visits each entry of both queues once.
    fn step_all(
        &self,
        state: &mut PoolState,
        dead: &mut Vec<FileCache>,
        choose: impl Fn(&mut Chunk, u16) -> u16,
    ) {
        state.passing_pages = 0;
        let entries = mem::take(&mut state.passing).into_iter().chain(mem::take(&mut state.clock));
        for entry in entries {
            self.step(state, entry, dead, &choose);
        }
    }

    /// Visits one chunk: of its pages that may go, evicts those that `choose` takes. If this was
    /// the last reference to the file, moves the file to `dead`, to be dropped when no lock is
    /// held.
    fn step(
        &self,
        state: &mut PoolState,
        mut entry: PoolEntry,
        dead: &mut Vec<FileCache>,
        choose: impl FnOnce(&mut Chunk, u16) -> u16,
    ) {
        let Some(file) = entry.file.upgrade() else {
            state.stale = state.stale.saturating_sub(1);
            return;
        };
        let mut keep = true;
        if let Some(mut slot) = file.slot(entry.chunk).and_then(|slot| slot.try_write()) {
            keep = slot.as_mut().is_some_and(|chunk| {
                if chunk.is_referenced() {
                    entry.passing = 0;
                }
                let evictable = chunk.evictable(self.geo);
                let victims = choose(chunk, evictable);
                for p in (0..PAGES).filter(|p| victims & (1 << p) != 0) {
                    chunk.uptodate &= !self.geo.page_mask(p);
                }
                chunk.take_unused(self.geo).rev().for_each(|page| state.give_back(page));
                chunk.listed = victims != evictable;
                chunk.listed
            });
            if slot.as_ref().is_some_and(|chunk| !keep && chunk.is_empty()) {
                *slot = None;
            }
        }
        if keep {
            state.list(entry);
        }
        dead.extend(Arc::into_inner(file));
    }
}

impl PoolState {
    /// Puts a chunk at the end of its queue.
    fn list(&mut self, entry: PoolEntry) {
        self.passing_pages += entry.passing;
        match entry.passing {
            0 => self.clock.push_back(entry),
            _ => self.passing.push_back(entry),
        }
    }

    /// Takes out the oldest chunk of the passing queue.
    fn next_passing(&mut self) -> Option<PoolEntry> {
        let entry = self.passing.pop_front()?;
        self.passing_pages -= entry.passing;
        Some(entry)
    }

    fn give_back(&mut self, page: Page) {
        if let Some(memory) = page.into_memory() {
            self.used -= 1;
            self.free.push(memory);
        }
    }
}
