//! Inserts a name whose leaf is full.
//!
//! Room is made in steps: add a level, split an index block, and at last split the leaf. Each step
//! takes one new block and leaves a consistent directory. So on a full volume the insertion stops
//! between two steps, and nothing is lost.

use super::lookup::IndexPath;
use super::split;
use crate::error::DirError;
use crate::error::{Error, Result};
use crate::store::dir::block::Dir;
use crate::store::dir::{NewEntry, leaf};
use crate::store::txn::Txn;
use lanefs_format::Inode;
use lanefs_format::dirent::rec_len;
use lanefs_format::htree::DxView;

/// More steps than a path of three index blocks can need.
const MAX_STEPS: u32 = 8;

/// Inserts `new`, for which no leaf of its hash has room.
///
/// # Errors
/// [`Error::NoSpace`]; [`Error::DirFull`] if the index is full, at its full depth.
pub(in crate::store::dir) fn insert(txn: &mut Txn<'_>, inode: &mut Inode, new: &NewEntry<'_>) -> Result<()> {
    let mut lblk = 0;
    for _ in 0..MAX_STEPS {
        let dir = Dir::new(txn.store(), inode)?;
        let (root, info) = dir.root()?;
        let hasher = dir.params().hasher.with_version(info.hash_version);
        let hash = hasher.hash(new.name).major;
        let path = IndexPath::to(&dir, root, info, hash)?;
        lblk = path.leaf;
        let buffer = dir.leaf(lblk)?;
        let scan = dir.scan(path.leaf, &buffer, new.name)?;
        if let Some(offset) = scan.room {
            return new.put(&dir, txn, &buffer, offset);
        }
        let live = leaf::live_bytes(&buffer.read(), dir.layout());
        if live + new.need() <= dir.layout().end() {
            return split::pack(&dir, txn, path.leaf, &buffer, new);
        }
        match full_frames(&path) {
            0 => return split::leaf(txn, inode, &path, new),
            full if full < path.frames.len() => split::node(txn, inode, &path, full)?,
            _ if info.indirect_levels < dir.params().max_levels => split::root(txn, inode, &path)?,
            _ => return Err(Error::DirFull),
        }
    }
    Err(DirError::SplitTooSmall { ino: inode.ino, lblk, need: new.need() }.into())
}

/// Returns how many blocks [`insert`] adds for `name` at most.
///
/// # Errors
/// [`Error::DirFull`] if the index is full, at its full depth.
pub(in crate::store::dir) fn growth(dir: &Dir<'_>, name: &[u8]) -> Result<u32> {
    let (root, info) = dir.root()?;
    let hash = dir.params().hasher.with_version(info.hash_version).hash(name).major;
    let path = IndexPath::to(dir, root, info, hash)?;
    let buffer = dir.leaf(path.leaf)?;
    let live = leaf::live_bytes(&buffer.read(), dir.layout());
    if live + rec_len(name.len()) <= dir.layout().end() {
        return Ok(0);
    }
    let full = full_frames(&path);
    if full == path.frames.len() && info.indirect_levels >= dir.params().max_levels {
        return Err(Error::DirFull);
    }
    // A leaf, and one for each index block that is full; a full root gets a level.
    Ok(full as u32 + 1)
}

/// Counts the full index blocks on the path, from the leaf upwards without a gap.
fn full_frames(path: &IndexPath) -> usize {
    let full = |bytes: &[u8], kind| {
        let view = DxView::new(bytes, kind);
        view.count() >= view.limit()
    };
    path.frames.iter().rev().take_while(|frame| full(&frame.buffer.read(), frame.kind)).count()
}
