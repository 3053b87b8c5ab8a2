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
    /// Directories by their inode numbers. A directory that the import removes is forgotten.
    known: HashMap<u32, DirId>,
    times: BTreeMap<DirId, Timestamp>,
    /// Places of directories that were removed, to be used again: an archive may make and replace
    /// one directory any number of times.
    free: Vec<DirId>,
}

impl LateTimes {
    /// Returns the place of the directory `name` in `parent`, whose inode is `ino`.
    pub(super) fn place(&mut self, parent: DirId, name: &[u8], ino: u32) -> DirId {
        *self.known.entry(ino).or_insert_with(|| match self.free.pop() {
            Some(place) => self.places.reuse(place, parent, name),
            None => self.places.add(parent, name),
        })
    }

    /// Forgets an inode that was removed, if it was a directory, with everything below it.
    pub(super) fn forget(&mut self, ino: u32) {
        if let Some(place) = self.known.remove(&ino) {
            self.times.remove(&place);
            self.free.push(place);
        }
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

    #[test]
    fn a_removed_directory_gives_its_place_back() {
        let (mut late, at) = (LateTimes::default(), |sec| Timestamp { sec, nsec: 0 });
        let a = late.place(0, b"a", 12);
        late.keep(a, at(1));
        for round in 0..100 {
            late.forget(12);
            assert_eq!(late.place(0, b"b", 12), a, "round {round}");
        }
        late.forget(99);
        assert_eq!(late.into_paths().count(), 0, "the time of what was removed is gone");
    }
}
