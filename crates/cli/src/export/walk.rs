//! The names below a directory of a volume, each directory before what is in it, sorted.
//!
//! Memory grows with the number of directories and with the depth, never with their product: a
//! path is kept as a name and its parent, and put together when it is asked for.

use super::named;
use crate::archive::Problem;
use lanefs::Dir;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::vec::IntoIter;

/// Bytes of the longest path that is exported. A volume can nest directories without a bound.
const PATH_MAX: usize = 512 << 10;

/// A directory that was met, by its number; the start of the walk is 0.
pub(super) type Place = usize;

/// The directories that were met: each with its parent and its name there.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(Place, Vec<u8>)>);

impl Places {
    /// Returns the path from the start of the walk.
    pub(super) fn path(&self, place: Place) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = place;
        while at != 0 {
            let (parent, name) = &self.0[at];
            names.push(name.as_slice());
            at = *parent;
        }
        names.reverse();
        names.join(&b"/"[..])
    }

    /// Returns the path of a name in a directory.
    pub(super) fn path_of(&self, place: Place, name: &OsStr) -> Vec<u8> {
        joined(&self.path(place), name)
    }
}

/// The path of a name in the directory `dir`.
pub(super) fn joined(dir: &[u8], name: &OsStr) -> Vec<u8> {
    if dir.is_empty() { name.as_bytes().to_vec() } else { [dir, b"/", name.as_bytes()].concat() }
}

/// A walk of a volume.
pub(super) struct Walk<'a> {
    label: &'a [u8],
    stack: Vec<Frame>,
    /// The path of the directory on top of the stack.
    path: Vec<u8>,
    places: Places,
    /// Inodes of all directories that were entered: a damaged volume may lead into one twice.
    seen: HashSet<u32>,
}

struct Frame {
    dir: Dir,
    place: Place,
    /// Bytes of the path.
    path_len: usize,
    names: IntoIter<OsString>,
}

/// A name and where it is.
pub(super) struct Step<'a> {
    pub(super) dir: &'a Dir,
    pub(super) name: OsString,
    /// Its directory.
    pub(super) place: Place,
    dir_path: &'a [u8],
    pub(super) places: &'a Places,
}

impl Step<'_> {
    /// Returns the path from the start of the walk.
    pub(super) fn path(&self) -> Vec<u8> {
        joined(self.dir_path, &self.name)
    }
}

impl<'a> Walk<'a> {
    /// Starts a walk at `root`.
    pub(super) fn new(label: &'a [u8], root: Dir) -> Result<Self, Problem> {
        let places = Places(vec![(0, Vec::new())]);
        let mut walk = Self { label, stack: Vec::new(), path: Vec::new(), places, seen: HashSet::new() };
        walk.push(root, 0)?;
        Ok(walk)
    }

    /// Goes down into the directory that the last step named: its names come next. Returns its
    /// place, and why it is left out.
    pub(super) fn enter(&mut self, dir: Dir, name: &OsStr) -> (Place, Result<(), Problem>) {
        let parent = self.stack.last().map_or(0, |frame| frame.place);
        self.places.0.push((parent, name.as_bytes().to_vec()));
        let place = self.places.0.len() - 1;
        let above = self.path.len();
        self.path = joined(&self.path, name);
        let pushed = self.push(dir, place);
        if pushed.is_err() {
            self.path.truncate(above);
        }
        (place, pushed)
    }

    fn push(&mut self, dir: Dir, place: Place) -> Result<(), Problem> {
        let problem = |cause: &str| Problem::new("export", &named(self.label, &self.path), cause);
        if self.path.len() > PATH_MAX {
            return Err(problem("its path is longer than 512 KiB"));
        }
        if !self.seen.insert(dir.metadata().ino()) {
            return Err(problem("the directory has a second name"));
        }
        let entries = dir.entries().map_err(|e| problem(&e.to_string()))?;
        let mut names: Vec<OsString> = entries.into_iter().map(|e| e.name).collect();
        names.sort();
        self.stack.push(Frame { dir, place, path_len: self.path.len(), names: names.into_iter() });
        Ok(())
    }

    /// Returns the path of the directory that the names come from.
    pub(super) fn dir_path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the next name.
    pub(super) fn next(&mut self) -> Option<Result<Step<'_>, Problem>> {
        while self.stack.last().is_some_and(|frame| frame.names.as_slice().is_empty()) {
            self.stack.pop();
        }
        let frame = self.stack.last_mut()?;
        self.path.truncate(frame.path_len);
        let name = frame.names.next()?;
        if matches!(name.as_bytes(), b"" | b"." | b"..")
            || name.as_bytes().iter().any(|b| matches!(b, 0 | b'/'))
        {
            let what = named(self.label, &joined(&self.path, &name));
            return Some(Err(Problem::new("export", &what, "a name that no file can have")));
        }
        let (dir_path, places) = (self.path.as_slice(), &self.places);
        Some(Ok(Step { dir: &frame.dir, name, place: frame.place, dir_path, places }))
    }

    /// Ends the walk; the directories that it met.
    pub(super) fn into_places(self) -> Places {
        self.places
    }
}
