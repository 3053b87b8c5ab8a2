//! Walks the names below a directory of a volume, sorted, each directory before its entries.
//!
//! Memory grows with the number of directories and with the depth, never with their product: a
//! path is kept as a name and its parent, and put together when it is asked for.

use super::named;
use crate::archive::Problem;
use crate::archive::places::{PATH_MAX, Place, Places, joined};
use lanefs::Dir;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::vec::IntoIter;

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
        joined(self.dir_path, self.name.as_bytes())
    }
}

impl<'a> Walk<'a> {
    /// Starts a walk at `root`.
    pub(super) fn new(label: &'a [u8], root: Dir) -> Result<Self, Problem> {
        let (stack, path, seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut walk = Self { label, stack, path, places: Places::default(), seen };
        walk.push(root, 0)?;
        Ok(walk)
    }

    /// Goes down into the directory that the last step named: its names come next. Returns its
    /// place, and why it is left out.
    pub(super) fn enter(&mut self, dir: Dir, name: &OsStr) -> (Place, Result<(), Problem>) {
        let parent = self.stack.last().map_or(0, |frame| frame.place);
        let place = self.places.add(parent, name.as_bytes());
        let above = self.path.len();
        self.path = joined(&self.path, name.as_bytes());
        let pushed = self.push(dir, place);
        if pushed.is_err() {
            self.path.truncate(above);
        }
        (place, pushed)
    }

    fn push(&mut self, dir: Dir, place: Place) -> Result<(), Problem> {
        let problem = |cause: &str| Problem::new("export", &named(self.label, &self.path), cause);
        if self.path.len() > PATH_MAX {
            return Err(problem(&format!("a path of {} bytes, at most {PATH_MAX}", self.path.len())));
        }
        if !self.seen.insert(dir.metadata().ino()) {
            return Err(problem("the directory has a second name"));
        }
        let entries = dir.read_dir().map_err(|e| problem(&e.to_string()))?;
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
            let what = named(self.label, &joined(&self.path, name.as_bytes()));
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
