//! Two inodes of the same name, compared.

use super::DiffOptions;
use crate::Cause;
use crate::difference::Aspect;
use lanefs::{File, FileType, Metadata, Node};
use std::collections::HashMap;

/// Bytes that are compared at once.
const PIECE: u64 = 256 << 10;

/// Which inode of the new tree shares names with which of the old.
///
/// Memory grows with the number of inodes that have several names.
#[derive(Debug, Default)]
pub(crate) struct Links {
    new_of: HashMap<u32, u32>,
    old_of: HashMap<u32, u32>,
    /// Where the content of an old and a new inode differs, of those with several names.
    compared: HashMap<(u32, u32), Option<u64>>,
}

impl Links {
    /// Takes a name that both trees have. Returns whether the names before it say the same of which
    /// inode of the one tree is which of the other.
    pub(crate) fn agree(&mut self, old: &Metadata, new: &Metadata) -> bool {
        if old.nlink() < 2 && new.nlink() < 2 {
            return true;
        }
        let (old, new) = (old.ino(), new.ino());
        let there = *self.new_of.entry(old).or_insert(new);
        let back = *self.old_of.entry(new).or_insert(old);
        (there, back) == (new, old)
    }
}

/// Compares two inodes, but for the content of files. Returns too whether that is left to compare.
pub(crate) fn attributes(
    old: &Node,
    new: &Node,
    options: &DiffOptions,
    links: &mut Links,
) -> Result<(Vec<Aspect>, bool), Cause> {
    let (a, b) = (old.metadata(), new.metadata());
    let kind = a.file_type();
    if kind != b.file_type() {
        return Ok((vec![Aspect::Kind(kind, b.file_type())], false));
    }
    let mut found = Vec::new();
    let mut add = |differs: bool, aspect: Aspect| found.extend(differs.then_some(aspect));
    add(a.permissions() != b.permissions(), Aspect::Mode(a.permissions(), b.permissions()));
    add(a.uid() != b.uid(), Aspect::User(a.uid(), b.uid()));
    add(a.gid() != b.gid(), Aspect::Group(a.gid(), b.gid()));
    add(options.times && a.mtime() != b.mtime(), Aspect::Modified(a.mtime(), b.mtime()));
    match kind {
        FileType::Regular => add(a.len() != b.len(), Aspect::Size(a.len(), b.len())),
        FileType::Symlink => {
            let [a, b] =
                [old.read_link()?, new.read_link()?].map(|to| to.into_os_string().into_encoded_bytes());
            add(a != b, Aspect::Target(a, b));
        }
        FileType::CharDevice | FileType::BlockDevice => {
            let [a, b] = [&a, &b].map(|m| m.device().map_or((0, 0), |d| (d.major, d.minor)));
            add(a != b, Aspect::Device(a, b));
        }
        FileType::Directory | FileType::Fifo | FileType::Socket => {}
    }
    add(kind != FileType::Directory && !links.agree(&a, &b), Aspect::Links);
    found.extend(xattrs(old, new)?);
    Ok((found, kind == FileType::Regular && a.len() == b.len()))
}

/// Returns the attributes that differ, sorted by name.
fn xattrs(old: &Node, new: &Node) -> Result<Vec<Aspect>, Cause> {
    let sorted = |node: &Node| -> Result<_, Cause> {
        let mut all = node.xattrs()?;
        all.sort();
        Ok(all)
    };
    let (old, new) = (sorted(old)?, sorted(new)?);
    let mut names: Vec<_> =
        old.iter().filter(|one| new.binary_search(one).is_err()).map(|(n, _)| n).collect();
    names.extend(new.iter().filter(|one| old.binary_search(one).is_err()).map(|(n, _)| n));
    names.sort_unstable();
    names.dedup();
    Ok(names.into_iter().map(|name| Aspect::Xattr(name.as_encoded_bytes().to_vec())).collect())
}

/// Returns the first byte that differs between two files of the same size. Ranges that are holes in
/// both are not read, and files with several names are read once. `tell` hears how many bytes were
/// compared, and returns what ends the work.
pub(crate) fn content<E>(
    old: &Node,
    new: &Node,
    links: &mut Links,
    tell: impl FnMut(u64) -> Result<(), E>,
) -> Result<Result<Option<u64>, Cause>, E> {
    let (a, b) = (old.metadata(), new.metadata());
    let both = (a.ino(), b.ino());
    if let Some(found) = links.compared.get(&both) {
        return Ok(Ok(*found));
    }
    let compared = match (old.open(), new.open()) {
        (Ok(old), Ok(new)) => content_of(&old, &new, tell)?,
        (Err(e), _) | (_, Err(e)) => Err(e.into()),
    };
    if let Ok(found) = &compared
        && a.nlink().max(b.nlink()) > 1
    {
        links.compared.insert(both, *found);
    }
    Ok(compared)
}

fn content_of<E>(
    old: &File,
    new: &File,
    mut tell: impl FnMut(u64) -> Result<(), E>,
) -> Result<Result<Option<u64>, Cause>, E> {
    let size = old.metadata().len().max(new.metadata().len());
    let mut at = 0;
    let (mut one, mut other) = (Vec::new(), Vec::new());
    loop {
        let range = match next_data(old, new, at) {
            Ok(Some((start, end))) if start < size => start..end.min(size).min(start + PIECE),
            Ok(_) => return Ok(Ok(None)),
            Err(e) => return Ok(Err(e.into())),
        };
        for (file, bytes) in [(old, &mut one), (new, &mut other)] {
            if let Err(e) = read(file, bytes, range.start, (range.end - range.start) as usize) {
                return Ok(Err(e));
            }
        }
        if let Some(byte) = one.iter().zip(&other).position(|(a, b)| a != b) {
            return Ok(Ok(Some(range.start + byte as u64)));
        }
        tell(range.end - range.start)?;
        at = range.end;
    }
}

/// Returns the next range at or behind `at` that is no hole in one of two files.
fn next_data(old: &File, new: &File, at: u64) -> lanefs::Result<Option<(u64, u64)>> {
    Ok(match (old.next_data(at)?, new.next_data(at)?) {
        (Some(old), Some(new)) if old.0 == new.0 => Some((old.0, old.1.min(new.1))),
        (Some(old), Some(new)) => Some(old.min(new)),
        (old, new) => old.or(new),
    })
}

fn read(file: &File, bytes: &mut Vec<u8>, offset: u64, len: usize) -> Result<(), Cause> {
    bytes.resize(len, 0);
    match file.read_at(bytes, offset)? {
        n if n == len => Ok(()),
        _ => Err(Cause::Shrank),
    }
}
