//! Allocates and frees inodes, and chooses their groups.
//!
//! A file goes to the group of its directory. Directories spread (Orlov): those in the root over
//! the whole volume, others near their parent unless its group is crowded. With flex_bg, a "group"
//! here is the flex group whose tables are adjacent.
//!
//! Reserved inodes are never allocated, whatever a bitmap says. A bitmap that has any other inode
//! in use as free is damaged, and no inode of its group is allocated from then on.

use super::group::{HeldDesc, is_damage, read_desc, uninit};
use super::slots::Slots;
use crate::error::{Corrupt, Error, Result};
use crate::store::txn::Txn;
use crate::store::{Store, TableSlot, kind};
use lanefs_format::{GroupDesc, GroupFlags, InodeSlot, bitmap};
use lanefs_journal::Buffer;

/// How many groups a search for the best one examines at most.
const WINDOW: u32 = 1024;

/// Where a new inode should be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InodeHint {
    /// In its directory's group.
    File { parent: u32 },
    /// Near its parent, if there is room for a tree.
    Dir { parent: u32 },
    /// Far from its siblings: `spread` differs between them.
    TopDir { spread: u32 },
}

/// Takes an inode and marks it as used, under the handle of `txn`. Returns its number and its slot
/// of the table. At most 4 credits: bitmap, descriptor, table block, and the descriptor of a group
/// found full.
///
/// # Errors
/// [`Error::NoInodes`] if no group has a free inode; the device's. Nothing is changed.
pub(crate) fn alloc_inode<'f>(txn: &mut Txn<'f>, hint: InodeHint) -> Result<(u32, TableSlot<'f>)> {
    let store = txn.store();
    let is_dir = !matches!(hint, InodeHint::File { .. });
    let first = match hint {
        InodeHint::File { parent } => store.layout().inode_slot(parent)?.group,
        InodeHint::Dir { parent } => near_parent(store, store.layout().inode_slot(parent)?.group)?,
        InodeHint::TopDir { spread } => least_crowded(store, spread)?,
    };
    for (mut at, to) in [(first, u32::MAX), (0, first)] {
        while let Some(group) = store.alloc.inodes.next(0, at, to) {
            at = group + 1;
            match take_in(txn, group, is_dir) {
                Ok(Some(taken)) => {
                    store.alloc.sub_free_inode();
                    return Ok(taken);
                }
                Ok(None) => {}
                // Nothing in the group was changed. Try the other groups.
                Err(e) if is_damage(&e) => lose(store, group, &e),
                Err(e) => return Err(e),
            }
        }
    }
    Err(Error::NoInodes)
}

/// Frees an inode, under the handle of `txn`. Its slot in the table has been written already.
/// Unlike a block it may be taken again at once: the thread that takes it writes its slot under a
/// handle of the same transaction or a later one.
///
/// # Errors
/// An inode that the bitmap has as free; the device's. Nothing is changed.
pub(crate) fn free_inode(txn: &mut Txn<'_>, ino: u32, was_dir: bool) -> Result<()> {
    let store = txn.store();
    let InodeSlot { group, index, .. } = store.layout().inode_slot(ino)?;
    let Some(mut state) = store.alloc.lock_group(group) else { return Ok(()) };
    let (mut held, buffer) = read_used(store, ino, group, index)?;
    let mut map = txn.write(&buffer)?;
    bitmap::clear(&mut map, index as usize..index as usize + 1)?;
    let desc = &mut held.desc;
    desc.free_inodes_count = (desc.free_inodes_count + 1).min(store.layout().inodes_per_group());
    if was_dir {
        desc.used_dirs_count = desc.used_dirs_count.saturating_sub(1);
    }
    desc.sum_inode_bitmap(&map, store.layout(), &store.checksummer)?;
    drop(map);
    held.write(txn)?;
    state.inode_hint = state.inode_hint.min(index);
    store.alloc.add_free_inode(group);
    Ok(())
}

/// Reads and checks the blocks that [`free_inode`] of `ino` will change. While the result is held,
/// freeing it does no I/O.
///
/// # Errors
/// An inode that the bitmap has as free; the device's.
pub(crate) fn hold_inode(store: &Store, ino: u32) -> Result<impl Sized + use<>> {
    let InodeSlot { group, index, .. } = store.layout().inode_slot(ino)?;
    let _state = store.alloc.lock_group(group);
    read_used(store, ino, group, index)
}

/// Returns the descriptor and the inode bitmap of a group in which inode `ino` is used.
fn read_used(store: &Store, ino: u32, group: u32, index: u32) -> Result<(HeldDesc, Buffer)> {
    let free = || Error::from(Corrupt::InodeDoubleFree { ino, group });
    let held = HeldDesc::read(store, group)?;
    if uninit(store, &held.desc, GroupFlags::INODE_UNINIT) {
        return Err(free());
    }
    let buffer = read_inode_bitmap(store, group, &held.desc)?;
    if !bitmap::test(&buffer.read(), index as usize) {
        return Err(free());
    }
    Ok((held, buffer))
}

/// Stops allocating inodes in a group whose bitmap is damaged.
fn lose(store: &Store, group: u32, e: &Error) {
    store.note_error(e);
    if let Some(mut state) = store.alloc.lock_group(group) {
        state.inodes_lost = true;
        store.alloc.no_free_inode(group);
    }
}

/// Takes a free inode of `group`, if there is one; if there is none, later searches pass the group
/// by. Reads all blocks that change before it changes any.
fn take_in<'f>(txn: &mut Txn<'f>, group: u32, is_dir: bool) -> Result<Option<(u32, TableSlot<'f>)>> {
    let store = txn.store();
    let Some(mut state) = store.alloc.lock_group(group) else { return Ok(None) };
    let mut held = HeldDesc::read(store, group)?;
    if state.inodes_lost || held.desc.free_inodes_count == 0 {
        store.alloc.no_free_inode(group);
        return Ok(None);
    }
    let per_group = store.layout().inodes_per_group();
    let reserved = (store.first_ino.saturating_sub(1)).saturating_sub(group.saturating_mul(per_group));
    slots(store, &held.desc).check_counts(group)?;
    let from = state.inode_hint.max(reserved).min(per_group);
    let bits = match uninit(store, &held.desc, GroupFlags::INODE_UNINIT) {
        true => None,
        false => Some(read_inode_bitmap(store, group, &held.desc)?),
    };
    let free = match &bits {
        Some(buffer) => bitmap::next_zero(&buffer.read(), from as usize..per_group as usize),
        None => (from < per_group).then_some(from as usize),
    };
    let Some(index) = free else {
        state.inode_hint = per_group;
        store.alloc.no_free_inode(group);
        return Ok(None);
    };
    let ino = store.layout().ino(group, index as u32)?;
    let table = TableBlock::read(store, &held.desc, ino, index as u32)?;
    check_unused(store, &held.desc, ino, &table)?;

    let buffer = match bits {
        Some(buffer) => buffer,
        None => create_bitmap(txn, &mut held.desc)?,
    };
    let mut map = txn.write(&buffer)?;
    bitmap::set(&mut map, index..index + 1)?;
    let desc = &mut held.desc;
    desc.free_inodes_count = desc.free_inodes_count.saturating_sub(1);
    if is_dir {
        desc.used_dirs_count = (desc.used_dirs_count + 1).min(per_group);
    }
    desc.sum_inode_bitmap(&map, store.layout(), &store.checksummer)?;
    drop(map);
    let table = table.open(txn, desc, index as u32)?;
    held.write(txn)?;
    state.inode_hint = index as u32 + 1;
    Ok(Some((ino, store.table_slot_in(ino, table)?)))
}

/// The block of the table that holds a new inode.
enum TableBlock {
    Read(Buffer),
    /// Never held a used inode: its content on disk may never have been written.
    Fresh(u64),
}

impl TableBlock {
    fn read(store: &Store, desc: &GroupDesc, ino: u32, index: u32) -> Result<Self> {
        let block = desc.inode_table + u64::from(store.layout().inode_slot(ino)?.table_block);
        Ok(match slots(store, desc).is_fresh(index) {
            true => Self::Fresh(block),
            false => Self::Read(store.journal.read(block)?),
        })
    }

    /// Moves bg_itable_unused behind inode `index`; a fresh block starts as zeros.
    fn open(self, txn: &Txn<'_>, desc: &mut GroupDesc, index: u32) -> Result<Buffer> {
        let store = txn.store();
        if index >= slots(store, desc).used() {
            desc.itable_unused = store.layout().inodes_per_group() - (index + 1);
        }
        match self {
            Self::Read(buffer) => Ok(buffer),
            Self::Fresh(block) => txn.create(block),
        }
    }
}

/// Returns the slots of the group with this descriptor.
fn slots<'a>(store: &'a Store, desc: &GroupDesc) -> Slots<'a> {
    Slots { layout: store.layout(), desc: *desc, checksums: store.has_group_checksums() }
}

/// Checks that an inode that is free in the bitmap is free in its block of the table too.
///
/// # Errors
/// [`Corrupt::InodeInUse`]: the bitmap is wrong.
fn check_unused(store: &Store, desc: &GroupDesc, ino: u32, table: &TableBlock) -> Result<()> {
    let TableBlock::Read(buffer) = table else { return Ok(()) };
    slots(store, desc).check_free(ino, || store.table_slot_in(ino, buffer.clone())?.raw_use())
}

/// Makes the inode bitmap of a group whose bitmap was never written. The caller writes the
/// descriptor.
fn create_bitmap(txn: &Txn<'_>, desc: &mut GroupDesc) -> Result<Buffer> {
    let store = txn.store();
    let buffer = txn.create(desc.inode_bitmap)?;
    let padding = store.layout().inodes_per_group() as usize..store.block_size as usize * 8;
    bitmap::set(&mut txn.write(&buffer)?, padding)?;
    desc.flags -= GroupFlags::INODE_UNINIT;
    desc.itable_unused = store.layout().inodes_per_group();
    buffer.set_verified(kind::INODE_BITMAP);
    Ok(buffer)
}

fn read_inode_bitmap(store: &Store, group: u32, desc: &GroupDesc) -> Result<Buffer> {
    let buffer = store.journal.read(desc.inode_bitmap)?;
    if !buffer.verified(kind::INODE_BITMAP) {
        desc.verify_inode_bitmap(&buffer.read(), group, store.layout(), &store.checksummer)?;
        buffer.set_verified(kind::INODE_BITMAP);
    }
    Ok(buffer)
}

/// Returns the inodes of `group` that its bitmap has as used.
pub(crate) fn used_inodes(store: &Store, group: u32) -> Result<Vec<u32>> {
    let _state = store.alloc.lock_group(group);
    let desc = read_desc(store, group)?;
    let mut used = Vec::new();
    if uninit(store, &desc, GroupFlags::INODE_UNINIT) {
        return Ok(used);
    }
    let buffer = read_inode_bitmap(store, group, &desc)?;
    let map = buffer.read();
    let per_group = store.layout().inodes_per_group();
    let mut at = 0;
    while let Some(index) = bitmap::next_set(&map, at..per_group as usize) {
        used.push(store.layout().ino(group, index as u32)?);
        at = index + 1;
    }
    Ok(used)
}

/// Returns the first group, the free inodes, the free blocks and the directories of the flex group
/// of `group`.
fn crowd(store: &Store, group: u32) -> Result<(u32, u64, u64, u64)> {
    let flex = store.layout().groups_per_flex().max(1);
    let first = group - group % flex;
    let end = first.saturating_add(flex).min(store.layout().group_count());
    let (mut inodes, mut blocks, mut dirs) = (0, 0, 0);
    for g in first..end {
        let desc = match read_desc(store, g) {
            Err(e) if is_damage(&e) => continue,
            desc => desc?,
        };
        inodes += u64::from(desc.free_inodes_count);
        blocks += u64::from(desc.free_blocks_count);
        dirs += u64::from(desc.used_dirs_count);
    }
    Ok((first, inodes, blocks, dirs))
}

/// Chooses by Orlov, for a directory of the root, the flex group with the fewest directories among
/// those with at least the average of free inodes and blocks.
fn least_crowded(store: &Store, spread: u32) -> Result<u32> {
    let (groups, flex) = (store.layout().group_count(), store.layout().groups_per_flex().max(1));
    let flexes = groups.div_ceil(flex);
    let (free_inodes, free_blocks) = averages(store);
    let start = spread % flexes;
    let mut best: Option<(u64, u32)> = None;
    for i in 0..flexes.min(WINDOW.div_ceil(flex)) {
        let group = (start + i) % flexes * flex;
        let (first, inodes, blocks, dirs) = crowd(store, group)?;
        let roomy = inodes > 0 && inodes >= free_inodes && blocks >= free_blocks;
        if roomy && best.is_none_or(|(fewest, _)| dirs < fewest) {
            best = Some((dirs, first));
        }
    }
    Ok(best.map_or(start * flex, |(_, group)| group))
}

/// Chooses by Orlov, for other directories, the parent's flex group unless it is crowded, else the
/// next one that is not.
fn near_parent(store: &Store, parent: u32) -> Result<u32> {
    let (groups, flex) = (store.layout().group_count(), store.layout().groups_per_flex().max(1));
    let per_flex = u64::from(store.layout().inodes_per_group()) * u64::from(flex);
    let (free_inodes, free_blocks) = averages(store);
    let least_inodes = free_inodes.saturating_sub(per_flex / 4).max(1);
    let least_blocks =
        free_blocks.saturating_sub(u64::from(store.layout().blocks_per_group()) * u64::from(flex) / 4);
    let most_dirs = per_flex.saturating_sub(free_inodes) + per_flex / 16;
    let flexes = groups.div_ceil(flex);
    for i in 0..flexes.min(WINDOW.div_ceil(flex)) {
        let group = (parent / flex + i) % flexes * flex;
        let (first, inodes, blocks, dirs) = crowd(store, group)?;
        if inodes >= least_inodes && blocks >= least_blocks && dirs < most_dirs {
            return Ok(if i == 0 { parent } else { first });
        }
    }
    Ok(parent)
}

/// Returns the free inodes and blocks of an average flex group.
fn averages(store: &Store) -> (u64, u64) {
    let flexes = u64::from(store.layout().group_count().div_ceil(store.layout().groups_per_flex().max(1)));
    (store.alloc.free_inodes() / flexes, store.alloc.free_blocks() / flexes)
}
