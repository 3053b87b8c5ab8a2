//! Having write(2) say that the volume is full.
//!
//! The kernel caches what programs write and asks nobody. What finds no space then fails when the
//! kernel hands it down, long after write(2) has returned. So, as the volume gets full:
//!
//! - *Tight*: less is free than the kernel may have dirty. It may keep less from then on:
//!   [`CacheRule::Tight`].
//! - *Full*: what is opened for writing only is written through, so each write(2) is answered here.
//!   Of files that were opened before, the kernel is told that it does not know their attributes.
//!   It asks for them, by the handle, before each write(2), and is answered ENOSPC for a file of
//!   which something was refused, until there is more space than then.
//!
//! A request for attributes does not tell which bytes are to be written. So a file of which nothing
//! was refused is let be: it may be overwritten in place, for which there is always space.

use crate::bdi::{Bdi, CacheRule, DIRTY_PERCENT};
use lanefs::Volume;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// The volume is full with less than so many bytes free.
const FULL_BELOW: u64 = 4 << 20;
/// Beside what the kernel may have dirty, for what becomes dirty until it is told.
const MARGIN: u64 = 64 << 20;

const ROOMY: u8 = 0;
const TIGHT: u8 = 1;
const FULL: u8 = 2;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Fullness {
    level: AtomicU8,
    /// Where the kernel's bound is set, and what it comes to in bytes while the volume is roomy.
    bound: OnceLock<(Bdi, u64)>,
    /// Files of which something was refused, with the blocks that were free then.
    refused: Mutex<HashMap<u32, u64>>,
}

impl Fullness {
    /// Takes note of where the kernel's bound on what is dirty of the mount is set.
    pub(crate) fn bounded_in(&self, bdi: Bdi) {
        let dirty = all_dirty() / 100 * u64::from(DIRTY_PERCENT);
        let _ = self.bound.set((bdi, dirty));
    }

    /// Takes note of how much space is left; whether the volume has become full just now.
    pub(crate) fn observe(&self, volume: &Volume) -> bool {
        let stat = volume.statfs();
        let free = stat.blocks_available.saturating_mul(stat.block_size.into());
        let dirty = self.bound.get().map_or(0, |bound| bound.1);
        let now = self.level.load(SeqCst);
        // A level is left only well above where it is entered.
        let twice = |at, level| if now >= level { 2 * at } else { at };
        let level = if free < twice(FULL_BELOW, FULL) {
            FULL
        } else if free < twice(dirty + MARGIN, TIGHT) {
            TIGHT
        } else {
            ROOMY
        };
        level != now && self.set(now, level)
    }

    fn set(&self, now: u8, level: u8) -> bool {
        if self.level.compare_exchange(now, level, SeqCst, SeqCst).is_err() {
            return false;
        }
        if level != FULL {
            self.refused.lock().clear();
        }
        if let Some((bdi, _)) = self.bound.get().filter(|_| (now == ROOMY) != (level == ROOMY)) {
            bdi.set(if level == ROOMY { CacheRule::Roomy } else { CacheRule::Tight });
        }
        level == FULL
    }

    /// Whether the volume is full.
    pub(crate) fn is_full(&self) -> bool {
        self.level.load(SeqCst) == FULL
    }

    /// Something that the kernel handed down of file `ino` found no space; whether the volume has
    /// become full by that.
    pub(crate) fn refuse(&self, ino: u32, volume: &Volume) -> bool {
        let now = self.level.load(SeqCst);
        let entered = now != FULL && self.set(now, FULL);
        self.refused.lock().insert(ino, volume.statfs().blocks_free);
        entered
    }

    /// Whether the next write(2) to file `ino` is told that the volume is full.
    pub(crate) fn refuses(&self, ino: u32, volume: &Volume) -> bool {
        let mut refused = self.refused.lock();
        let Some(then) = refused.get(&ino) else { return false };
        if volume.statfs().blocks_free <= *then {
            return true;
        }
        refused.remove(&ino);
        false
    }
}

/// Bytes that all file systems together may have dirty, or what the kernel takes unless it is told.
fn all_dirty() -> u64 {
    let number = |path: &str, key: &str| -> Option<u64> {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let bytes = number("/proc/sys/vm/dirty_bytes", "").filter(|bytes| *bytes > 0);
    bytes.unwrap_or_else(|| {
        let ratio = number("/proc/sys/vm/dirty_ratio", "").unwrap_or(20);
        let memory = number("/proc/meminfo", "MemTotal:").unwrap_or(0) << 10;
        memory / 100 * ratio
    })
}
