//! Files whose inodes do not tell their last times yet.
//!
//! A file is added when its times come to be pending, which its writer sees once between two
//! updates of its inode. It stays until a sync or the background thread has told the inode: another
//! sync, at the same time, finds it here and waits for it.

use lanefs_sync::time::Instant;
use lanefs_sync::{IntSet, Mutex};
use std::time::Duration;

/// Files above which their inodes are updated whatever the time: nodes with pending times stay in
/// memory.
const MOST: usize = 16 << 10;

/// A set of inode numbers, and when it was last listed.
#[derive(Debug)]
pub(super) struct DirtyTimes(Mutex<(IntSet<u32>, Instant)>);

impl Default for DirtyTimes {
    fn default() -> Self {
        Self(Mutex::new((IntSet::default(), Instant::now())))
    }
}

impl DirtyTimes {
    /// Adds a file.
    pub(super) fn add(&self, ino: u32) {
        self.0.lock().0.insert(ino);
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.0.lock().0.len()
    }

    /// Lists all files.
    pub(super) fn list(&self) -> Vec<u32> {
        let mut times = self.0.lock();
        times.1 = Instant::now();
        times.0.iter().copied().collect()
    }

    /// Takes a file out. A thread that finds times pending after that adds it again.
    pub(super) fn remove(&self, ino: u32) {
        self.0.lock().0.remove(&ino);
    }

    /// Returns whether the inodes are to be told: at least `age` after the last time, unless that
    /// is zero, or because they are many.
    pub(super) fn are_due(&self, age: Duration) -> bool {
        let times = self.0.lock();
        times.0.len() > MOST || !age.is_zero() && times.1.elapsed() >= age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_due_by_age_or_by_number() {
        let times = DirtyTimes::default();
        for ino in 0..MOST as u32 {
            times.add(ino);
            times.add(ino);
        }
        assert_eq!(times.len(), MOST);
        assert!(!times.are_due(Duration::ZERO) && !times.are_due(Duration::from_secs(3600)));
        assert!(times.are_due(Duration::from_nanos(1)));
        times.add(MOST as u32);
        assert!(times.are_due(Duration::ZERO));
        let listed = times.list();
        assert_eq!((listed.len(), times.len()), (MOST + 1, MOST + 1));
        listed.into_iter().for_each(|ino| times.remove(ino));
        assert!(!times.are_due(Duration::ZERO));
    }
}
