//! Lists a directory, from any position on.
//!
//! A cookie is the position behind an entry. In a linear directory it is a byte offset: entries
//! there never move. In an indexed directory it is made of the hash, as the kernel's is: 31 bits of
//! major hash, then 32 bits of minor hash. So it stays valid when leaves split. With `dir_index`, a
//! directory of one block is listed by hash too, because it becomes indexed when it grows.
//!
//! Invariants:
//! - Names with equal hashes are listed in the order of their bytes, at consecutive positions, so a
//!   listing needs no memory between two calls.
//! - Callbacks run without the lock of any buffer.
//!
//! Hazard: removing one of several names with equal hashes shifts the positions of the others.

use super::block::Dir;
use super::htree::IndexPath;
use super::is_gone;
use super::walk::Walk;
use crate::error::{DirError, Result};
use crate::store::Store;
use lanefs_format::dirent::{Dirent, entries};
use lanefs_format::hash::{HashVersion, NameHasher};
use lanefs_format::{FileType, Inode, ext4_chksum};
use std::ops::ControlFlow;

/// A name, as [`read_dir`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedEntry<'a> {
    /// Its inode.
    pub(crate) ino: u32,
    /// The recorded type, if there is one.
    pub(crate) file_type: Option<FileType>,
    /// 1 to 255 bytes without '/' and NUL; "." and ".." among them.
    pub(crate) name: &'a [u8],
    /// The position behind this entry. Less than 2^63.
    pub(crate) cookie: u64,
}

/// Positions of the dots in hash order; all other names come behind.
const DOT: u64 = 0;
const DOTDOT: u64 = 1;

/// Names of one hash that a listing keeps in memory. No honest directory has nearly as many.
const MAX_WAITING: usize = if cfg!(test) { 500 } else { 1 << 17 };

type Each<'a> = dyn FnMut(ListedEntry<'_>) -> ControlFlow<()> + 'a;

/// Calls `each` for the entries from `cookie` on (0 is the start) until it breaks.
///
/// # Errors
/// A damaged directory, or one with a feature that lanefs does not read.
pub(crate) fn read_dir(store: &Store, inode: &Inode, cookie: u64, each: &mut Each<'_>) -> Result<()> {
    if is_gone(inode) {
        return Ok(());
    }
    let dir = Dir::new(store, inode)?;
    let end = if dir.indexed() {
        by_index(&dir, cookie, each)?
    } else if dir.blocks == 1 && dir.params().index {
        by_hash(&dir, cookie, each)?
    } else {
        by_offset(&dir, cookie, each)?
    };
    // The caller does not need to know whether the listing ended or `each` broke it off.
    let (ControlFlow::Continue(()) | ControlFlow::Break(())) = end;
    Ok(())
}

/// Returns whether a directory has no names but the dots.
///
/// # Errors
/// As [`read_dir`]; a first block without dots.
pub(crate) fn is_empty(store: &Store, inode: &Inode) -> Result<bool> {
    if is_gone(inode) {
        return Ok(true);
    }
    let dir = Dir::new(store, inode)?;
    let mut walk = Walk::new(&dir);
    let mut names_in = |lblk, skip| -> Result<bool> {
        let buffer = walk.enter(lblk, dir.leaf(lblk)?)?;
        let bytes = buffer.read();
        Ok(entries(&bytes, dir.layout()).skip(skip).flatten().any(|e| e.inode != 0))
    };
    if dir.indexed() {
        let (root, info) = dir.root()?;
        let mut path = IndexPath::to(&dir, root, info, 0)?;
        loop {
            if names_in(path.leaf, 0)? {
                return Ok(false);
            }
            if !path.next(&dir)? {
                return Ok(true);
            }
        }
    }
    check_dots(&dir)?;
    for lblk in 0..dir.blocks {
        if names_in(lblk, if lblk == 0 { 2 } else { 0 })? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that a linear directory starts with "." for itself, and "..".
fn check_dots(dir: &Dir<'_>) -> Result<()> {
    let buffer = dir.leaf(0)?;
    let bytes = buffer.read();
    let mut all = entries(&bytes, dir.layout()).flatten();
    let (ino, mut next) = (dir.inode.ino, || all.next());
    if next().is_none_or(|e| e.name != b"." || e.inode != ino) {
        return Err(DirError::Dots { ino, name: "." }.into());
    }
    if next().is_none_or(|e| e.name != b".." || e.inode == 0) {
        return Err(DirError::Dots { ino, name: ".." }.into());
    }
    Ok(())
}

fn by_offset(dir: &Dir<'_>, cookie: u64, each: &mut Each<'_>) -> Result<ControlFlow<()>> {
    let block_size = dir.layout().block_size as u64;
    let first = u32::try_from(cookie / block_size).unwrap_or(u32::MAX);
    let mut walk = Walk::new(dir);
    for lblk in first..dir.blocks {
        let base = u64::from(lblk) * block_size;
        let copy = walk.enter(lblk, dir.listed_leaf(lblk)?)?.read().to_vec();
        // From the block's start: another entry may have grown over the place of the cookie.
        for entry in entries(&copy, dir.layout()).flatten() {
            if entry.inode == 0 || base + (entry.offset as u64) < cookie {
                continue;
            }
            let next = entry.next();
            let next = if next == dir.layout().end() { dir.layout().block_size } else { next };
            let Dirent { inode: ino, file_type, name, .. } = entry;
            let flow = each(ListedEntry { ino, file_type, name, cookie: base + next as u64 });
            if flow.is_break() {
                return Ok(flow);
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Lists a linear directory of one block, in the order that an index would give it.
fn by_hash(dir: &Dir<'_>, cookie: u64, each: &mut Each<'_>) -> Result<ControlFlow<()>> {
    let copy = dir.leaf(0)?.read().to_vec();
    let mut batch = Batch::new(dir.params().hasher);
    for (i, entry) in entries(&copy, dir.layout()).flatten().enumerate() {
        match (i, entry.name) {
            _ if entry.inode == 0 => {}
            (0, b".") => batch.push_at(&entry, DOT),
            (1, b"..") => batch.push_at(&entry, DOTDOT),
            _ => drop(batch.push(&entry)),
        }
    }
    Ok(batch.emit(u64::MAX, cookie, each))
}

fn by_index(dir: &Dir<'_>, cookie: u64, each: &mut Each<'_>) -> Result<ControlFlow<()>> {
    dir.read_around(0)?;
    let (root, info) = dir.root()?;
    let mut batch = Batch::new(dir.params().hasher.with_version(info.hash_version));
    for (ino, name, position) in [(info.own, &b"."[..], DOT), (info.parent, b"..", DOTDOT)] {
        let file_type = Some(FileType::Directory).filter(|_| dir.layout().file_types);
        batch.push_at(&Dirent { offset: 0, inode: ino, rec_len: 0, file_type, name }, position);
    }
    let mut path = IndexPath::to(dir, root, info, batch.hash_of(cookie))?;
    let mut walk = Walk::new(dir);
    loop {
        let copy = walk.enter(path.leaf, dir.listed_leaf_by_hash(path.leaf)?)?.read().to_vec();
        push_leaf(dir, &path, &copy, &mut batch)?;
        // Names with a hash that continues in the next leaf wait for the rest of them.
        let continued = path.high.filter(|high| high & 1 != 0);
        if continued == Some(path.low) {
            // The leaf has no names of another hash: all of them wait.
            if batch.items.len() > MAX_WAITING {
                let (ino, hash) = (dir.inode.ino, path.low & !1);
                return Err(DirError::EqualHashes { ino, hash, most: MAX_WAITING }.into());
            }
        } else {
            let until = continued.map_or(u64::MAX, |high| position(high & !1, 0));
            let flow = batch.emit(until, cookie, each);
            if flow.is_break() {
                return Ok(flow);
            }
        }
        if !path.next(dir)? {
            return Ok(ControlFlow::Continue(()));
        }
    }
}

/// Adds the names of the leaf of `path` to the batch.
fn push_leaf(dir: &Dir<'_>, path: &IndexPath, bytes: &[u8], batch: &mut Batch) -> Result<()> {
    let (ino, lblk) = (dir.inode.ino, path.leaf);
    let (low, high) = (path.low & !1, path.high.unwrap_or(u32::MAX));
    for entry in entries(bytes, dir.layout()).flatten().filter(|e| e.inode != 0) {
        let hash = batch.push(&entry);
        // A name in the wrong leaf would be listed at a position where lookups never find it.
        if hash < low || hash >= high {
            return Err(DirError::LeafHash { ino, lblk, inode: entry.inode, hash, low, high }.into());
        }
    }
    Ok(())
}

/// Returns the first position of names with these hashes.
fn position(major: u32, minor: u32) -> u64 {
    u64::from(major >> 1) << 32 | u64::from(minor)
}

/// Names that were read and wait to be listed in order.
struct Batch {
    hasher: NameHasher,
    items: Vec<Item>,
    /// The names of the items, concatenated.
    names: Vec<u8>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    position: u64,
    ino: u32,
    file_type: Option<FileType>,
    at: usize,
    len: usize,
}

impl Batch {
    fn new(hasher: NameHasher) -> Self {
        Self { hasher, items: Vec::with_capacity(64), names: Vec::with_capacity(1024), next: 0 }
    }

    /// Returns the major hash at which a listing from `cookie` starts.
    fn hash_of(&self, cookie: u64) -> u32 {
        // A cookie is the position behind an entry; at the boundary of two hashes it is the next
        // one's.
        u32::try_from(cookie.saturating_sub(1) >> 32 << 1).unwrap_or(!1)
    }

    /// Adds an entry. Returns its major hash.
    fn push(&mut self, entry: &Dirent<'_>) -> u32 {
        let hash = self.hasher.hash(entry.name);
        // The legacy hash has no minor one, and 31 bits alone collide early.
        let minor = match self.hasher.version() {
            HashVersion::Legacy => ext4_chksum(!0, entry.name),
            HashVersion::HalfMd4 | HashVersion::Tea => hash.minor,
        };
        self.push_at(entry, position(hash.major, minor).max(DOTDOT + 1));
        hash.major
    }

    fn push_at(&mut self, entry: &Dirent<'_>, position: u64) {
        let at = self.names.len();
        self.names.extend_from_slice(entry.name);
        let Dirent { inode: ino, file_type, name, .. } = *entry;
        self.items.push(Item { position, ino, file_type, at, len: name.len() });
    }

    /// Lists the names below position `until`, from `cookie` on, and keeps the others.
    fn emit(&mut self, until: u64, cookie: u64, each: &mut Each<'_>) -> ControlFlow<()> {
        let names = std::mem::take(&mut self.names);
        let name_of = |item: &Item| names.get(item.at..item.at + item.len).unwrap_or_default();
        self.items
            .sort_unstable_by(|a, b| a.position.cmp(&b.position).then_with(|| name_of(a).cmp(name_of(b))));
        let shown = self.items.partition_point(|item| item.position < until);
        let mut flow = ControlFlow::Continue(());
        for item in self.items.drain(..shown) {
            let position = item.position.max(self.next);
            self.next = position + 1;
            if position < cookie {
                continue;
            }
            let Item { ino, file_type, .. } = item;
            flow = each(ListedEntry { ino, file_type, name: name_of(&item), cookie: self.next });
            if flow.is_break() {
                break;
            }
        }
        for item in &mut self.items {
            let name = names.get(item.at..item.at + item.len).unwrap_or_default();
            item.at = self.names.len();
            self.names.extend_from_slice(name);
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows what is behind `cookie` of names that all have one position, or two.
    fn show(names: &[&str], cookie: u64, most: usize) -> Vec<(String, u64)> {
        let mut batch = Batch::new(NameHasher::new(HashVersion::HalfMd4, false, [0; 4]));
        for (i, name) in names.iter().enumerate() {
            let name = name.as_bytes();
            let entry = Dirent { offset: 0, inode: 11, rec_len: 0, file_type: None, name };
            batch.push_at(&entry, position(0x1000, 7) + u64::from(i % 3 == 0));
        }
        let mut shown = Vec::new();
        let _ = batch.emit(u64::MAX, cookie, &mut |entry| {
            shown.push((String::from_utf8_lossy(entry.name).into_owned(), entry.cookie));
            if shown.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        shown
    }

    #[test]
    fn equal_positions_are_told_apart() {
        let names = ["d", "a", "f", "c", "b", "e"];
        let all = show(&names, 0, usize::MAX);
        assert_eq!(all.len(), names.len());
        assert!(all.is_sorted_by(|a, b| a.1 < b.1));
        for step in 1..4 {
            let (mut cookie, mut seen) = (0, Vec::new());
            loop {
                let piece = show(&names, cookie, step);
                let Some(last) = piece.last() else { break };
                cookie = last.1;
                seen.extend(piece);
            }
            assert_eq!(seen, all);
        }
    }
}
