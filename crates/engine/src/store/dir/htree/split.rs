//! Splits blocks of an index, and turns a linear directory into an indexed one.
//!
//! The old block is copied first, and both blocks are written from the copy, one lock at a time.

use super::lookup::IndexPath;
use crate::error::DirError;
use crate::error::Result;
use crate::store::dir::block::{Dir, Role, append};
use crate::store::dir::{NewEntry, leaf};
use crate::store::txn::Txn;
use lanefs_format::dirent::{Dirent, entries, rec_len};
use lanefs_format::htree::{self, DxEntry, DxKind, DxRootInfo, DxView};
use lanefs_format::{Inode, InodeFlags};
use lanefs_journal::Buffer;

/// Moves the upper half of a leaf, by hash, to a new block, and puts `new` into its half. The
/// caller has made room in the leaf's index block.
pub(super) fn leaf(txn: &mut Txn<'_>, inode: &mut Inode, path: &IndexPath, new: &NewEntry<'_>) -> Result<()> {
    let (upper_lblk, upper) = append(txn, inode)?;
    let dir = Dir::new(txn.store(), inode)?;
    let lower = dir.leaf(path.leaf)?;
    check_distinct(&dir, upper_lblk, &upper, path.leaf, &lower)?;
    let copy = lower.read().to_vec();
    let hasher = dir.params().hasher.with_version(path.info.hash_version);
    let hash = hasher.hash(new.name).major;

    let mut names: Vec<(u32, Dirent<'_>)> = entries(&copy, dir.layout())
        .flatten()
        .filter(|e| e.inode != 0)
        .map(|e| (hasher.hash(e.name).major, e))
        .collect();
    names.sort_unstable_by_key(|(hash, e)| (*hash, e.offset));
    let cut = middle(&names, dir.layout().end());
    let (low, high) = names.split_at(cut);
    let first = high.first().map_or(hash, |(hash, _)| *hash);
    let continued = low.last().is_some_and(|(hash, _)| *hash == first);

    write_leaf(&dir, txn, upper_lblk, &upper, high)?;
    write_leaf(&dir, txn, path.leaf, &lower, low)?;
    let Some(frame) = path.frames.last() else { return Ok(()) };
    let entry = DxEntry { hash: first | u32::from(continued), block: upper_lblk };
    dir.change(txn, &frame.buffer, Role::Index(frame.kind), |bytes| {
        htree::insert(bytes, frame.kind, frame.at + 1, entry)
            .map_err(|rule| dir.bad_index(frame.lblk, frame.buffer.block(), rule))
    })?;
    let (lblk, buffer) = if hash >= first { (upper_lblk, &upper) } else { (path.leaf, &lower) };
    match dir.scan(lblk, buffer, new.name)?.room {
        Some(offset) => new.put(&dir, txn, buffer, offset),
        None => Err(DirError::SplitTooSmall { ino: inode.ino, lblk, need: new.need() }.into()),
    }
}

/// Returns where to cut sorted names so that both sides take about the same bytes. Neither side is
/// empty if there are two names.
fn middle(names: &[(u32, Dirent<'_>)], end: usize) -> usize {
    let mut upper = 0;
    for (i, (_, entry)) in names.iter().enumerate().rev() {
        let len = rec_len(entry.name.len());
        if upper + len / 2 > end / 2 {
            return i + 1;
        }
        upper += len;
    }
    names.len() / 2
}

fn write_leaf(
    dir: &Dir<'_>,
    txn: &Txn<'_>,
    lblk: u32,
    buffer: &Buffer,
    names: &[(u32, Dirent<'_>)],
) -> Result<()> {
    dir.change(txn, buffer, Role::Leaf, |bytes| {
        leaf::pack(bytes, dir.layout(), names.iter().map(|(_, entry)| *entry))
            .map_err(|rule| dir.bad_leaf(lblk, buffer.block(), rule))
    })
}

/// Compacts the entries of a leaf and puts `new` behind them. Only for leaves of an index: the
/// cookie of an indexed entry does not depend on its place.
pub(super) fn pack(
    dir: &Dir<'_>,
    txn: &Txn<'_>,
    lblk: u32,
    buffer: &Buffer,
    new: &NewEntry<'_>,
) -> Result<()> {
    let copy = buffer.read().to_vec();
    let layout = dir.layout();
    let all = entries(&copy, layout).flatten().filter(|e| e.inode != 0).chain([new.at(0, 0)]);
    dir.change(txn, buffer, Role::Leaf, |bytes| {
        leaf::pack(bytes, layout, all).map_err(|rule| dir.bad_leaf(lblk, buffer.block(), rule))
    })
}

/// Moves the upper half of the topmost of `full` full index blocks to a new one. The block above it
/// has room.
pub(super) fn node(txn: &mut Txn<'_>, inode: &mut Inode, path: &IndexPath, full: usize) -> Result<()> {
    let below = path.frames.len() - full;
    let (Some(parent), Some(frame)) = (path.frames.get(below.wrapping_sub(1)), path.frames.get(below)) else {
        return Ok(());
    };
    let (lblk, buffer) = append(txn, inode)?;
    let dir = Dir::new(txn.store(), inode)?;
    check_distinct(&dir, lblk, &buffer, frame.lblk, &frame.buffer)?;
    check_distinct(&dir, lblk, &buffer, parent.lblk, &parent.buffer)?;
    let bad = |rule| dir.bad_index(frame.lblk, frame.buffer.block(), rule);
    let (cut, upper) = {
        let bytes = frame.buffer.read();
        let cut = DxView::new(&bytes, frame.kind).count() / 2;
        (cut, htree::entries_from(&bytes, frame.kind, cut).map_err(bad)?)
    };
    let Some(upper) = upper.split_first() else { return Ok(()) };
    write_node(&dir, txn, lblk, &buffer, upper)?;
    dir.change(txn, &frame.buffer, Role::Index(frame.kind), |bytes| {
        htree::truncate(bytes, frame.kind, cut);
        Ok(())
    })?;
    dir.change(txn, &parent.buffer, Role::Index(parent.kind), |bytes| {
        htree::insert(bytes, parent.kind, parent.at + 1, DxEntry { hash: upper.0.hash, block: lblk })
            .map_err(|rule| dir.bad_index(parent.lblk, parent.buffer.block(), rule))
    })
}

/// Moves all entries of the root to a new node, and so adds a level.
pub(super) fn root(txn: &mut Txn<'_>, inode: &mut Inode, path: &IndexPath) -> Result<()> {
    let Some(frame) = path.frames.first() else { return Ok(()) };
    let (lblk, buffer) = append(txn, inode)?;
    let dir = Dir::new(txn.store(), inode)?;
    check_distinct(&dir, lblk, &buffer, 0, &frame.buffer)?;
    let all = htree::entries_from(&frame.buffer.read(), frame.kind, 0)
        .map_err(|rule| dir.bad_index(0, frame.buffer.block(), rule))?;
    let Some(all) = all.split_first() else { return Ok(()) };
    write_node(&dir, txn, lblk, &buffer, all)?;
    dir.change(txn, &frame.buffer, Role::Index(frame.kind), |bytes| {
        htree::truncate(bytes, frame.kind, 1);
        htree::set_first(bytes, frame.kind, lblk);
        htree::set_indirect_levels(bytes, path.info.indirect_levels + 1);
        Ok(())
    })
}

fn write_node(
    dir: &Dir<'_>,
    txn: &Txn<'_>,
    lblk: u32,
    buffer: &Buffer,
    (first, rest): (&DxEntry, &[DxEntry]),
) -> Result<()> {
    dir.change(txn, buffer, Role::Index(DxKind::Node), |bytes| {
        htree::init_node(bytes, dir.layout(), first.block);
        htree::extend(bytes, DxKind::Node, rest).map_err(|rule| dir.bad_index(lblk, buffer.block(), rule))
    })
}

/// Turns a linear directory of one block into an indexed one: its names move to block 1, block
/// 0 becomes the root. The caller has claimed space for one block.
pub(in crate::store::dir) fn convert(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    let ino = inode.ino;
    let old = Dir::new(txn.store(), inode)?.leaf(0)?;
    let copy = old.read().to_vec();
    let mut all = entries(&copy, &txn.store().dirs().layout).flatten();
    let mut dot = |name: &'static str| match all.next() {
        Some(e) if e.name == name.as_bytes() && e.inode != 0 => Ok(e.inode),
        _ => Err(DirError::Dots { ino, name }),
    };
    // Before the first change.
    let (own, parent) = (dot(".")?, dot("..")?);
    if own != ino {
        return Err(DirError::Dots { ino, name: "." }.into());
    }
    let (lblk, buffer) = append(txn, inode)?;
    let dir = Dir::new(txn.store(), inode)?;
    check_distinct(&dir, lblk, &buffer, 0, &old)?;
    dir.change(txn, &buffer, Role::Leaf, |bytes| {
        leaf::pack(bytes, dir.layout(), all.filter(|e| e.inode != 0))
            .map_err(|rule| dir.bad_leaf(lblk, buffer.block(), rule))
    })?;
    let info = DxRootInfo { hash_version: dir.params().hasher.version(), indirect_levels: 0, own, parent };
    dir.change(txn, &old, Role::Index(DxKind::Root), |bytes| {
        htree::init_root(bytes, dir.layout(), info, lblk);
        Ok(())
    })?;
    inode.flags.insert(InodeFlags::INDEX);
    Ok(())
}

/// Checks that two blocks differ: with a damaged bitmap, the allocator may return a block that the
/// directory has already.
fn check_distinct(dir: &Dir<'_>, lblk: u32, new: &Buffer, other: u32, old: &Buffer) -> Result<()> {
    if new.block() == old.block() {
        return Err(DirError::BlockTwice { ino: dir.inode.ino, lblk, block: new.block(), other }.into());
    }
    Ok(())
}
