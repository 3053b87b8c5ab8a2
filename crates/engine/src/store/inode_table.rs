//! Reads and writes inodes in the inode tables.
//!
//! Invariants:
//! - A table block is read through the journal's cache, and changed under a handle only.
//! - No directory entry leads to an inode that the superblock names, or to a reserved one but the
//!   root.
//!
//! Hazard: numbers and content are those of the volume, which is not trusted: each inode is checked
//! when it is read.

use super::Store;
use crate::error::{Corrupt, Error, Result};
use crate::store::alloc::read_desc;
use crate::store::txn::Txn;
use lanefs_format::{FormatError, Inode, InodeUse, Superblock};
use lanefs_journal::Buffer;
use lanefs_sync::atomic::AtomicU64;
use lanefs_sync::atomic::Ordering::Relaxed;
use std::ops::Range;

/// The number of the root directory.
pub(crate) const ROOT_INO: u32 = 2;

/// An inode's slot of the table, with its block held in memory: reading and writing it does no I/O.
#[derive(Debug)]
pub(crate) struct TableSlot<'f> {
    store: &'f Store,
    ino: u32,
    buffer: Buffer,
    bytes: Range<usize>,
}

/// Returns the inodes that the superblock names (0 for none), with their roles. No directory entry
/// may lead to one of them.
pub(super) fn own_inodes(sb: &Superblock) -> [(u32, &'static str); 5] {
    let raw = sb.raw();
    [
        (raw.s_journal_inum.get(), "journal"),
        (raw.s_orphan_file_inum.get(), "orphan file"),
        (raw.s_usr_quota_inum.get(), "quotas of users"),
        (raw.s_grp_quota_inum.get(), "quotas of groups"),
        (raw.s_prj_quota_inum.get(), "quotas of projects"),
    ]
}

/// Readahead of the inode tables. The second block of a window that is not in the cache brings the
/// whole window: a walk of a directory reads the inodes of neighbours, one after the other. A walk
/// that goes on from a window that was brought whole brings two at its first block. A single block
/// of the window before tells of no walk: a stride of one or two windows reads such blocks too.
#[derive(Debug, Default)]
pub(super) struct TableAhead {
    /// What was read of the windows that were met last, as [`Met::code`].
    met: [AtomicU64; 16],
}

/// What was read of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    /// One block.
    Touched = 1,
    /// All blocks, at once.
    Whole = 2,
}

impl Met {
    /// Returns the number that says this of `window`. 0 says nothing of any window.
    fn code(self, window: u64) -> u64 {
        window * 2 + self as u64
    }
}

impl TableAhead {
    /// The bytes of a window, as the kernel's `inode_readahead_blks` for blocks of 4096 bytes.
    const WINDOW: u32 = 128 << 10;

    /// Returns the blocks to read for `block` of a table whose blocks in use are `table`.
    fn blocks(&self, block: u64, table: Range<u64>, block_size: u32) -> Vec<u64> {
        let len = u64::from((Self::WINDOW / block_size.max(1)).max(1));
        let window = block / len;
        let goes_on = window.checked_sub(1).is_some_and(|before| self.met(before) == Some(Met::Whole));
        if !goes_on && self.met(window).is_none() {
            self.note(window, Met::Touched);
            return Vec::new();
        }
        let end = window + if goes_on { 2 } else { 1 };
        (window..end).for_each(|window| self.note(window, Met::Whole));
        ((window * len).max(table.start)..(end * len).min(table.end)).collect()
    }

    fn slot(&self, window: u64) -> &AtomicU64 {
        &self.met[(window % self.met.len() as u64) as usize]
    }

    /// Returns what was read of a window, if it is one of those that were met last.
    fn met(&self, window: u64) -> Option<Met> {
        let code = self.slot(window).load(Relaxed);
        [Met::Touched, Met::Whole].into_iter().find(|met| met.code(window) == code)
    }

    /// Notes what is read of a window.
    fn note(&self, window: u64, met: Met) {
        self.slot(window).store(met.code(window), Relaxed);
    }
}

impl Store {
    /// Checks that a name may lead to inode `ino`: it exists, and the file system does not use it
    /// itself.
    ///
    /// # Errors
    /// [`Corrupt::InodeNumber`] outside of the volume, [`Corrupt::SpecialInode`].
    pub(crate) fn check_named(&self, ino: u32) -> Result<()> {
        let count = self.layout().inodes_count();
        if ino == 0 || ino > count {
            return Err(Corrupt::InodeNumber { ino, by: "a directory entry", count }.into());
        }
        let own = self.own_inodes.iter().find(|(own, _)| *own == ino).map(|(_, role)| *role);
        let reserved = (ino < self.first_ino && ino != ROOT_INO).then_some("reserved");
        match own.or(reserved) {
            Some(role) => Err(Corrupt::SpecialInode { ino, role, rule: "has a name" }.into()),
            None => Ok(()),
        }
    }

    /// Reads the block of the table that holds `ino`.
    ///
    /// # Errors
    /// A number that the volume does not have; the device's.
    pub(crate) fn table_slot(&self, ino: u32) -> Result<TableSlot<'_>> {
        let slot = self.layout().inode_slot(ino).map_err(|_| Corrupt::InodeNumber {
            ino,
            by: "a directory or list",
            count: self.layout().inodes_count(),
        })?;
        let desc = read_desc(self, slot.group)?;
        let block = desc.inode_table + u64::from(slot.table_block);
        let among = || {
            let used = self.layout().inodes_per_group().saturating_sub(desc.itable_unused);
            let in_block = (self.block_size / u32::from(self.inode_ctx.inode_size).max(1)).max(1);
            let end = desc.inode_table.saturating_add(used.div_ceil(in_block).into());
            self.table_ahead.blocks(block, desc.inode_table..end, self.block_size)
        };
        self.table_slot_in(ino, self.journal.read_among(block, among)?)
    }

    /// Returns the slot of `ino` in `buffer`, the block of the table that holds it.
    pub(crate) fn table_slot_in(&self, ino: u32, buffer: Buffer) -> Result<TableSlot<'_>> {
        let start = self.layout().inode_slot(ino)?.offset as usize;
        let bytes = start..start + usize::from(self.inode_ctx.inode_size);
        let len = self.block_size as usize;
        if bytes.end > len {
            let (what, need) = ("inode table block", bytes.end);
            return Err(Error::Format(FormatError::Truncated { what, len, need }));
        }
        Ok(TableSlot { store: self, ino, buffer, bytes })
    }

    /// Reads an inode, its checksum and rules verified.
    pub(crate) fn read_inode(&self, ino: u32) -> Result<Inode> {
        self.table_slot(ino)?.read()
    }
}

impl TableSlot<'_> {
    /// Returns the inode, its checksum and rules verified.
    pub(crate) fn read(&self) -> Result<Inode> {
        let bytes = self.buffer.read();
        let slot = bytes.get(self.bytes.clone()).unwrap_or_default();
        Ok(Inode::parse(slot, self.ino, &self.store.inode_ctx)?)
    }

    /// Returns the fields of the slot that tell whether it is in use. Checks nothing else.
    pub(crate) fn raw_use(&self) -> Result<InodeUse> {
        let bytes = self.buffer.read();
        Ok(InodeUse::of(bytes.get(self.bytes.clone()).unwrap_or_default())?)
    }

    /// Writes the inode under a handle. Costs
    /// [`credits::INODE`](crate::store::txn::credits::INODE).
    pub(crate) fn write(&self, txn: &Txn<'_>, inode: &Inode) -> Result<()> {
        self.encode(txn, inode, false)
    }

    /// Writes a new inode, over the old content of the slot.
    pub(crate) fn write_new(&self, txn: &Txn<'_>, inode: &Inode) -> Result<()> {
        self.encode(txn, inode, true)
    }

    fn encode(&self, txn: &Txn<'_>, inode: &Inode, new: bool) -> Result<()> {
        let ctx = &self.store.inode_ctx;
        debug_assert_eq!(inode.ino, self.ino);
        // While the inode is on the orphan list, its i_dtime is the number of the next inode on the
        // list.
        let chain = self.store.orphans.chain(inode.ino);
        let mut bytes = txn.write(&self.buffer)?;
        let slot = bytes.get_mut(self.bytes.clone()).unwrap_or_default();
        if new {
            slot.fill(0);
        }
        match chain.next() {
            None => inode.encode(slot, ctx)?,
            Some(next) => Inode { dtime: next, ..inode.clone() }.encode(slot, ctx)?,
        }
        Ok(())
    }

    /// Changes `i_dtime` alone. While an inode is on the orphan list, this field belongs to the
    /// list, whose lock the caller holds.
    pub(crate) fn write_dtime(&self, txn: &Txn<'_>, dtime: u32) -> Result<()> {
        let inode = Inode { dtime, ..self.read()? };
        let mut bytes = txn.write(&self.buffer)?;
        let slot = bytes.get_mut(self.bytes.clone()).unwrap_or_default();
        Ok(inode.encode(slot, &self.store.inode_ctx)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The blocks of a million inodes.
    const TABLE: Range<u64> = 64_000..126_500;

    /// Accesses blocks through a cache that keeps them all. Returns the number of misses, and that
    /// of the blocks that were read.
    fn read(accesses: impl Iterator<Item = u64>) -> (usize, usize) {
        let (ahead, mut cache, mut misses) = (TableAhead::default(), HashSet::new(), 0);
        for block in accesses {
            if cache.insert(block) {
                misses += 1;
                cache.extend(ahead.blocks(block, TABLE, 4096));
            }
        }
        (misses, cache.len())
    }

    /// The inodes of every thousandth name: their blocks are one or two windows apart.
    #[test]
    fn a_stride_reads_its_own_blocks_alone() {
        assert_eq!(read((0..1000).map(|i| TABLE.start + i * 125 / 2)), (1000, 1000));
    }

    #[test]
    fn a_walk_reads_two_windows_at_a_time() {
        let (misses, blocks) = read(TABLE);
        assert_eq!(blocks, 62_500);
        assert!(misses <= 1000, "{misses} reads");
    }
}
