//! Directories: names to inodes.
//!
//! A linear directory is searched block by block. An indexed one (htree) has a tree over the hashes
//! of its names. With `dir_index`, a directory becomes indexed when its first block is full.
//! Directories never shrink. The caller holds the namespace lock, exclusively for changes, and
//! writes the inode.
//!
//! Invariant: an operation that fails changes nothing, unless the device fails in the middle of it.
//! A directory that grows claims all blocks that it will need before it takes the first.
//!
//! Hazards:
//! - [`Slot`] and [`FoundEntry`] remember a place in a block. They are valid while the namespace
//!   lock under which they were made is held and the directory has not changed since.
//! - No thread locks a buffer while it holds the lock of another: in a hostile index that names one
//!   block twice, it would wait for itself.
//! - An index or a map may lead to one block over and over: a loop over leaves reads them in a
//!   [`Walk`], which refuses that.

mod block;
mod htree;
mod iterate;
mod leaf;
mod linear;
mod params;
mod walk;

pub(crate) use iterate::{ListedEntry, is_empty, read_dir};
pub(crate) use params::DirParams;

use crate::error::{DirError, Error, Result};
use crate::store::Store;
use crate::store::map;
use crate::store::txn::{Txn, credits};
use block::{Dir, Role};
use lanefs_format::dirent::{self, Dirent, rec_len};
use lanefs_format::htree::{self as format_htree, DxKind};
use lanefs_format::{FileType, Inode};
use lanefs_journal::Buffer;
use leaf::Hit;
use walk::Walk;

/// Blocks that [`remove`] and [`replace`] change at most.
pub(crate) const CREDITS_REMOVE: u32 = 1;

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct FoundEntry {
    /// The inode: at least 1, at most s_inodes_count.
    pub(crate) ino: u32,
    buffer: Buffer,
    role: Role,
    hit: Hit,
}

/// A place for a name that is not in a directory.
#[derive(Debug)]
pub(crate) struct Slot {
    /// A leaf that may hold the name, and the entry in it that has room.
    room: Option<(Buffer, usize)>,
}

impl Slot {
    /// Returns the blocks that [`insert`] changes at most, without the directory's inode.
    pub(crate) fn credits(&self, store: &Store, inode: &Inode) -> u32 {
        if self.room.is_some() {
            return 1;
        }
        let levels = u32::from(store.dirs().max_levels);
        // Each of these adds a block: a new level, an index block on each level, a leaf.
        let added = (levels + 2) * (1 + credits::RUN);
        let path = levels + 2;
        // The new blocks are neighbours in the map: at most one of them splits a node of it.
        added + path + map::insert_credits(store, inode, 1)
    }
}

/// The result of [`find`].
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The name is there.
    Found(FoundEntry),
    /// The name is not there.
    Vacant(Slot),
}

impl Lookup {
    /// Returns the place for a new name.
    ///
    /// # Errors
    /// [`Error::Exists`] if the name is there.
    pub(crate) fn vacant(self) -> Result<Slot> {
        match self {
            Self::Found(_) => Err(Error::Exists),
            Self::Vacant(slot) => Ok(slot),
        }
    }

    /// Returns the entry of the name.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the name is not there.
    pub(crate) fn found(self) -> Result<FoundEntry> {
        match self {
            Self::Found(found) => Ok(found),
            Self::Vacant(_) => Err(Error::NotFound),
        }
    }
}

/// Looks up `name`, or a place for it.
///
/// # Errors
/// A damaged directory ([`DirError`]), or one with a feature that lanefs does not read.
pub(crate) fn find(store: &Store, inode: &Inode, name: &[u8]) -> Result<Lookup> {
    if is_gone(inode) {
        return Ok(Lookup::Vacant(Slot { room: None }));
    }
    let dir = Dir::new(store, inode)?;
    if dir.indexed() { htree::find(&dir, name) } else { linear::find(&dir, name) }
}

/// Looks up `name`.
///
/// # Errors
/// The errors of [`find`].
pub(crate) fn lookup(store: &Store, inode: &Inode, name: &[u8]) -> Result<Option<FoundEntry>> {
    match find(store, inode, name)? {
        Lookup::Found(found) => Ok(Some(found)),
        Lookup::Vacant(_) => Ok(None),
    }
}

/// Puts an entry into the place that [`find`] has returned for its name.
///
/// # Errors
/// [`Error::NoSpace`], [`Error::DirFull`]. A damaged directory.
pub(crate) fn insert(txn: &mut Txn<'_>, inode: &mut Inode, slot: Slot, new: &NewEntry<'_>) -> Result<()> {
    check_name(new.name)?;
    if is_gone(inode) {
        return Err(Error::NotFound);
    }
    let dir = Dir::new(txn.store(), inode)?;
    let indexed = dir.indexed();
    if let Some((buffer, offset)) = slot.room {
        new.put(&dir, txn, &buffer, offset)?;
    } else if indexed {
        block::claim(txn, inode, htree::growth(&dir, new.name)?)?;
        htree::insert(txn, inode, new)?;
    } else if dir.blocks == 1 && dir.params().index {
        // One block for the names, and one for half of them when it is split.
        block::claim(txn, inode, 2)?;
        htree::convert(txn, inode)?;
        htree::insert(txn, inode, new)?;
    } else {
        block::claim(txn, inode, 1)?;
        linear::grow(txn, inode, new)?;
    }
    if !indexed && !txn.store().dirs().index {
        // Without dir_index the directory is changed as a linear one: an old index lacks the new
        // name.
        inode.flags.remove(lanefs_format::InodeFlags::INDEX);
    }
    Ok(())
}

/// Removes the entry that [`find`] has returned.
///
/// # Errors
/// [`DirError::Moved`] if it is not there any more.
pub(crate) fn remove(txn: &mut Txn<'_>, inode: &Inode, found: &FoundEntry, name: &[u8]) -> Result<()> {
    let dir = Dir::new(txn.store(), inode)?;
    if found.role != Role::Leaf {
        return Err(Error::Invalid("the dots of a directory stay"));
    }
    check_place(&dir, &found.buffer.read(), found, name)?;
    dir.change(txn, &found.buffer, found.role, |bytes| {
        leaf::take(bytes, dir.layout(), &found.hit).map_err(|_| moved(&dir, found))
    })
}

/// Makes the entry of `name` that [`find`] has returned lead to another inode. Also for "..".
///
/// # Errors
/// [`DirError::Moved`] if it is not there any more.
pub(crate) fn replace(
    txn: &mut Txn<'_>,
    inode: &Inode,
    found: &FoundEntry,
    name: &[u8],
    child: u32,
    file_type: FileType,
) -> Result<()> {
    let dir = Dir::new(txn.store(), inode)?;
    if found.role == Role::Leaf {
        check_place(&dir, &found.buffer.read(), found, name)?;
    }
    dir.change(txn, &found.buffer, found.role, |bytes| {
        dirent::write_inode(bytes, dir.layout(), found.hit.offset, child, Some(file_type));
        Ok(())
    })
}

/// Returns the entry of `name` that [`find`] has returned before another name was inserted: in the
/// same leaf, without I/O, unless a split has moved it.
///
/// # Errors
/// The errors of [`find`]; [`Error::NotFound`].
pub(crate) fn find_again(store: &Store, inode: &Inode, found: FoundEntry, name: &[u8]) -> Result<FoundEntry> {
    let dir = Dir::new(store, inode)?;
    // A leaf that became the root of an index is none any more.
    let scan = leaf::scan(&found.buffer.read(), dir.layout(), name);
    match scan.ok().and_then(|scan| scan.hit) {
        Some(hit) => Ok(FoundEntry { hit, ..found }),
        None => find(store, inode, name)?.found(),
    }
}

/// Gives a new directory its first block, with "." and "..".
///
/// # Errors
/// [`Error::NoSpace`], with nothing changed.
pub(crate) fn init(txn: &mut Txn<'_>, inode: &mut Inode, parent: u32) -> Result<()> {
    let (_, buffer) = block::append(txn, inode)?;
    let dir = Dir::new(txn.store(), inode)?;
    let (layout, dot) = (dir.layout(), rec_len(1));
    let entry = |name, child| NewEntry { name, child, file_type: FileType::Directory };
    let (own, above) = (entry(b".", inode.ino), entry(b"..", parent));
    dir.change(txn, &buffer, Role::Leaf, |bytes| {
        dirent::init_block(bytes, layout);
        dirent::write_entry(bytes, layout, &own.at(0, dot))
            .and_then(|()| dirent::write_entry(bytes, layout, &above.at(dot, layout.end() - dot)))
            .map_err(|rule| dir.bad_leaf(0, buffer.block(), rule))
    })
}

/// An entry to be added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    /// The name.
    pub(crate) name: &'a [u8],
    /// The inode that it leads to, and that inode's type.
    pub(crate) child: u32,
    pub(crate) file_type: FileType,
}

impl<'a> NewEntry<'a> {
    fn need(&self) -> usize {
        rec_len(self.name.len())
    }

    /// Returns the entry at `offset` of a block, where it spans `rec_len` bytes.
    fn at(&self, offset: usize, rec_len: usize) -> Dirent<'a> {
        let file_type = Some(self.file_type);
        Dirent { offset, inode: self.child, rec_len, file_type, name: self.name }
    }

    /// Puts the entry into the slack behind the entry at `offset`.
    fn put(&self, dir: &Dir<'_>, txn: &Txn<'_>, buffer: &Buffer, offset: usize) -> Result<()> {
        dir.change(txn, buffer, Role::Leaf, |bytes| {
            leaf::add(bytes, dir.layout(), offset, self)
                .map_err(|_| DirError::Moved { ino: dir.inode.ino, block: buffer.block(), offset }.into())
        })
    }
}

/// Looks up `name` in the next leaf of a walk. If `room` is `None`, sets it to the first place for
/// the name.
fn find_in_leaf(
    walk: &mut Walk<'_>,
    lblk: u32,
    name: &[u8],
    room: &mut Option<(Buffer, usize)>,
) -> Result<Option<FoundEntry>> {
    let dir = walk.dir;
    let buffer = walk.enter(lblk, dir.leaf(lblk)?)?;
    let scan = dir.scan(lblk, &buffer, name)?;
    if let Some(hit) = scan.hit {
        return Ok(Some(FoundEntry { ino: hit.inode, buffer, role: Role::Leaf, hit }));
    }
    if let (None, Some(offset)) = (&room, scan.room) {
        *room = Some((buffer, offset));
    }
    Ok(None)
}

/// Returns whether a directory was removed. A process may still have it open; it has no entries.
fn is_gone(inode: &Inode) -> bool {
    inode.links_count == 0 && inode.size == 0
}

/// Checks a name to be looked up.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > dirent::NAME_MAX {
        return Err(Error::NameTooLong { len: name.len() });
    }
    if name.is_empty() || name.contains(&0) || name.contains(&b'/') {
        return Err(Error::Invalid("a name that is empty or holds '/' or NUL"));
    }
    Ok(())
}

fn check_place(dir: &Dir<'_>, bytes: &[u8], found: &FoundEntry, name: &[u8]) -> Result<()> {
    if leaf::holds(bytes, dir.layout(), &found.hit, name) { Ok(()) } else { Err(moved(dir, found)) }
}

fn moved(dir: &Dir<'_>, found: &FoundEntry) -> Error {
    DirError::Moved { ino: dir.inode.ino, block: found.buffer.block(), offset: found.hit.offset }.into()
}

/// Looks up "." or ".." of an indexed directory, which only its root block holds.
fn find_dot(dir: &Dir<'_>, name: &[u8]) -> Result<Option<FoundEntry>> {
    let offset = match name {
        b"." => 0,
        b".." => format_htree::DOTDOT,
        _ => return Ok(None),
    };
    let (buffer, info) = dir.root()?;
    let ino = if offset == 0 { info.own } else { info.parent };
    let hit = Hit { offset, before: None, inode: ino };
    Ok(Some(FoundEntry { ino, buffer, role: Role::Index(DxKind::Root), hit }))
}

#[cfg(test)]
mod tests;
