//! Walks a whole tree, in the order of names.
//!
//! The walk does not recurse and does not trust the tree: a volume may hold a directory twice, or
//! inside itself, which would make a walk endless or exponentially long. Each directory is entered
//! once; meeting it again is an error. A failure to read one directory does not end the walk.

use crate::failure::{Failure, OrCannot, Res};
use crate::side::{Meta, Side, shown};
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the walk stands.
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

/// Before or after the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// A file, or a directory before its entries.
    Enter,
    /// A directory after its entries.
    Leave,
}

struct Frame {
    path: PathBuf,
    meta: Meta,
    entries: std::vec::IntoIter<OsString>,
}

/// The walk: an iterator of steps and of failures.
pub(crate) struct Walk<'a> {
    side: &'a dyn Side,
    root: Option<(PathBuf, Meta)>,
    frames: Vec<Frame>,
    /// A directory that was given out and whose entries come next, unless [`Walk::stay_out`] drops
    /// it.
    pending: Option<(PathBuf, Meta)>,
    seen: HashSet<(u64, u64)>,
    dirs_only: bool,
}

impl<'a> Walk<'a> {
    /// Returns a walk of `root` and all entries below it. `follow`: the root itself may be a link.
    pub(crate) fn new(side: &'a dyn Side, root: &Path, follow: bool) -> Res<Self> {
        let meta = side.metadata(root, follow).or_cannot("access", shown(side, root))?;
        Ok(Self {
            side,
            root: Some((root.into(), meta)),
            frames: Vec::new(),
            pending: None,
            seen: HashSet::new(),
            dirs_only: false,
        })
    }

    /// Does not go into the directory that the last step entered; no step leaves it either.
    pub(crate) fn stay_out(&mut self) {
        self.pending = None;
    }

    /// Leaves everything but directories out.
    pub(crate) fn keep_dirs_only(&mut self) {
        self.dirs_only = true;
    }

    /// Returns the names in a directory. Filtered before the walk, so that the last of them is
    /// known.
    fn names(&self, path: &Path) -> Res<Vec<OsString>> {
        let mut names = self.side.read_dir(path).or_cannot("open directory", shown(self.side, path))?;
        if self.dirs_only {
            names.retain(|name| self.side.metadata(&path.join(name), false).is_ok_and(|m| m.is_dir()));
        }
        Ok(names)
    }

    fn give(&mut self, path: PathBuf, meta: Meta, depth: usize, last: bool) -> Res<Step> {
        if meta.is_dir() {
            if !self.seen.insert((meta.device, meta.ino)) {
                return Err(Failure::new(format!(
                    "directory {} (inode {}) was met before by another name: the volume is damaged; run e2fsck on it",
                    crate::quote::quoted(shown(self.side, &path)),
                    meta.ino
                )));
            }
            self.pending = Some((path.clone(), meta.clone()));
        }
        Ok(Step { path, depth, meta, when: When::Enter, last })
    }
}

impl Iterator for Walk<'_> {
    type Item = Res<Step>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((path, meta)) = self.root.take() {
            return Some(self.give(path, meta, 0, true));
        }
        if let Some((path, meta)) = self.pending.take() {
            let (entries, failure) = match self.names(&path) {
                Ok(entries) => (entries, None),
                Err(failure) => (Vec::new(), Some(failure)),
            };
            self.frames.push(Frame { path, meta, entries: entries.into_iter() });
            if let Some(failure) = failure {
                return Some(Err(failure));
            }
        }
        let depth = self.frames.len();
        let frame = self.frames.last_mut()?;
        let Some(name) = frame.entries.next() else {
            let Frame { path, meta, .. } = self.frames.pop()?;
            return Some(Ok(Step { path, depth: depth - 1, meta, when: When::Leave, last: false }));
        };
        let last = frame.entries.as_slice().is_empty();
        let path = frame.path.join(&name);
        if name.as_bytes().contains(&b'/') {
            return Some(Err(Failure::new(format!(
                "the name {} has a slash: the volume is damaged; run e2fsck on it",
                crate::quote::quoted(shown(self.side, &path))
            ))));
        }
        Some(match self.side.metadata(&path, false).or_cannot("access", shown(self.side, &path)) {
            Ok(meta) => self.give(path, meta, depth, last),
            Err(failure) => Err(failure),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Overwrite;
    use crate::side::HostSide;

    #[test]
    fn enters_and_leaves_in_order() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path();
        std::fs::create_dir_all(root.join("b/c")).expect("mkdir");
        std::fs::write(root.join("b/d"), "").expect("write");
        std::fs::write(root.join("a"), "").expect("write");
        let host = HostSide::new(root, Overwrite::default());
        let steps: Vec<String> = Walk::new(&host, root, false)
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
        let mut walk = Walk::new(&host, dir.path(), false).expect("a walk");
        walk.next();
        walk.next();
        walk.stay_out();
        let left: Vec<When> = walk.map(|s| s.expect("a step").when).collect();
        assert_eq!(left, [When::Leave]);
    }
}
