//! Walks trees: names sorted, each directory before its entries and left after them.
//!
//! A [`Walk`] is driven by its caller: [`next`](Walk::next) gives a name, and the caller decides
//! whether to [`enter`](Walk::enter) it. So one walk serves volumes, folders and open descriptors,
//! and the caller keeps what it wants (`D`) for each directory on the way down.
//!
//! Invariants:
//! - No recursion. Memory grows with the depth and with the number of directories, never with their
//!   product.
//! - A directory whose identity is given is entered once: a damaged volume may hold a directory
//!   twice, or inside itself, and a walk of it would be endless or exponentially long.

use crate::Cause;
use crate::places::joined;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::vec::IntoIter;

/// A walk of a tree.
///
/// ```
/// use lanefs_archive::walk::{Step, Walk};
///
/// let volume = lanefs::Volume::in_memory(16 << 20)?;
/// volume.create_dir_all("/etc/ssl")?;
/// let mut walk = Walk::new();
/// walk.enter("".as_ref(), None, volume.open_dir("/etc")?)?;
/// walk.fill(vec!["ssl".into()]);
/// let Some(Step::Name { name, last: true }) = walk.next() else { panic!() };
/// assert_eq!(name, "ssl");
/// assert!(matches!(walk.next(), Some(Step::Leave(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Walk<D> {
    frames: Vec<Frame<D>>,
    /// The path of the directory on top of the stack.
    path: Vec<u8>,
    /// Identities of all directories that were entered.
    seen: HashSet<(u64, u64)>,
}

#[derive(Debug)]
struct Frame<D> {
    dir: D,
    /// Bytes of its path.
    path_len: usize,
    names: IntoIter<OsString>,
}

/// Where a walk stands.
#[derive(Debug)]
pub enum Step<D> {
    /// The next name in the directory on top.
    Name {
        /// The name.
        name: OsString,
        /// No name of that directory follows.
        last: bool,
    },
    /// All names of a directory were given. [`Walk::path`] is its path until the next step.
    Leave(D),
}

impl<D> Default for Walk<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D> Walk<D> {
    /// Returns a walk that has not entered its root yet.
    #[must_use]
    pub fn new() -> Self {
        Self { frames: Vec::new(), path: Vec::new(), seen: HashSet::new() }
    }

    /// Goes down into the directory `name` of the directory on top; the root has an empty name. Its
    /// names are to be given by [`fill`](Self::fill). `identity` tells directories apart, if the
    /// tree may hold one twice.
    ///
    /// # Errors
    /// [`Cause::SecondName`]: it was entered before. The walk goes on with the next name.
    pub fn enter(&mut self, name: &OsStr, identity: Option<(u64, u64)>, dir: D) -> Result<(), Cause> {
        if identity.is_some_and(|identity| !self.seen.insert(identity)) {
            return Err(Cause::SecondName);
        }
        self.path = self.path_of(name);
        self.frames.push(Frame { dir, path_len: self.path.len(), names: Vec::new().into_iter() });
        Ok(())
    }

    /// Takes the names of the directory that was entered last, and sorts them by byte.
    pub fn fill(&mut self, mut names: Vec<OsString>) {
        names.sort();
        if let Some(frame) = self.frames.last_mut() {
            frame.names = names.into_iter();
        }
    }

    /// Leaves the directory that was entered last, without a step.
    pub fn leave(&mut self) -> Option<D> {
        let left = self.frames.pop()?;
        self.path.truncate(self.frames.last().map_or(0, |above| above.path_len));
        Some(left.dir)
    }

    /// Returns the next step; `None` when the root was left.
    #[expect(clippy::should_implement_trait, reason = "a walk is driven between its steps")]
    pub fn next(&mut self) -> Option<Step<D>> {
        let frame = self.frames.last_mut()?;
        self.path.truncate(frame.path_len);
        match frame.names.next() {
            Some(name) => Some(Step::Name { name, last: frame.names.as_slice().is_empty() }),
            None => self.frames.pop().map(|frame| Step::Leave(frame.dir)),
        }
    }

    /// Returns the number of directories on the way down: 1 in the root.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// Returns the directory on top.
    #[must_use]
    pub fn dir(&self) -> Option<&D> {
        self.frames.last().map(|frame| &frame.dir)
    }

    /// Returns the directory at a depth, from 1 on.
    pub fn dir_at(&mut self, depth: usize) -> Option<&mut D> {
        self.frames.get_mut(depth.checked_sub(1)?).map(|frame| &mut frame.dir)
    }

    /// Returns the path of the directory on top, from the root.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the path of a name in the directory on top.
    #[must_use]
    pub fn path_of(&self, name: &OsStr) -> Vec<u8> {
        joined(&self.path, name.as_encoded_bytes())
    }
}

/// Returns whether a file can have this name: it is neither empty nor `.` nor `..`, and has neither
/// a slash nor a NUL.
#[must_use]
pub fn is_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<OsString> {
        names.iter().map(OsString::from).collect()
    }

    /// Steps as text: `+path` of a name, `-path` behind a directory; directories have one letter.
    fn steps(mut walk: Walk<()>) -> Vec<String> {
        let mut steps = Vec::new();
        while let Some(step) = walk.next() {
            match step {
                Step::Leave(()) => steps.push(format!("-{}", String::from_utf8_lossy(walk.path()))),
                Step::Name { name, .. } => {
                    steps.push(format!("+{}", String::from_utf8_lossy(&walk.path_of(&name))));
                    if name == "b" {
                        walk.enter(&name, Some((0, 1)), ()).expect("once");
                        walk.fill(names(&["d", "c"]));
                    }
                }
            }
        }
        steps
    }

    #[test]
    fn enters_and_leaves_in_order() {
        let mut walk = Walk::new();
        walk.enter("".as_ref(), Some((0, 0)), ()).expect("the root");
        walk.fill(names(&["b", "a", "e"]));
        assert_eq!(steps(walk), ["+a", "+b", "+b/c", "+b/d", "-b", "+e", "-"]);
    }

    #[test]
    fn no_directory_is_entered_twice() {
        let mut walk = Walk::new();
        walk.enter("".as_ref(), Some((0, 0)), 0).expect("the root");
        let again = walk.enter("a".as_ref(), Some((0, 0)), 1);
        assert!(matches!(again, Err(Cause::SecondName)), "{again:?}");
        walk.enter("b".as_ref(), None, 1).expect("of no identity");
        assert_eq!((walk.depth(), walk.dir().copied(), walk.dir_at(1).copied()), (2, Some(1), Some(0)));
        assert_eq!((walk.leave(), walk.path()), (Some(1), &b""[..]));
    }

    #[test]
    fn names_that_no_file_can_have() {
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert!(!is_name(bad.as_ref()), "{bad:?}");
        }
        assert!(is_name("...".as_ref()));
    }
}
