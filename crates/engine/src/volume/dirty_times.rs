//! Files whose inodes do not tell their last times yet.
//!
//! A file is added when its times come to be pending, which its writer sees once between two
//! updates of its inode. It stays until the list is taken: by a sync of the volume, by the timer,
//! or by the background thread when there are too many.

use lanefs_sync::time::Instant;
use lanefs_sync::{IntSet, Mutex};
use std::time::Duration;

/// Files above which their inodes are updated whatever the time: nodes with pending times stay in
/// memory.
const MOST: usize = 16 << 10;

/// A set of inode numbers, and when it was last taken.
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

    /// Takes all files out.
    pub(super) fn take(&self) -> IntSet<u32> {
        let mut times = self.0.lock();
        times.1 = Instant::now();
        std::mem::take(&mut times.0)
    }

    /// Returns whether the files are to be taken: at least `age` after the last time, unless that
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
        assert_eq!(times.take().len(), MOST + 1);
        assert!(!times.are_due(Duration::ZERO));
    }
}
