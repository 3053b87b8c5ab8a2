//! Walks a whole tree of a side, in the order of names.
//!
//! The walk does not trust the tree: each directory is entered once, and meeting it again is an
//! error. A failure to read one directory does not end the walk.

use crate::failure::{Failure, Noted, OrCannot, Res};
use crate::quote::quoted_content;
use crate::side::{Meta, Side, shown};
use lanefs::AtSymlink;
use lanefs_archive::walk::{self, is_name};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A step of a walk.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) path: PathBuf,
    /// 0 at the root.
    pub(crate) depth: usize,
    pub(crate) meta: Meta,
    pub(crate) when: When,
    /// Last among its siblings.
    pub(crate) last: bool,
}

/// The moment of a step: before or after the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// A file, or a directory before its entries.
    Enter,
    /// A directory after its entries.
    Leave,
}

/// The walk: an iterator of steps and of failures.
pub(crate) struct Walk<'a> {
    side: &'a dyn Side,
    root: PathBuf,
    walk: walk::Walk<Meta>,
    /// The root, before the first step.
    first: Option<Meta>,
    /// The last step entered a directory. Its names are read by the next step, unless
    /// [`Walk::stay_out`] leaves it.
    unread: bool,
    dirs_only: bool,
}

impl<'a> Walk<'a> {
    /// Returns a walk of `root` and all entries below it. `at_end` says whether the
    /// root itself may be a link.
    pub(crate) fn new(side: &'a dyn Side, root: &Path, at_end: AtSymlink) -> Res<Self> {
        let meta = side.metadata(root, at_end).or_cannot("access", shown(side, root))?;
        let (first, walk) = (Some(meta), walk::Walk::new());
        Ok(Self { side, root: root.into(), walk, first, unread: false, dirs_only: false })
    }

    /// Runs `one` for each step. A failure is reported and does not end the walk.
    pub(crate) fn each_step(mut self, mut one: impl FnMut(&mut Self, Step) -> Res) -> Res {
        let mut noted = Noted::default();
        while let Some(step) = self.next() {
            noted.note(step.and_then(|step| one(&mut self, step)))?;
        }
        noted.finish()
    }

    /// Keeps the walk out of the directory that the last step entered; no step leaves it either.
    pub(crate) fn stay_out(&mut self) {
        if std::mem::take(&mut self.unread) {
            self.walk.leave();
        }
    }

    /// Leaves everything but directories out.
    pub(crate) fn keep_dirs_only(&mut self) {
        self.dirs_only = true;
    }

    /// Returns a path below the root.
    fn below(&self, path: &[u8]) -> PathBuf {
        // A join with nothing would add a slash.
        if path.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) }
    }

    /// Reads the names of the directory on top. Filtered before the walk, so that the last of them
    /// is known.
    fn read(&mut self) -> Res {
        let path = self.below(self.walk.path());
        let mut names = self.side.read_dir(&path).or_cannot("open directory", shown(self.side, &path))?;
        if self.dirs_only {
            // What cannot be told stays, and is a failure when it is met.
            names.retain(|name| {
                self.side.metadata(&path.join(name), AtSymlink::NoFollow).map_or(true, |m| m.is_dir())
            });
        }
        self.walk.fill(names);
        Ok(())
    }

    fn enter(&mut self, name: &OsString, meta: Meta, last: bool) -> Res<Step> {
        let (path, depth) = (self.below(&self.walk.path_of(name)), self.walk.depth());
        if meta.is_dir() {
            let identity = Some((meta.device, meta.ino));
            self.walk.enter(name, identity, meta.clone()).map_err(|_| {
                Failure::new(format!(
                    "directory {} (inode {}) was met before by another name: the volume is damaged; run e2fsck on it",
                    quoted_content(shown(self.side, &path)),
                    meta.ino
                ))
            })?;
            self.unread = true;
        }
        Ok(Step { path, depth, meta, when: When::Enter, last })
    }
}

impl Iterator for Walk<'_> {
    type Item = Res<Step>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(meta) = self.first.take() {
            return Some(self.enter(&OsString::new(), meta, true));
        }
        if std::mem::take(&mut self.unread)
            && let Err(failure) = self.read()
        {
            return Some(Err(failure));
        }
        let (name, last) = match self.walk.next()? {
            walk::Step::Name { name, last } => (name, last),
            walk::Step::Leave(meta) => {
                let (path, depth) = (self.below(self.walk.path()), self.walk.depth());
                return Some(Ok(Step { path, depth, meta, when: When::Leave, last: false }));
            }
        };
        let path = self.below(&self.walk.path_of(&name));
        if !is_name(&name) {
            return Some(Err(Failure::new(format!(
                "the name {} has a slash: the volume is damaged; run e2fsck on it",
                quoted_content(shown(self.side, &path))
            ))));
        }
        Some(
            match self.side.metadata(&path, AtSymlink::NoFollow).or_cannot("access", shown(self.side, &path))
            {
                Ok(meta) => self.enter(&name, meta, last),
                Err(failure) => Err(failure),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::HostSide;
    use lanefs_archive::Overwrite;

    #[test]
    fn enters_and_leaves_in_order() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path();
        std::fs::create_dir_all(root.join("b/c")).expect("mkdir");
        std::fs::write(root.join("b/d"), "").expect("write");
        std::fs::write(root.join("a"), "").expect("write");
        let host = HostSide::new(root, Overwrite::default());
        let steps: Vec<String> = Walk::new(&host, root, AtSymlink::NoFollow)
            .expect("a walk")
            .map(|s| s.expect("a step"))
            .map(|s| {
                let name = s.path.strip_prefix(root).expect("below").display().to_string();
                format!("{}{name}", if s.when == When::Enter { '+' } else { '-' })
            })
            .collect();
        assert_eq!(steps, ["+", "+a", "+b", "+b/c", "-b/c", "+b/d", "-b", "-"]);
    }

    #[test]
    fn skips() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir_all(dir.path().join("b/c")).expect("mkdir");
        let host = HostSide::new(dir.path(), Overwrite::default());
        let mut walk = Walk::new(&host, dir.path(), AtSymlink::NoFollow).expect("a walk");
        walk.next();
        walk.next();
        walk.stay_out();
        let left: Vec<When> = walk.map(|s| s.expect("a step").when).collect();
        assert_eq!(left, [When::Leave]);
    }
}
