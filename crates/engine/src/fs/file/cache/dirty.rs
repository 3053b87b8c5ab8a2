//! The dirty pages of a volume: how many bytes, and which files, the longest dirty first.
//!
//! The count changes when a block becomes dirty or clean, the list when a file does. A write into a
//! block that is dirty already touches neither.

use super::file::FileCache;
use super::stream::Stream;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicU64, Ordering};
use lanefs_sync::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

/// Limits of the dirty bytes, as parts of the cache's bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Above it, the flusher writes files out in the background.
    pub(crate) background: u64,
    /// Above it, writers write out too.
    pub(crate) throttle: u64,
    /// Above it, writers wait.
    pub(crate) stop: u64,
}

impl Limits {
    /// Returns the limits for a cache of `bound` bytes: a tenth, a fifth and two fifths of it.
    pub(crate) fn of(bound: u64) -> Self {
        Self { background: bound / 10, throttle: bound / 5, stop: bound / 5 * 2 }
    }

    /// Returns the pressure that `dirty` bytes make.
    pub(crate) fn pressure(&self, dirty: u64) -> Pressure {
        match dirty {
            d if d > self.stop => Pressure::Stop,
            d if d > self.throttle => Pressure::Throttle,
            d if d > self.background => Pressure::Background,
            _ => Pressure::Calm,
        }
    }
}

/// What the amount of dirty bytes asks of a writer, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// Nothing.
    Calm,
    /// To wake the flusher.
    Background,
    /// To write out as much as it wrote, or more.
    Throttle,
    /// To write out, and not to go on before the pressure is less.
    Stop,
}

/// The place of a file in the list: counts up in time.
pub(super) type DirtyTurn = u64;

#[derive(Debug, Default)]
struct Files {
    /// The last turn that was given. No file has turn 0.
    last: DirtyTurn,
    list: BTreeMap<DirtyTurn, (Instant, Weak<FileCache>)>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// The dirty bytes and files of a volume. See the head of the file.
#[derive(Debug)]
pub(super) struct Dirty {
    blocks: Padded,
    files: Mutex<Files>,
    pub(super) limits: Limits,
}

impl Dirty {
    pub(super) fn new(bound: u64) -> Self {
        Self { blocks: Padded::default(), files: Mutex::default(), limits: Limits::of(bound) }
    }

    /// Returns the blocks that are dirty or in writeback.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.0.load(Ordering::Relaxed)
    }

    /// Returns the files with dirty blocks.
    pub(super) fn files(&self) -> usize {
        self.files.lock().list.len()
    }

    /// Counts blocks that are dirty or in writeback: of a chunk, `before` and `after` its change.
    pub(super) fn change(&self, before: u32, after: u32) {
        if before != after {
            self.blocks.0.fetch_add(u64::from(after).wrapping_sub(before.into()), Ordering::Relaxed);
        }
    }

    fn add(&self, file: Weak<FileCache>) -> DirtyTurn {
        let mut files = self.files.lock();
        files.last += 1;
        let turn = files.last;
        files.list.insert(turn, (Instant::now(), file));
        turn
    }

    fn remove(&self, turn: DirtyTurn) {
        let gone = self.files.lock().list.remove(&turn);
        drop(gone);
    }

    /// Returns the files with dirty blocks or a writeback, the longest dirty first.
    pub(super) fn all(&self) -> Vec<Arc<FileCache>> {
        self.files.lock().list.values().filter_map(|(_, file)| file.upgrade()).collect()
    }

    /// Returns the file that has been dirty longest of those behind `after`, and since when.
    pub(super) fn oldest(&self, after: Option<DirtyTurn>) -> Option<(DirtyTurn, Instant, Arc<FileCache>)> {
        let files = self.files.lock();
        let behind = files.list.range(after.map_or(0, |turn| turn + 1)..);
        behind.into_iter().find_map(|(turn, (since, file))| Some((*turn, *since, file.upgrade()?)))
    }
}

/// The dirty chunks of a file.
#[derive(Debug, Default)]
pub(super) struct DirtyChunks {
    chunks: BTreeSet<u32>,
    turn: DirtyTurn,
    /// Writebacks that have taken blocks of the file. If they fail, the blocks are dirty again.
    writebacks: u32,
    pub(super) stream: Stream,
}

impl DirtyChunks {
    /// Adds a chunk; the file's first puts the file into the list, behind the others.
    pub(super) fn insert(&mut self, chunk: u32, all: &Dirty, file: &Weak<FileCache>) {
        if self.chunks.is_empty() {
            // The old turn is removed after the new one is added, so a thread that lists all dirty
            // files always finds this one.
            let old = std::mem::replace(&mut self.turn, all.add(Weak::clone(file)));
            if self.writebacks > 0 {
                all.remove(old);
            }
        }
        self.chunks.insert(chunk);
    }

    /// Removes a chunk; with the last, the file leaves the list, unless a writeback has some of it.
    pub(super) fn remove(&mut self, chunk: u32, all: &Dirty) {
        if self.chunks.remove(&chunk) && self.chunks.is_empty() && self.writebacks == 0 {
            all.remove(self.turn);
        }
    }

    /// Notes that a writeback is about to take chunks. The file stays in the list until it ends: a
    /// thread that waits for all files to be written out waits for this writeback too.
    pub(super) fn writeback_begins(&mut self) {
        self.writebacks += 1;
    }

    /// Notes that the writeback of [`writeback_begins`](Self::writeback_begins) has ended, or took
    /// nothing.
    pub(super) fn writeback_ends(&mut self, all: &Dirty) {
        self.writebacks = self.writebacks.saturating_sub(1);
        // A file that was never dirty has turn 0, which is not in the list.
        if self.writebacks == 0 && self.chunks.is_empty() {
            all.remove(self.turn);
        }
    }

    /// Returns the first dirty chunk from `chunk` on.
    pub(super) fn next(&self, chunk: u32) -> Option<u32> {
        self.chunks.range(chunk..).next().copied()
    }

    /// Removes all chunks.
    pub(super) fn clear(&mut self, all: &Dirty) {
        if !std::mem::take(&mut self.chunks).is_empty() || self.writebacks > 0 {
            all.remove(self.turn);
        }
    }

    /// Returns how many.
    pub(super) fn len(&self) -> u32 {
        self.chunks.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}
