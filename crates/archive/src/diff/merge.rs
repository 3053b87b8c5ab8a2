//! Two trees of volumes, walked side by side.
//!
//! Names of both are sorted by byte, each directory before its entries. The caller looks at a name
//! and decides whether to enter it.
//!
//! Invariants:
//! - Memory grows with the names of the directories on the way down and with the number of
//!   directories, not with the number of names.
//! - No directory is entered twice, so that a damaged volume, where one may be its own ancestor,
//!   does not make the walk endless.

use crate::places::{DirId, PATH_MAX, Places, joined};
use crate::walk::{Step, Walk, is_name};
use crate::{Action, Cause, Error, Place};
use lanefs::{Dir, Node};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

/// What the old and the new tree have.
pub(crate) type Sides<T> = [Option<T>; 2];

/// Directories of the same path.
pub(crate) struct Level {
    pub(crate) dirs: Sides<Dir>,
    pub(crate) place: DirId,
    /// Both sides have it, the old one has names, and none of them is in the new one.
    pub(crate) is_replaced: bool,
}

/// A walk of two trees.
pub(crate) struct Merge<'a> {
    /// The paths of the roots in their volumes.
    bases: [&'a [u8]; 2],
    walk: Walk<Level>,
    places: Places,
    seen: [HashSet<u32>; 2],
}

/// A name, and its inode in the trees that have it.
pub(crate) struct Pair<'a> {
    pub(crate) name: OsString,
    pub(crate) nodes: Sides<Node>,
    pub(crate) level: &'a Level,
    pub(crate) dir_path: &'a [u8],
    pub(crate) places: &'a Places,
}

impl Pair<'_> {
    /// Returns the path from the roots.
    pub(crate) fn path(&self) -> Vec<u8> {
        joined(self.dir_path, self.name.as_encoded_bytes())
    }
}

/// Returns a path below the root of a side, for an error.
pub(crate) fn place_of(side: usize, bases: [&[u8]; 2], path: &[u8]) -> Place {
    match (side, Place::in_volume(bases[side], path)) {
        (1, Place::Volume(path)) => Place::NewVolume(path),
        (_, place) => place,
    }
}

impl<'a> Merge<'a> {
    /// Starts a walk below two directories, whose paths are `bases`.
    pub(crate) fn new(bases: [&'a [u8]; 2], roots: [Dir; 2]) -> Result<Self, Error> {
        let (walk, places, seen) = (Walk::new(), Places::default(), Default::default());
        let mut merge = Self { bases, walk, places, seen };
        merge.push(OsStr::new(""), Level { dirs: roots.map(Some), place: 0, is_replaced: false })?;
        Ok(merge)
    }

    /// Returns the next name.
    pub(crate) fn next(&mut self) -> Option<Result<Pair<'_>, Error>> {
        let name = loop {
            match self.walk.next()? {
                Step::Name { name, .. } => break name,
                Step::Leave(_) => {}
            }
        };
        let level = self.walk.dir()?;
        let mut nodes = [None, None];
        for (side, dir) in level.dirs.iter().enumerate() {
            let failed = |cause: Cause| {
                let place = place_of(side, self.bases, &self.walk.path_of(&name));
                Some(Err(Error::new(Action::Compare, place, cause)))
            };
            match dir.as_ref().map(|dir| dir.lookup(&name).map_err(lanefs::Error::into_kind)) {
                None | Some(Err(lanefs::Error::NotFound)) => {}
                Some(_) if !is_name(&name) => return failed(Cause::BadName),
                Some(Err(e)) => return failed(e.into()),
                Some(Ok(node)) => nodes[side] = Some(node),
            }
        }
        Some(Ok(Pair { name, nodes, level, dir_path: self.walk.path(), places: &self.places }))
    }

    /// Returns the directories whose names come next.
    pub(crate) fn top(&self) -> Option<&Level> {
        self.walk.dir()
    }

    /// Goes down into the directory that the last step named, in the sides that are told: its names
    /// come next.
    pub(crate) fn enter(&mut self, name: &OsStr, sides: [bool; 2]) -> Result<(), Error> {
        let path = self.walk.path_of(name);
        let mut dirs = [None, None];
        let Some(above) = self.walk.dir() else { return Ok(()) };
        for (side, dir) in above.dirs.iter().enumerate().filter(|(side, _)| sides[*side]) {
            let opened = dir.as_ref().map(|dir| dir.open_dir(name)).transpose();
            let failed = |e| Error::new(Action::Compare, place_of(side, self.bases, &path), e);
            dirs[side] = opened.map_err(failed)?;
        }
        let place = self.places.add(above.place, name.as_encoded_bytes());
        self.push(name, Level { dirs, place, is_replaced: false })
    }

    fn push(&mut self, name: &OsStr, mut level: Level) -> Result<(), Error> {
        let path = self.walk.path_of(name);
        let (mut names, mut of_side) = (Vec::new(), [0; 2]);
        for (side, dir) in level.dirs.iter().enumerate() {
            let Some(dir) = dir else { continue };
            let failed = |cause| Error::new(Action::Compare, place_of(side, self.bases, &path), cause);
            if path.len() > PATH_MAX {
                return Err(failed(Cause::PathTooLong(path.len())));
            }
            if !self.seen[side].insert(dir.metadata().ino()) {
                return Err(failed(Cause::SecondName));
            }
            let entries = dir.read_dir().map_err(|e| failed(e.into()))?;
            of_side[side] = entries.len();
            names.extend(entries.into_iter().map(|entry| entry.name));
        }
        names.sort_unstable();
        names.dedup();
        let (both, in_common) =
            (level.dirs.iter().all(Option::is_some), of_side[0] + of_side[1] - names.len());
        level.is_replaced = both && of_side[0] > 0 && in_common == 0;
        let place = |cause| Error::new(Action::Compare, place_of(0, self.bases, &path), cause);
        self.walk.enter(name, None, level).map_err(place)?;
        self.walk.fill(names);
        Ok(())
    }
}
