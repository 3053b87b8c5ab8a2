//! The names below a directory of a volume, each directory before what is in it, sorted.

use crate::archive::Problem;
use lanefs::Dir;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::vec::IntoIter;

use super::named;

/// A walk that keeps a `T` for every directory on the way down: what is open on the other side.
pub(super) struct Walk<'a, T> {
    label: &'a [u8],
    stack: Vec<Frame<T>>,
    /// Inodes of all directories that were entered: a damaged volume may lead into one twice.
    seen: HashSet<u32>,
}

struct Frame<T> {
    dir: Dir,
    path: Vec<u8>,
    names: IntoIter<OsString>,
    with: T,
}

/// A name and where it is.
pub(super) struct Step<'a, T> {
    pub(super) dir: &'a Dir,
    pub(super) name: OsString,
    /// From the start of the walk.
    pub(super) path: Vec<u8>,
    /// What goes with its directory.
    pub(super) with: &'a T,
}

impl<'a, T> Walk<'a, T> {
    pub(super) fn new(label: &'a [u8]) -> Self {
        Self { label, stack: Vec::new(), seen: HashSet::new() }
    }

    /// Goes down into a directory: its names come next.
    pub(super) fn enter(&mut self, dir: Dir, path: Vec<u8>, with: T) -> Result<(), Problem> {
        let problem = |cause: &str| Problem::new("export", &named(self.label, &path), cause);
        if !self.seen.insert(dir.metadata().ino()) {
            return Err(problem("the directory has a second name"));
        }
        let entries = dir.entries().map_err(|e| problem(&e.to_string()))?;
        let mut names: Vec<OsString> = entries.into_iter().map(|e| e.name).collect();
        names.sort();
        self.stack.push(Frame { dir, path, names: names.into_iter(), with });
        Ok(())
    }

    /// The next name.
    pub(super) fn next(&mut self) -> Option<Result<Step<'_, T>, Problem>> {
        while self.stack.last().is_some_and(|frame| frame.names.as_slice().is_empty()) {
            self.stack.pop();
        }
        let frame = self.stack.last_mut()?;
        let name = frame.names.next()?;
        let mut path = frame.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(name.as_bytes());
        if matches!(name.as_bytes(), b"" | b"." | b"..")
            || name.as_bytes().iter().any(|b| matches!(b, 0 | b'/'))
        {
            let what = named(self.label, &path);
            return Some(Err(Problem::new("export", &what, "a name that no file can have")));
        }
        Some(Ok(Step { dir: &frame.dir, name, path, with: &frame.with }))
    }
}
