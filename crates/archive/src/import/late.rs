//! Times of directories, which an import sets when all names are there.
//!
//! Memory grows with the number of directories on the volume: a directory is known by its inode, so
//! that an archive that names it often, or that comes back to it often, adds nothing.

use crate::places::{DirId, Places};
use lanefs::Timestamp;
use std::collections::{BTreeMap, HashMap};

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct LateTimes {
    places: Places,
    /// Directories by their inode numbers. An import removes no directory, so none is reused.
    known: HashMap<u32, DirId>,
    times: BTreeMap<DirId, Timestamp>,
}

impl LateTimes {
    /// Returns the place of the directory `name` in `parent`, whose inode is `ino`.
    pub(super) fn place(&mut self, parent: DirId, name: &[u8], ino: u32) -> DirId {
        *self.known.entry(ino).or_insert_with(|| self.places.add(parent, name))
    }

    /// Keeps the time of a directory. A later one takes the place of an earlier one.
    pub(super) fn keep(&mut self, place: DirId, mtime: Timestamp) {
        self.times.insert(place, mtime);
    }

    /// Returns paths and times of all directories that have one, in the order of their places.
    pub(super) fn into_paths(self) -> impl Iterator<Item = (Vec<u8>, Timestamp)> {
        let Self { places, times, .. } = self;
        times.into_iter().map(move |(place, mtime)| (places.path(place), mtime))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_kept_once() {
        let (mut late, at) = (LateTimes::default(), |sec| Timestamp { sec, nsec: 0 });
        for round in 0..3 {
            let a = late.place(0, b"a", 12);
            let b = late.place(a, b"b", 13);
            assert_eq!((a, b), (1, 2));
            late.keep(b, at(round));
            late.keep(0, at(7));
        }
        let all: Vec<_> = late.into_paths().collect();
        assert_eq!(all, [(b"".to_vec(), at(7)), (b"a/b".to_vec(), at(2))]);
    }
}
