//! A directory's inode and its blocks, checked when they are loaded.
//!
//! Invariants:
//! - The caller holds the namespace lock of the directory, shared to read.
//! - A block is checked once for each role, entries or index, while it is cached.
//!
//! Hazard: a hole, an unwritten block or a size that no directory has is damage, and an error.

use super::{DirParams, leaf};
use crate::error::{DirError, Error, Result};
use crate::store::alloc::{self, Reach};
use crate::store::map::{self, Mapping};
use crate::store::txn::Txn;
use crate::store::{Store, kind};
use lanefs_format::dirent::{self, DirLayout, DirentError};
use lanefs_format::htree::{self, DxKind, DxRootInfo, HtreeError};
use lanefs_format::{Inode, InodeFlags};
use lanefs_journal::Buffer;

/// Bytes of a directory that a listing reads at once.
const LISTED: u32 = 128 << 10;
/// Bytes of the largest directory that a listing by hash reads so: of a larger one, the cache would
/// drop neighbours before their turn comes.
const LISTED_BY_HASH: u64 = 16 << 20;

/// What a block of a directory is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Entries.
    Leaf,
    /// Part of the index.
    Index(DxKind),
}

/// A directory. The caller holds its namespace lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dir<'a> {
    pub(super) store: &'a Store,
    pub(super) inode: &'a Inode,
    /// Blocks of the directory, at least 1.
    pub(super) blocks: u32,
    pub(super) seed: Option<u32>,
}

impl<'a> Dir<'a> {
    /// Prepares to read the blocks of a directory.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for features that lanefs does not read; an i_size that no directory
    /// has, or none on this volume.
    pub(super) fn new(store: &'a Store, inode: &'a Inode) -> Result<Self> {
        Self::check_supported(inode)?;
        let block_size = store.block_size;
        let max = store.dirs().max_size();
        let size = inode.size;
        if size == 0 || !size.is_multiple_of(u64::from(block_size)) || size > max {
            return Err(DirError::Size { ino: inode.ino, size, block_size, max }.into());
        }
        let blocks = (size / u64::from(block_size)) as u32;
        // A directory has no holes.
        let bound = store.layout().blocks_count();
        if u64::from(blocks) > bound {
            return Err(DirError::Blocks { ino: inode.ino, blocks, bound }.into());
        }
        let seed = inode.seed(&store.checksummer);
        Ok(Self { store, inode, blocks, seed })
    }

    fn check_supported(inode: &Inode) -> Result<()> {
        let what = if inode.flags.contains(InodeFlags::INLINE_DATA) {
            "directories with inline data"
        } else if inode.flags.contains(InodeFlags::ENCRYPT) {
            "encrypted directories"
        } else if inode.flags.contains(InodeFlags::CASEFOLD) {
            "case-folding directories"
        } else {
            return Ok(());
        };
        Err(Error::NotSupported(what.into()))
    }

    pub(super) fn params(&self) -> &'a DirParams {
        self.store.dirs()
    }

    pub(super) fn layout(&self) -> &'a DirLayout {
        &self.store.dirs().layout
    }

    /// Returns whether names are found through an index.
    pub(super) fn indexed(&self) -> bool {
        self.params().index && self.inode.flags.contains(InodeFlags::INDEX)
    }

    /// Returns the block of the volume for block `lblk`.
    fn locate(&self, lblk: u32) -> Result<u64> {
        let ino = self.inode.ino;
        match map::lookup(self.store, self.inode, lblk)? {
            Mapping::Mapped { block, unwritten: false, .. } => Ok(block),
            Mapping::Mapped { block, .. } => Err(DirError::Unwritten { ino, lblk, block }.into()),
            Mapping::Hole { .. } => Err(DirError::Hole { ino, lblk }.into()),
        }
    }

    /// Returns block `lblk` as a block of entries.
    pub(super) fn leaf(&self, lblk: u32) -> Result<Buffer> {
        self.leaf_among(lblk, Vec::new)
    }

    /// Returns a block of entries of a directory that is being listed: its neighbours are read with
    /// it.
    pub(super) fn listed_leaf(&self, lblk: u32) -> Result<Buffer> {
        self.leaf_among(lblk, || self.window(lblk))
    }

    /// Returns a block of entries as [`listed_leaf`](Self::listed_leaf) does, for a listing whose
    /// next block is anywhere.
    pub(super) fn listed_leaf_by_hash(&self, lblk: u32) -> Result<Buffer> {
        match u64::from(self.blocks) * u64::from(self.store.block_size) <= LISTED_BY_HASH {
            true => self.listed_leaf(lblk),
            false => self.leaf(lblk),
        }
    }

    /// Reads block `lblk` of a directory that will be listed, and its neighbours, into the cache.
    pub(super) fn read_around(&self, lblk: u32) -> Result<()> {
        let block = self.locate(lblk)?;
        let owned = |block: &u64| self.store.check_data_range(*block, 1).is_ok();
        let among = || self.window(lblk).into_iter().filter(owned).collect();
        self.store.check_data_range(block, 1)?;
        Ok(self.store.journal.read_among(block, among).map(drop)?)
    }

    /// Returns the places of the blocks that a listing reads with block `lblk`.
    fn window(&self, lblk: u32) -> Vec<u64> {
        let len = (LISTED / self.store.block_size.max(1)).max(1);
        let start = lblk / len * len;
        let window = start..start.saturating_add(len).min(self.blocks);
        window.filter_map(|lblk| self.locate(lblk).ok()).collect()
    }

    fn leaf_among(&self, lblk: u32, among: impl FnOnce() -> Vec<u64>) -> Result<Buffer> {
        let block = self.locate(lblk)?;
        self.store.file_block_among(block, kind::DIR_BLOCK, among, |bytes| {
            dirent::verify_block(bytes, self.layout(), self.seed)
                .map_err(|rule| self.bad_leaf(lblk, block, rule))
        })
    }

    /// Reads block 0 as the root of an index.
    pub(super) fn root(&self) -> Result<(Buffer, DxRootInfo)> {
        let block = self.locate(0)?;
        let max_levels = self.params().max_levels;
        let verify = |bytes: &[u8]| {
            htree::verify_root(bytes, self.layout(), max_levels, self.seed)
                .map_err(|rule| self.bad_index(0, block, rule))
        };
        let buffer = self.store.file_block(block, kind::DX_ROOT, |bytes| verify(bytes).map(drop))?;
        let info = {
            // Locked once: a second lock would wait for a writer that waits for the first.
            let bytes = buffer.read();
            match htree::root_info(&bytes) {
                Some(info) => info,
                None => verify(&bytes)?,
            }
        };
        Ok((buffer, info))
    }

    /// Reads block `lblk` as a node of an index.
    pub(super) fn node(&self, lblk: u32) -> Result<Buffer> {
        let block = self.locate(lblk)?;
        self.store.file_block(block, kind::DX_NODE, |bytes| {
            htree::verify_node(bytes, self.layout(), self.seed)
                .map_err(|rule| self.bad_index(lblk, block, rule))
        })
    }

    pub(super) fn bad_leaf(&self, lblk: u32, block: u64, rule: DirentError) -> Error {
        DirError::Leaf { ino: self.inode.ino, lblk, block, rule }.into()
    }

    pub(super) fn bad_index(&self, lblk: u32, block: u64, rule: HtreeError) -> Error {
        DirError::Index { ino: self.inode.ino, lblk, block, rule }.into()
    }

    /// Searches a leaf for a name, in one pass.
    pub(super) fn scan(&self, lblk: u32, buffer: &Buffer, name: &[u8]) -> Result<leaf::Scan> {
        leaf::scan(&buffer.read(), self.layout(), name)
            .map_err(|rule| self.bad_leaf(lblk, buffer.block(), rule))
    }

    /// Changes a block of the directory and updates its checksum.
    pub(super) fn change<T>(
        &self,
        txn: &Txn<'_>,
        buffer: &Buffer,
        role: Role,
        change: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        let mut guard = txn.write(buffer)?;
        let bytes: &mut [u8] = &mut guard;
        let out = change(bytes)?;
        match role {
            Role::Leaf => dirent::seal(bytes, self.layout(), self.seed),
            Role::Index(kind) => htree::seal(bytes, self.layout(), kind, self.seed),
        }
        Ok(out)
    }
}

/// Claims space for `blocks` that will be [appended](append), and for their map.
///
/// # Errors
/// [`Error::NoSpace`], [`Error::DirFull`] for more than the largest size: nothing is claimed.
pub(super) fn claim(txn: &mut Txn<'_>, inode: &Inode, blocks: u32) -> Result<()> {
    let store = txn.store();
    if blocks == 0 {
        return Ok(());
    }
    let block_size = u64::from(store.block_size);
    if inode.size.saturating_add(u64::from(blocks) * block_size) > store.dirs().max_size() {
        return Err(Error::DirFull);
    }
    let lblk = (inode.size / block_size) as u32;
    let map = map::insert_blocks(store, inode, lblk, blocks, blocks as usize - 1)?;
    let all = u64::from(blocks) + map as u64;
    match map::reach(inode) {
        Reach::Volume => txn.spend(alloc::claim(store, all)?),
        // The volume may have the blocks where the map cannot number them.
        Reach::Low => txn.reserve_low(map::goal(store, inode, lblk)?, all)?,
    }
    Ok(())
}

/// Appends a block of zeros to the directory and moves i_size behind it. The caller fills the block
/// under the same handle.
///
/// # Errors
/// [`Error::NoSpace`], [`Error::DirFull`] for a directory of the largest size: nothing is changed.
pub(super) fn append(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<(u32, Buffer)> {
    let store = txn.store();
    let block_size = u64::from(store.block_size);
    let lblk = inode.size / block_size;
    if inode.size.saturating_add(block_size) > store.dirs().max_size() {
        return Err(Error::DirFull);
    }
    let lblk = lblk as u32;
    let block = map::alloc_append(txn, inode, lblk)?;
    let buffer = txn.create(block)?;
    inode.size += block_size;
    Ok((lblk, buffer))
}
