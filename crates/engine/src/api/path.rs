//! Path lookup: from a path to an inode.

use crate::error::{Error, Result};
use crate::fs::inode::InodeRef;
use crate::fs::namei::PATH_MAX;
use std::collections::VecDeque;

/// Whether an operation on a path follows a symbolic link at the end of it (AT_SYMLINK_FOLLOW,
/// AT_SYMLINK_NOFOLLOW). Links before the end are always followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtSymlink {
    /// The operation is on the inode that the link leads to.
    Follow,
    /// The operation is on the link itself.
    NoFollow,
}

/// Symbolic links that a path may go through, as in the kernel.
pub(super) const MAX_LINKS: u32 = 40;

/// A directory and a name in it that may or may not exist.
pub(super) struct NamePlace {
    pub(super) dir: InodeRef,
    pub(super) name: Vec<u8>,
    /// The path ended in a slash or ".": only a directory will do.
    pub(super) must_be_dir: bool,
}

impl NamePlace {
    /// Returns whether another thread has removed the directory since, and `look` now finds another
    /// one. The path has led to a directory all the time, so the operation that failed is repeated
    /// there.
    pub(super) fn is_stale(&self, look: impl Fn() -> Result<NamePlace>) -> Result<bool> {
        Ok(self.dir.is_nameless() && look()?.dir.ino != self.dir.ino)
    }

    /// Runs `make` at the place that `look` finds, and again if that place was stale.
    pub(super) fn make_at<T>(
        look: impl Fn() -> Result<NamePlace>,
        make: impl Fn(&NamePlace) -> Result<T>,
    ) -> Result<T> {
        loop {
            let place = look()?;
            match make(&place) {
                Err(Error::NotFound) if place.is_stale(&look)? => {}
                done => return done,
            }
        }
    }
}

/// The rest of a path that is being walked.
struct Walk {
    parts: VecDeque<Vec<u8>>,
    must_be_dir: bool,
    links: u32,
}

impl Walk {
    fn new(path: &[u8]) -> Result<Self> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        if path.len() >= PATH_MAX {
            return Err(Error::NameTooLong { len: path.len() });
        }
        Ok(Self { parts: split(path), must_be_dir: wants_dir(path), links: 0 })
    }

    /// Puts a link's target into the path in place of the link.
    fn follow(&mut self, root: &InodeRef, dir: &mut InodeRef, link: &InodeRef) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Error::Loop);
        }
        let target = link.read_link()?;
        if target.starts_with(b"/") {
            *dir = root.clone();
        }
        self.must_be_dir |= self.parts.is_empty() && wants_dir(&target);
        for part in split(&target).into_iter().rev() {
            self.parts.push_front(part);
        }
        Ok(())
    }
}

/// Returns whether only a directory will do at the end: the path ends in a slash or ".".
fn wants_dir(path: &[u8]) -> bool {
    matches!(path.rsplit(|&b| b == b'/').next(), Some(b"" | b"."))
}

fn split(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".").map(<[u8]>::to_vec).collect()
}

/// Returns the inode at `path` from `base` on; an absolute path begins at the root.
/// `at_end` says whether to follow a symbolic link at the end.
pub(super) fn resolve(base: &InodeRef, path: &[u8], at_end: AtSymlink) -> Result<InodeRef> {
    let root = base.fs.root()?;
    let mut walk = Walk::new(path)?;
    let mut at = if path.starts_with(b"/") { root.clone() } else { base.clone() };
    while let Some(part) = walk.parts.pop_front() {
        let node = step(&at, &part)?;
        let last = walk.parts.is_empty();
        if node.state().is_symlink() && (!last || at_end == AtSymlink::Follow || walk.must_be_dir) {
            walk.follow(&root, &mut at, &node)?;
        } else {
            at = node;
        }
    }
    if walk.must_be_dir {
        at.check_dir()?;
    }
    Ok(at)
}

/// Returns the directory of `path` and the name in it. Follows links on the way, but not at the
/// end: the name is the link's own.
///
/// # Errors
/// [`Error::Busy`] for the root, which has no name.
pub(super) fn place(base: &InodeRef, path: &[u8]) -> Result<NamePlace> {
    let root = base.fs.root()?;
    let mut walk = Walk::new(path)?;
    // "a/." names the directory itself by a name that cannot be made or removed.
    if path.rsplit(|&b| b == b'/').find(|part| !part.is_empty()) == Some(b".") {
        walk.parts.push_back(b".".to_vec());
    }
    let Some(name) = walk.parts.pop_back() else { return Err(Error::Busy) };
    let mut at = if path.starts_with(b"/") { root.clone() } else { base.clone() };
    let must_be_dir = walk.must_be_dir;
    while let Some(part) = walk.parts.pop_front() {
        let node = step(&at, &part)?;
        if node.state().is_symlink() {
            walk.follow(&root, &mut at, &node)?;
        } else {
            at = node;
        }
    }
    at.check_dir()?;
    Ok(NamePlace { dir: at, name, must_be_dir })
}

fn step(dir: &InodeRef, part: &[u8]) -> Result<InodeRef> {
    dir.check_dir()?;
    // The root's ".." is the root, whatever its entry says.
    if part == b".." && dir.ino == crate::store::ROOT_INO {
        return Ok(dir.clone());
    }
    dir.lookup(part)
}
