//! The dirty pages of a volume: how many bytes, and which files, the longest dirty first.
//!
//! The count changes when a block becomes dirty or clean, the list when a file does. A write into a
//! block that is dirty already touches neither.

use super::dirty_chunks::DirtyTurn;
use super::file::FileCache;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicU64, Ordering};
use lanefs_sync::time::Instant;
use std::collections::BTreeMap;
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

    /// Puts a file at the end of the list.
    pub(super) fn add(&self, file: Weak<FileCache>) -> DirtyTurn {
        let mut files = self.files.lock();
        files.last += 1;
        let turn = files.last;
        files.list.insert(turn, (Instant::now(), file));
        turn
    }

    /// Takes the file of a turn, if there is one, out of the list.
    pub(super) fn remove(&self, turn: Option<DirtyTurn>) {
        let gone = turn.and_then(|turn| self.files.lock().list.remove(&turn));
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
