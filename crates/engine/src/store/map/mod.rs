//! The block map of a file: from logical blocks to blocks of the volume, with extents or indirect
//! blocks.
//!
//! A function takes the decoded inode and changes it in place (`i_block`, `i_blocks`). The caller
//! holds the inode's locks, and writes it to the table under the same handle.
//!
//! Every block that these functions return has been checked: it lies inside the volume and outside
//! of all fixed metadata.

mod blocks;
pub(crate) mod extent;
pub(crate) mod indirect;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use blocks::{ChangeBlocks, ReadBlocks};

use crate::error::{Corrupt, Error, Result};
use crate::store::Store;
use crate::store::alloc::{self, Reach, Reserved};
use crate::store::txn::{BlockKind, Txn};
use extent::{Owner, Tree};
use indirect::Table;
use lanefs_format::extent::{Extent, MAX_BLOCKS, MAX_UNWRITTEN_LEN, ROOT_SIZE, empty_root, max_entries};
use lanefs_format::{Inode, InodeFlags, RoCompat};
use std::ops::Range;

/// The mapping of `len` blocks from a logical block on: at least 1, and maybe fewer than follow in
/// the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// No blocks: reads as zeros.
    Hole {
        /// How many blocks before it are a hole too, as far as is known.
        before: u32,
        /// Length in blocks.
        len: u32,
    },
    /// Blocks of the volume.
    Mapped {
        /// The first.
        block: u64,
        /// Length in blocks.
        len: u32,
        /// Whether the blocks read as zeros, whatever they hold.
        unwritten: bool,
    },
}

impl Mapping {
    /// Returns the length in blocks.
    pub(crate) fn len(&self) -> u32 {
        match *self {
            Mapping::Hole { len, .. } | Mapping::Mapped { len, .. } => len,
        }
    }
}

/// How far a change in steps has come. The map is consistent in any case: write the inode.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The whole range is done.
    Done,
    /// The transaction is short of credits. Restart, and call again with the same range.
    More,
    /// A damaged or unreadable part of the map is in the way. The change is done up to there.
    Stopped(Error),
}

impl Progress {
    /// Returns whether the whole range is done.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

/// Returns the longest run for one [`insert`], so that its credits fit in a transaction of a small
/// journal.
pub(crate) fn max_run(store: &Store, inode: &Inode) -> u32 {
    match has_extents(inode) {
        true => MAX_UNWRITTEN_LEN,
        false => 4 * indirect::pointers(store.block_size as usize),
    }
}

/// Returns the number of logical blocks that the map of an inode with these flags can hold.
pub(crate) fn max_blocks(store: &Store, flags: InodeFlags) -> u32 {
    match flags.contains(InodeFlags::EXTENTS) {
        true => MAX_BLOCKS,
        false => indirect::max_blocks(store.block_size as usize),
    }
}

/// Returns whether `i_block` is a map: not a device number, nor the target of a symbolic link.
pub(crate) fn has_map(store: &Store, inode: &Inode) -> bool {
    inode.is_regular()
        || inode.is_dir()
        || inode.is_symlink() && inode.fast_symlink(&store.inode_ctx).is_none()
}

/// Returns whether the map is empty: looks at `i_block` alone.
pub(crate) fn is_empty(inode: &Inode) -> bool {
    match has_extents(inode) {
        true => inode.i_block == empty_root(),
        false => inode.i_block == [0; 60],
    }
}

/// Makes the map of a new inode an empty extent tree.
pub(crate) fn init_extents(inode: &mut Inode) {
    inode.flags |= InodeFlags::EXTENTS;
    inode.i_block = empty_root();
}

/// Looks up the mapping of `lblk`.
///
/// # Errors
/// [`Error::FileTooBig`] beyond the end of any map; a damaged map.
pub(crate) fn lookup(store: &Store, inode: &Inode, lblk: u32) -> Result<Mapping> {
    let mapping = match shape(inode)? {
        Shape::Extents => extent::lookup(store, owner(store, inode), &inode.i_block, lblk)?,
        Shape::Indirect => indirect::lookup(store, inode.ino, &inode.i_block, lblk)?,
    };
    if let Mapping::Mapped { block, len, .. } = mapping {
        store.check_data_range(block, u64::from(len))?;
    }
    Ok(mapping)
}

/// Returns the file's first run of blocks.
pub(crate) fn first_run(store: &Store, inode: &Inode) -> Result<Option<(u64, u32)>> {
    if !has_map(store, inode) {
        return Ok(None);
    }
    match lookup(store, inode, 0)? {
        Mapping::Mapped { block, len, .. } => Ok(Some((block, len))),
        Mapping::Hole { .. } => Ok(None),
    }
}

/// Maps the hole where `new` lies, of at most [`max_run`] blocks, to its blocks, which are marked
/// in the bitmap already. Costs [`insert_credits`].
///
/// # Errors
/// [`Error::NoSpace`] without blocks for the map: nothing is changed; [`Error::FileTooBig`].
pub(crate) fn insert(txn: &mut Txn<'_>, inode: &mut Inode, new: Extent) -> Result<()> {
    check_sectors(txn.store(), inode, new.len.into())?;
    change(txn, inode, |map| match map {
        Map::Tree(tree) => tree.insert(new),
        Map::Table(_) if new.unwritten => {
            Err(Error::NotSupported("unwritten blocks in an indirect map".into()))
        }
        Map::Table(table) => table.insert(new.ee_block, new.ee_start, new.len),
    })
}

/// Marks blocks inside one extent as written, or as unwritten. Costs [`insert_credits`].
///
/// # Errors
/// As [`insert`]; a range that is not inside one extent.
pub(crate) fn convert(
    txn: &mut Txn<'_>,
    inode: &mut Inode,
    range: Range<u32>,
    unwritten: bool,
) -> Result<()> {
    check_sectors(txn.store(), inode, 0)?;
    change(txn, inode, |map| match map {
        Map::Tree(tree) => tree.convert(range, unwritten),
        Map::Table(_) => Err(Error::NotSupported("unwritten blocks in an indirect map".into())),
    })
}

/// Makes `range` a hole and frees its blocks, from the end on, as far as the credits go. The caller
/// starts with at least [`remove_credits`].
///
/// A damaged map, or a block that is free already, stops it. So does [`Error::NoSpace`], if a hole
/// inside of an extent needs a node: nothing of that extent is freed.
///
/// # Errors
/// Failures in the middle of a change.
pub(crate) fn remove(txn: &mut Txn<'_>, inode: &mut Inode, range: Range<u32>) -> Result<Progress> {
    change(txn, inode, |map| match map {
        Map::Tree(tree) => tree.remove(range),
        Map::Table(table) => table.remove(range),
    })
}

/// Moves the blocks mapped from `from` on by `by` blocks to the front, over a hole, as far as the
/// credits go, and `from` with them. The caller starts with at least [`insert_credits`] and a
/// credit for the inode.
///
/// # Errors
/// A map that is no tree; a damaged one.
pub(crate) fn shift_left(txn: &mut Txn<'_>, inode: &mut Inode, from: &mut u32, by: u32) -> Result<Progress> {
    change(txn, inode, |map| match map {
        Map::Tree(tree) => tree.shift_left(from, by),
        Map::Table(_) => Err(no_shift()),
    })
}

/// Splits an extent that begins before `at` and ends behind it, so that [`shift_right`] by `by`
/// blocks cannot fail for want of space. Costs [`insert_credits`].
///
/// # Errors
/// [`Error::NoSpace`], and [`Error::Invalid`] if blocks would move beyond the end of the map:
/// nothing is changed.
pub(crate) fn part(txn: &mut Txn<'_>, inode: &mut Inode, at: u32, by: u32) -> Result<()> {
    check_sectors(txn.store(), inode, 0)?;
    change(txn, inode, |map| match map {
        Map::Tree(tree) => tree.part(at, by),
        Map::Table(_) => Err(no_shift()),
    })
}

/// Moves the blocks mapped from `start` on by `by` blocks to the back, as far as the credits go.
/// `end` begins as the end of all blocks and moves with them. The caller starts with at least
/// [`insert_credits`] and a credit for the inode.
///
/// # Errors
/// A map that is no tree; a damaged one.
pub(crate) fn shift_right(
    txn: &mut Txn<'_>,
    inode: &mut Inode,
    start: u32,
    end: &mut u32,
    by: u32,
) -> Result<Progress> {
    change(txn, inode, |map| match map {
        Map::Tree(tree) => tree.shift_right(start, end, by),
        Map::Table(_) => Err(no_shift()),
    })
}

fn no_shift() -> Error {
    Error::NotSupported("blocks of an indirect map cannot be shifted".into())
}

/// Allocates a block near the file's others and maps it at `lblk`, a hole. The caller initializes
/// the block's content. Costs [`insert_credits`], and a bitmap and a descriptor for the block.
///
/// # Errors
/// [`Error::NoSpace`] without blocks for the map: nothing is changed; [`Error::FileTooBig`].
pub(crate) fn alloc_append(txn: &mut Txn<'_>, inode: &mut Inode, lblk: u32) -> Result<u64> {
    let goal = goal(txn.store(), inode, lblk)?;
    let mut reserved = txn.reserve_run(goal, 1, reach(inode))?;
    let block = reserved.start();
    insert_reserved(txn, inode, lblk, &mut reserved, false)?;
    Ok(block)
}

/// Maps a hole as [`insert`] does, to the blocks of `reserved`, which it marks in the bitmap and
/// leaves empty. If it fails, the blocks stay reserved.
///
/// # Errors
/// The errors of [`insert`], and those of marking the blocks: nothing is changed, unless it failed
/// in the middle of a change of the map.
pub(crate) fn insert_reserved(
    txn: &mut Txn<'_>,
    inode: &mut Inode,
    lblk: u32,
    reserved: &mut Reserved,
    unwritten: bool,
) -> Result<()> {
    let (len, ee_start, before) = (reserved.len(), reserved.start(), txn.mark());
    txn.take_reserved(reserved)?;
    let taken = txn.mark();
    let inserted = insert(txn, inode, Extent { ee_block: lblk, len, unwritten, ee_start });
    if inserted.is_err() && txn.mark() == taken {
        *reserved = alloc::unmark(txn, ee_start, len)?;
        txn.undone(before);
    }
    inserted
}

/// Returns the largest i_size that the map of an inode with these flags allows.
pub(crate) fn max_size(store: &Store, flags: InodeFlags) -> u64 {
    u64::from(max_blocks(store, flags)) * u64::from(store.block_size)
}

/// Checks a new i_size, so that a whole file of it can be mapped: without `huge_file`, i_blocks
/// counts less than 2 TiB, with the blocks of numbers.
///
/// # Errors
/// [`Error::FileTooBig`].
pub(crate) fn check_size(store: &Store, flags: InodeFlags, size: u64) -> Result<()> {
    let counted = max_sectors(store) / sectors(store);
    let of_map = match flags.contains(InodeFlags::EXTENTS) {
        true => 0,
        false => indirect::number_blocks(store.block_size as usize, counted),
    };
    let most = (counted - of_map).saturating_mul(store.block_size.into());
    if size > most.min(max_size(store, flags)) { Err(Error::FileTooBig) } else { Ok(()) }
}

/// Returns the logical block that holds byte `at`, and the byte's place in it. The block is below
/// [`MAX_BLOCKS`], so the block behind it has a number too.
pub(crate) fn place(store: &Store, at: u64) -> Result<(u32, usize)> {
    let size = u64::from(store.block_size);
    let lblk = u32::try_from(at / size).ok().filter(|lblk| *lblk < MAX_BLOCKS).ok_or(Error::FileTooBig)?;
    // A block is at most 64 KiB.
    Ok((lblk, (at % size) as usize))
}

/// Returns where the block for `lblk` should lie: behind the block before it, else in the inode's
/// group.
pub(crate) fn goal(store: &Store, inode: &Inode, lblk: u32) -> Result<u64> {
    if let Some(before) = lblk.checked_sub(1)
        && let Mapping::Mapped { block, .. } = lookup(store, inode, before)?
    {
        return Ok(block.saturating_add(1));
    }
    let group = store.layout().inode_slot(inode.ino)?.group;
    Ok(store.layout().group_first_block(group)?)
}

/// Returns the blocks for the map itself that an [`insert`] of `len` blocks at `lblk` may take,
/// after `before` other inserts.
pub(crate) fn insert_blocks(
    store: &Store,
    inode: &Inode,
    lblk: u32,
    len: u32,
    before: usize,
) -> Result<usize> {
    match shape(inode)? {
        Shape::Extents => {
            let entries = usize::from(u16::from_le_bytes([inode.i_block[2], inode.i_block[3]]));
            let fits = depth(inode) == 0 && entries + before < usize::from(max_entries(ROOT_SIZE));
            // One on each level, and one if the root grows.
            Ok(if fits { 0 } else { usize::from(depth(inode)) + 1 })
        }
        Shape::Indirect => {
            indirect::missing(store, inode.ino, &inode.i_block, lblk..lblk.saturating_add(len))
        }
    }
}

/// Returns the blocks for the map as [`insert_blocks`] counts them, but of the tree as it is: other
/// threads that map blocks of the file meanwhile may leave this thread without space for the map.
pub(crate) fn insert_blocks_now(
    store: &Store,
    inode: &Inode,
    lblk: u32,
    len: u32,
    before: usize,
) -> Result<usize> {
    match shape(inode)? {
        Shape::Extents => extent::splits(store, owner(store, inode), &inode.i_block, lblk, before + 1),
        Shape::Indirect => insert_blocks(store, inode, lblk, len, before),
    }
}

/// Returns the blocks for the map itself that splitting one extent may take: one on each level of
/// the tree, and one if the root grows.
pub(crate) fn split_blocks(inode: &Inode) -> u64 {
    if has_extents(inode) { u64::from(depth(inode)) + 1 } else { 0 }
}

/// Returns the credits of an [`insert`] of `len` blocks, or of a [`convert`], without the inode and
/// the bitmaps of the data.
pub(crate) fn insert_credits(store: &Store, inode: &Inode, len: u32) -> u32 {
    match has_extents(inode) {
        true => extent::insert_credits(depth(inode)),
        false => indirect::insert_credits(store.block_size as usize, len),
    }
}

/// Returns the credits with which [`remove`] always makes progress, without the inode.
pub(crate) fn remove_credits(inode: &Inode) -> u32 {
    match has_extents(inode) {
        true => extent::remove_credits(depth(inode)),
        false => indirect::REMOVE_CREDITS,
    }
}

enum Shape {
    Extents,
    Indirect,
}

fn shape(inode: &Inode) -> Result<Shape> {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return Err(
            Corrupt::SpecialInode { ino: inode.ino, role: "inline data", rule: "has no block map" }.into()
        );
    }
    Ok(if has_extents(inode) { Shape::Extents } else { Shape::Indirect })
}

/// Upper bounds of the number of nodes on each level of an extent tree below its root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeWidth {
    levels: u32,
    /// Entries of the root: the nodes of the highest level.
    root: u64,
    /// Entries of any other node at most.
    each: u64,
    /// Nodes that other changes may add, on any level.
    added: u64,
}

impl TreeWidth {
    /// Adds `nodes` that another change of the map may add.
    pub(crate) fn with(self, nodes: u64) -> Self {
        Self { added: self.added.saturating_add(nodes), ..self }
    }

    /// Returns how many full nodes `changes` of the map may split, if no two changes of a node fill
    /// it again: on each level one for each change, but no more than the level has.
    pub(crate) fn splits(self, changes: u64) -> u64 {
        let of_level = |level| self.root.saturating_mul(self.each.saturating_pow(level));
        let found = (0..self.levels).map(|level| changes.min(of_level(level))).fold(0, u64::saturating_add);
        let most = changes.saturating_mul(u64::from(self.levels) + 1);
        found.saturating_add(self.added).min(most)
    }
}

/// Returns the width of the extent tree, from its root alone; `None` for another kind of map.
pub(crate) fn tree_width(store: &Store, inode: &Inode) -> Option<TreeWidth> {
    let root = u64::from(u16::from_le_bytes([inode.i_block[2], inode.i_block[3]]));
    let each = u64::from(max_entries(store.block_size as usize));
    has_extents(inode).then(|| TreeWidth { levels: depth(inode).into(), root, each, added: 0 })
}

/// Returns the blocks that the map can number.
pub(crate) fn reach(inode: &Inode) -> Reach {
    if has_extents(inode) { Reach::Volume } else { Reach::Low }
}

/// Returns whether the map is an extent tree.
pub(crate) fn is_tree(inode: &Inode) -> bool {
    has_extents(inode)
}

fn has_extents(inode: &Inode) -> bool {
    inode.flags.contains(InodeFlags::EXTENTS)
}

/// Returns the depth of the tree. Reading a damaged tree finds a wrong one.
fn depth(inode: &Inode) -> u16 {
    let depth = u16::from_le_bytes([inode.i_block[6], inode.i_block[7]]);
    depth.min(lanefs_format::extent::MAX_DEPTH)
}

fn owner(store: &Store, inode: &Inode) -> Owner {
    Owner { ino: inode.ino, seed: inode.seed(&store.checksummer) }
}

/// Checks that i_blocks can count `len` more blocks: without `huge_file`, it has 2^32 - 1 sectors
/// at most. An inode is written after all other changes, so they must not be made if it cannot be.
///
/// # Errors
/// [`Error::FileTooBig`].
pub(crate) fn check_sectors(store: &Store, inode: &Inode, len: u64) -> Result<()> {
    let max = max_sectors(store);
    // And a few nodes of the map.
    let more = len.saturating_add(64).saturating_mul(sectors(store));
    if inode.blocks.saturating_add(more) > max { Err(Error::FileTooBig) } else { Ok(()) }
}

fn max_sectors(store: &Store) -> u64 {
    if store.has_ro(RoCompat::HUGE_FILE) { (1 << 48) - 1 } else { u64::from(u32::MAX) }
}

fn sectors(store: &Store) -> u64 {
    u64::from(store.block_size / 512)
}

enum Map<'m, 't, 'f> {
    Tree(&'m mut Tree<'t, Txn<'f>>),
    Table(&'m mut Table<'t, Txn<'f>>),
}

/// Runs a change of the inode's map and counts its blocks in i_blocks.
fn change<'f, T>(
    txn: &mut Txn<'f>,
    inode: &mut Inode,
    f: impl FnOnce(Map<'_, '_, 'f>) -> Result<T>,
) -> Result<T> {
    let store = txn.store();
    let owner = owner(store, inode);
    // The blocks of a directory or link went through the journal: freed, they must be revoked.
    let journalled = inode.flags.intersects(InodeFlags::EA_INODE | InodeFlags::JOURNAL_DATA);
    let kind = if inode.is_regular() && !journalled { BlockKind::Data } else { BlockKind::Metadata };
    let (result, delta) = match shape(inode)? {
        Shape::Extents => {
            let mut tree = Tree::new(txn, owner, kind, &mut inode.i_block);
            (f(Map::Tree(&mut tree)), tree.delta)
        }
        Shape::Indirect => {
            let mut table = Table::new(txn, inode.ino, kind, &mut inode.i_block);
            (f(Map::Table(&mut table)), table.delta)
        }
    };
    let changed = delta.unsigned_abs().saturating_mul(sectors(store));
    inode.blocks = match delta < 0 {
        // i_blocks of a damaged volume may be too small.
        true => inode.blocks.saturating_sub(changed),
        // Nor may a removal fail that splits an extent of a file as large as it can be.
        false => inode.blocks.saturating_add(changed).min(max_sectors(store).max(inode.blocks)),
    };
    result
}
