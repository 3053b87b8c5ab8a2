//! Files with pending times: times that their inodes do not have yet.
//!
//! A file is added when its times become pending, under one lock with the flag that says so. So a
//! thread that finds the flag set finds the file here. The file stays until a sync or the flusher
//! has written the times into the inode, unless they have become pending again meanwhile.

use lanefs_sync::time::Instant;
use lanefs_sync::{IntMap, Mutex};
use std::time::Duration;

/// Number of files above which times are written at any age: inodes with pending times stay in
/// memory.
const MOST: usize = 16 << 10;

/// Counts each time that a file's times become pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round(u64);

/// The files of a volume. See the head of the file.
#[derive(Debug)]
pub(super) struct DirtyTimes(Mutex<Files>);

#[derive(Debug)]
struct Files {
    list: IntMap<u32, Round>,
    last: Round,
    listed: Instant,
}

impl Default for DirtyTimes {
    fn default() -> Self {
        Self(Mutex::new(Files { list: IntMap::default(), last: Round(0), listed: Instant::now() }))
    }
}

impl DirtyTimes {
    /// Adds a file; `raise` makes its times pending.
    pub(super) fn add(&self, ino: u32, raise: impl FnOnce()) {
        let mut files = self.0.lock();
        raise();
        files.last.0 += 1;
        let round = files.last;
        files.list.insert(ino, round);
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.0.lock().list.len()
    }

    /// Lists all files.
    pub(super) fn list(&self) -> Vec<(u32, Round)> {
        let mut files = self.0.lock();
        files.listed = Instant::now();
        files.list.iter().map(|(ino, round)| (*ino, *round)).collect()
    }

    /// Removes a file, if its inode has the times that were pending in `round`.
    pub(super) fn remove(&self, ino: u32, round: Round) {
        let mut files = self.0.lock();
        if files.list.get(&ino) == Some(&round) {
            files.list.remove(&ino);
        }
    }

    /// Returns whether to write the times: at least `age` after the last time, unless `age` is
    /// zero, or because there are many files.
    pub(super) fn are_due(&self, age: Duration) -> bool {
        let files = self.0.lock();
        files.list.len() > MOST || !age.is_zero() && files.listed.elapsed() >= age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_due_by_age_or_by_number() {
        let times = DirtyTimes::default();
        for ino in 0..MOST as u32 {
            times.add(ino, || {});
            times.add(ino, || {});
        }
        assert_eq!(times.len(), MOST);
        assert!(!times.are_due(Duration::ZERO) && !times.are_due(Duration::from_secs(3600)));
        assert!(times.are_due(Duration::from_nanos(1)));
        times.add(MOST as u32, || {});
        assert!(times.are_due(Duration::ZERO));
        let listed = times.list();
        assert_eq!((listed.len(), times.len()), (MOST + 1, MOST + 1));
        times.add(7, || {});
        listed.into_iter().for_each(|(ino, round)| times.remove(ino, round));
        assert!(!times.are_due(Duration::ZERO));
        assert_eq!(times.list().iter().map(|(ino, _)| *ino).collect::<Vec<_>>(), [7]);
    }
}
