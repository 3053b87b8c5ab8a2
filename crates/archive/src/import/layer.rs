//! A layer of an image while it is written: its whiteouts, and what it has brought so far.
//!
//! A whiteout takes away what lower layers brought, and what was in the volume before the import.
//! It never takes away what its own layer brought, wherever in the layer it stands.
//!
//! Memory grows with the number of names in the layer, four bytes for most of them: what a layer
//! makes is known by its inode.

use crate::path::split;
use crate::walk::{Step, Walk};
use lanefs::{Dir, Metadata};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The names of a layer that lead to files of lower layers: as many as are remembered.
const LINKS_MAX: usize = 1 << 20;

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
    inodes: HashSet<u32>,
    /// Names that it gave to files of lower layers.
    links: HashSet<u64>,
}

impl Layer {
    pub(super) fn new(label: String, lowest: bool) -> Self {
        Self { label, lowest, inodes: HashSet::new(), links: HashSet::new() }
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
            self.inodes.insert(dir.metadata().ino());
            last = Some(dir);
        }
        let Some(dir) = last.filter(|_| !name.is_empty()) else { return Ok(()) };
        let ino = dir.metadata_of(name)?.ino();
        if !link {
            self.inodes.insert(ino);
        } else if !self.inodes.contains(&ino) {
            if self.links.len() == LINKS_MAX {
                return Err(lanefs::Error::Invalid("more than a million links to files of lower layers"));
            }
            self.links.insert(key(dir.metadata().ino(), name));
        }
        Ok(())
    }

    /// Returns whether the layer brought a name, or something below it.
    fn has(&self, dir: u32, name: &OsStr, ino: u32) -> bool {
        self.inodes.contains(&ino) || self.links.contains(&key(dir, name))
    }

    /// Takes names of a directory away, each with everything below it, but for what this layer
    /// brought. `gone` hears of what is removed.
    pub(super) fn take_away(
        &self,
        dir: &Dir,
        names: Vec<OsString>,
        gone: impl FnMut(&Metadata),
    ) -> lanefs::Result<()> {
        remove(dir, names, |dir, name, ino| self.has(dir, name, ino), gone)
    }
}

/// Returns a hash of a name, the same in every process.
fn key(dir: u32, name: &OsStr) -> u64 {
    let mut hasher = DefaultHasher::new();
    (dir, name).hash(&mut hasher);
    hasher.finish()
}

/// Removes names of a directory, each with everything below it, but for what `keep` says: it is
/// asked with the inode of the directory, the name and its inode. What is above a name that is kept
/// must be kept too. `gone` hears of what is removed.
pub(super) fn remove(
    dir: &Dir,
    names: Vec<OsString>,
    keep: impl Fn(u32, &OsStr, u32) -> bool,
    mut gone: impl FnMut(&Metadata),
) -> lanefs::Result<()> {
    let twice = |_| lanefs::Error::Invalid("a directory with a second name");
    let mut walk = Walk::new();
    walk.enter(OsStr::new(""), None, (dir.clone(), OsString::new(), true)).map_err(twice)?;
    walk.fill(names);
    while let Some(step) = walk.next() {
        let above = walk.dir().map(|(above, ..)| above.clone());
        match (step, above) {
            (Step::Name { name, .. }, Some(above)) => {
                let meta = match above.metadata_of(&name) {
                    Err(lanefs::Error::NotFound) => continue,
                    found => found?,
                };
                let kept = keep(above.metadata().ino(), &name, meta.ino());
                if meta.is_dir() {
                    let below = above.open_dir(&name)?;
                    let names = below.read_dir()?.into_iter().map(|entry| entry.name).collect();
                    walk.enter(&name, Some((0, meta.ino().into())), (below, name.clone(), kept))
                        .map_err(twice)?;
                    walk.fill(names);
                } else if !kept {
                    above.remove_file(&name)?;
                    gone(&meta);
                }
            }
            (Step::Leave((below, name, false)), Some(above)) => {
                let meta = below.metadata();
                above.remove_dir(&name)?;
                gone(&meta);
            }
            _ => {}
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
