//! A layer of an image while it is written: its whiteouts, and what it has brought so far.
//!
//! A whiteout takes away what lower layers brought, and what was in the volume before the import.
//! It never takes away what its own layer brought, wherever in the layer it stands.
//!
//! Memory grows with the number of names in the layer, a bit for most of them: what a layer makes
//! is known by its inode. Of a directory whose names are removed, a thousand are read at once.

use super::dir_times::{DirTimes, set_again};
use super::number_set::NumberSet;
use crate::path::{is_lost_found, split};
use lanefs::{Dir, Metadata, Timestamp};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow::{Break, Continue};

/// The names of a layer that lead to files of lower layers: as many as are remembered.
const LINKS_MAX: usize = 1 << 20;
/// Names of a directory that are read at once.
const NAMES_MAX: usize = 1000;

/// What a name in a layer says about lower layers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whiteout<'a> {
    /// The name in the directory is gone.
    Name { dir: &'a [u8], name: &'a [u8] },
    /// All names in the directory are gone.
    Opaque { dir: &'a [u8] },
    /// The layer's maker kept this for itself (`.wh..wh.plnk`).
    Ignored,
    /// It takes away no name that a file can have.
    Malformed,
}

/// Returns what a path, which [`clean`](crate::path::clean) has passed, says about lower layers.
pub(super) fn whiteout(path: &[u8]) -> Option<Whiteout<'_>> {
    let (dir, last) = split(path);
    let above = |part: &[u8]| part.starts_with(b".wh.");
    if dir.split(|b| *b == b'/').any(|part| part.starts_with(b".wh..wh.")) {
        return Some(Whiteout::Ignored);
    }
    if dir.split(|b| *b == b'/').any(above) {
        return Some(Whiteout::Malformed);
    }
    Some(match last.strip_prefix(b".wh.")? {
        b".wh..opq" => Whiteout::Opaque { dir },
        name if name.starts_with(b".wh.") => Whiteout::Ignored,
        b"" | b"." | b".." => Whiteout::Malformed,
        name => Whiteout::Name { dir, name },
    })
}

/// The layer that is being written.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its name in errors.
    pub(super) label: String,
    /// Nothing is below it: its whiteouts have no meaning, and nothing needs to be remembered.
    lowest: bool,
    /// Inodes that it made, and directories that it named or put a name into.
    inodes: NumberSet,
    /// Names that it gave to files of lower layers.
    links: HashSet<u64>,
}

impl Layer {
    pub(super) fn new(label: String, lowest: bool) -> Self {
        Self { label, lowest, inodes: NumberSet::default(), links: HashSet::new() }
    }

    pub(super) fn is_lowest(&self) -> bool {
        self.lowest
    }

    /// Remembers that the layer brought `name`, which exists now, in the last of `dirs`, the
    /// directories on the way to it; an empty name is that directory itself. `link`: it is a
    /// further name of a file.
    pub(super) fn bring<'a>(
        &mut self,
        dirs: impl Iterator<Item = &'a Dir>,
        name: &OsStr,
        link: bool,
    ) -> lanefs::Result<()> {
        if self.lowest {
            return Ok(());
        }
        let mut last = None;
        for dir in dirs {
            self.inodes.insert(dir.metadata().ino().into());
            last = Some(dir);
        }
        let Some(dir) = last.filter(|_| !name.is_empty()) else { return Ok(()) };
        let ino = dir.symlink_metadata(name)?.ino();
        if !link {
            self.inodes.insert(ino.into());
        } else if !self.inodes.contains(ino.into()) {
            if self.links.len() == LINKS_MAX {
                return Err(lanefs::Error::Invalid("more than a million links to files of lower layers"));
            }
            self.links.insert(key(dir.metadata().ino(), name));
        }
        Ok(())
    }

    /// Returns whether the layer brought a name, or something below it.
    fn has(&self, dir: u32, name: &OsStr, ino: u32) -> bool {
        self.inodes.contains(ino.into()) || self.links.contains(&key(dir, name))
    }

    /// Takes a name of a directory away, or all of them, each with everything below it, but for
    /// what this layer brought. `gone` hears of what is removed.
    pub(super) fn take_away(
        &self,
        dir: &Dir,
        name: Option<&OsStr>,
        times: &mut DirTimes,
        gone: impl FnMut(&Metadata),
    ) -> lanefs::Result<()> {
        remove(dir, name, |dir, name, ino| self.has(dir, name, ino), times, gone)
    }
}

/// Returns a hash of a name, the same in every process.
fn key(dir: u32, name: &OsStr) -> u64 {
    let mut hasher = DefaultHasher::new();
    (dir, name).hash(&mut hasher);
    hasher.finish()
}

/// A directory whose names are being removed.
struct Removal {
    dir: Dir,
    /// Its name, and whether it stays.
    name: OsString,
    kept: bool,
    /// The time that it must keep.
    mtime: Option<Timestamp>,
    /// The next names, the last first, and the cookie of the entry behind which there may be more.
    names: Vec<OsString>,
    cookie: Option<u64>,
}

impl Removal {
    fn of_all(dir: Dir, name: OsString, kept: bool, mtime: Option<Timestamp>) -> Self {
        Self { dir, name, kept, mtime, names: Vec::new(), cookie: Some(0) }
    }

    fn next(&mut self) -> lanefs::Result<Option<OsString>> {
        if self.names.is_empty()
            && let Some(cookie) = self.cookie.take()
        {
            let (names, more) = (&mut self.names, &mut self.cookie);
            let mut last = cookie;
            self.dir.read_dir_from(cookie, |entry| {
                if names.len() == NAMES_MAX {
                    *more = Some(last);
                    return Break(());
                }
                last = entry.cookie;
                if entry.name != "." && entry.name != ".." {
                    names.push(entry.name.to_owned());
                }
                Continue(())
            })?;
            names.sort_by(|one, other| other.cmp(one));
        }
        Ok(self.names.pop())
    }
}

/// Removes a name of a directory, or all of them, each with everything below it, but for what
/// `keep` says and for `lost+found`: it is asked with the inode of the directory, the name and its
/// inode. What is above a name that is kept must be kept too. `gone` hears of what is removed.
pub(super) fn remove(
    dir: &Dir,
    name: Option<&OsStr>,
    keep: impl Fn(u32, &OsStr, u32) -> bool,
    times: &mut DirTimes,
    mut gone: impl FnMut(&Metadata),
) -> lanefs::Result<()> {
    let mut root = Removal::of_all(dir.clone(), OsString::new(), true, None);
    if let Some(name) = name {
        (root.names, root.cookie) = (vec![name.to_owned()], None);
    }
    let (mut left, mut seen) = (vec![root], NumberSet::default());
    while let Some(at) = left.last_mut() {
        let Some(name) = at.next()? else {
            let done = left.pop().filter(|_| !left.is_empty());
            match (done, left.last()) {
                (Some(below), _) if below.kept => set_again(&below.dir, below.mtime)?,
                (Some(below), Some(above)) => {
                    let meta = below.dir.metadata();
                    above.dir.remove_dir(&below.name)?;
                    times.forget(meta.ino());
                    gone(&meta);
                }
                _ => {}
            }
            continue;
        };
        let meta = match at.dir.symlink_metadata(&name).map_err(lanefs::Error::into_kind) {
            _ if is_lost_found(&at.dir, &name) => continue,
            Err(lanefs::Error::NotFound) => continue,
            found => found?,
        };
        let kept = keep(at.dir.metadata().ino(), &name, meta.ino());
        if meta.is_dir() {
            if !seen.insert(meta.ino().into()) {
                return Err(lanefs::Error::Invalid("a directory with a second name"));
            }
            let below = at.dir.open_dir(&name)?;
            let mtime = times.of(&below);
            left.push(Removal::of_all(below, name, kept, mtime));
        } else if !kept {
            at.dir.remove_file(&name)?;
            times.forget(meta.ino());
            gone(&meta);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiteouts_are_told_by_their_names() {
        let name = |dir: &'static str, name: &'static str| {
            Some(Whiteout::Name { dir: dir.as_bytes(), name: name.as_bytes() })
        };
        for (path, meant) in [
            ("a/b", None),
            ("a/.whx", None),
            ("", None),
            (".wh.a", name("", "a")),
            ("a/b/.wh.c", name("a/b", "c")),
            ("a/.wh....", name("a", "...")),
            (".wh..wh..opq", Some(Whiteout::Opaque { dir: b"" })),
            ("a/.wh..wh..opq", Some(Whiteout::Opaque { dir: b"a" })),
            (".wh..wh.plnk/12.34", Some(Whiteout::Ignored)),
            (".wh..wh.orph", Some(Whiteout::Ignored)),
            (".wh.", Some(Whiteout::Malformed)),
            ("a/.wh..", Some(Whiteout::Malformed)),
            (".wh...", Some(Whiteout::Malformed)),
            ("a/.wh.b/c", Some(Whiteout::Malformed)),
        ] {
            assert_eq!(whiteout(path.as_bytes()), meant, "{path}");
        }
    }
}
