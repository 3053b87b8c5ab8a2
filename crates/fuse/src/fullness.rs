//! Has write(2) report that the volume is full, which the kernel's cache would hide.
//!
//! Hazard: a file of which no write was refused must get no error. It may be overwritten in place,
//! which always has space.

use crate::bdi::{Bdi, CacheRule, DIRTY_PERCENT};
use lanefs::{Node, Volume};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// The volume is full with less than so many bytes free.
const FULL_BELOW: u64 = 4 << 20;
/// Bytes beyond the kernel's bound, for pages that become dirty before the kernel is told.
const MARGIN: u64 = 64 << 20;
/// The most files of which it is noted that a write was refused. With more, all are forgotten:
/// their next write fails at fsync(2) then.
const MOST_REFUSED: usize = 64 << 10;

const ROOMY: u8 = 0;
const TIGHT: u8 = 1;
const FULL: u8 = 2;

/// The fullness of the volume, and the files of which a write was refused.
///
/// The kernel caches what programs write without asking the server. A dirty page that finds no
/// space then fails at writeback, long after write(2) has returned. So, as the volume fills up:
///
/// - *Tight*: less space is free than the kernel may have dirty. The kernel may have less dirty
///   from then on: [`CacheRule::Tight`].
/// - *Full*: a file that is opened for writing only is written through, so each write(2) is
///   answered here. For files that were opened before, the server invalidates the attributes that
///   the kernel has cached. The kernel then asks for them, by the handle, before each write(2). It
///   gets ENOSPC for a file of which a write was refused, until more space is free than then.
///
/// A request for attributes does not tell which bytes are to be written. So a file of which no
/// write was refused gets no error: it may be overwritten in place, which always has space.
#[derive(Debug, Default)]
pub(crate) struct Fullness {
    level: AtomicU8,
    /// Where the kernel's bound is set, and what it comes to in bytes while the volume is roomy.
    bound: OnceLock<(Bdi, u64)>,
    /// Files of which a write was refused, by number and generation, with the number of blocks that
    /// were free then.
    refused: Mutex<HashMap<(u32, u32), u64>>,
}

impl Fullness {
    /// Notes where the kernel's bound on dirty pages of the mount is set.
    pub(crate) fn bounded_in(&self, bdi: Bdi) {
        let dirty = all_dirty() / 100 * u64::from(DIRTY_PERCENT);
        let _ = self.bound.set((bdi, dirty));
    }

    /// Notes how much space is left. Returns whether the volume has become full just now.
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

    /// Returns whether the volume is full.
    pub(crate) fn is_full(&self) -> bool {
        self.level.load(SeqCst) == FULL
    }

    /// Notes that writeback of `file` found no space. Returns whether the volume has become full by
    /// that.
    pub(crate) fn refuse(&self, file: &Node, volume: &Volume) -> bool {
        let now = self.level.load(SeqCst);
        let entered = now != FULL && self.set(now, FULL);
        // Before the lock: it locks the inode.
        let key = key(file);
        let mut refused = self.refused.lock();
        if refused.len() >= MOST_REFUSED {
            refused.clear();
        }
        refused.insert(key, volume.statfs().blocks_free);
        entered
    }

    /// Returns whether the next write(2) to `file` is to fail with ENOSPC.
    pub(crate) fn refuses(&self, file: &Node, volume: &Volume) -> bool {
        let key = key(file);
        let mut refused = self.refused.lock();
        let Some(then) = refused.get(&key) else { return false };
        if volume.statfs().blocks_free <= *then {
            return true;
        }
        refused.remove(&key);
        false
    }
}

fn key(file: &Node) -> (u32, u32) {
    (file.ino(), file.generation())
}

/// Returns how many bytes all file systems together may have dirty: as the system is set, or by the
/// kernel's default.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::*;
    use lanefs::{NewAttr, NewKind};
    use std::ffi::OsStr;

    #[test]
    fn a_file_that_was_refused_leaves_nothing_to_the_next_with_its_number() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let (root, name, fullness) = (volume.root_node().unwrap(), OsStr::new("f"), Fullness::default());
        let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
        let create = || root.create(name, NewKind::File, attr, 0).unwrap();
        let file = create();
        fullness.refuse(&file, &volume);
        assert!(fullness.refuses(&file, &volume));
        let ino = file.ino();
        drop((root.remove_file(name).unwrap(), file));
        let next = create();
        assert_eq!(next.ino(), ino);
        assert!(!fullness.refuses(&next, &volume));
    }
}
