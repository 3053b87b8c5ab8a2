//! A volume that is open: what all operations share.
//!
//! [`Fs`] holds the parsed superblock, the layout, the journal with its cache of metadata blocks,
//! and the allocators. It is made by [`open`](mod@open), which recovers the volume first, and ended
//! by [`Fs::close`]. Reading a block goes through [`Fs::file_block`], which refuses pointers out of
//! the volume or into its fixed metadata.

mod clock;
mod close;
mod dirty_times;
mod flusher;
mod inode_table;
mod log_place;
mod modes;
mod mount_options;
mod open;
mod options;
mod statfs;
mod torn;
mod zones;

pub(crate) use clock::Clock;
pub(crate) use inode_table::TableSlot;
pub use modes::{IVersion, Locking, Overwrite, Writeback};
pub use mount_options::mount_words;
#[cfg(test)]
pub(crate) use open::read_super;
pub use options::OpenOptions;
pub use statfs::StatFs;
pub use zones::Zone;

use crate::alloc::Alloc;
use crate::data::{Background, Combiner, PageCache};
use crate::dir::DirParams;
use crate::error::{Error, Result};
use crate::inode::NodeTable;
use crate::orphan::Orphans;
use crate::stats::Counters;
use crate::txn::Txn;
use crate::xattr::Sharing;
use dirty_times::{DirtyTimes, Round};
use flusher::Flusher;
use lanefs_device::BlockDevice;
use lanefs_format::{
    Checksummer, Compat, GroupDesc, Incompat, InodeContext, Layout, RoCompat, State, Superblock, Timestamp,
};
use lanefs_journal::{Buffer, Journal, Ticket};
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use lanefs_sync::order::{Level, Ordered};
use std::sync::Arc;
use std::time::Duration;
use zones::Zones;

/// What a cached block has been verified as. A block that is used as something else is
/// verified anew.
pub(crate) mod kind {
    pub(crate) const BLOCK_BITMAP: u8 = 1;
    pub(crate) const INODE_BITMAP: u8 = 2;
    pub(crate) const EXTENT_NODE: u8 = 3;
    pub(crate) const DIR_BLOCK: u8 = 4;
    pub(crate) const DX_NODE: u8 = 5;
    pub(crate) const XATTR: u8 = 6;
    pub(crate) const ORPHAN: u8 = 7;
    pub(crate) const SYMLINK: u8 = 8;
    pub(crate) const INDIRECT: u8 = 9;
    pub(crate) const DX_ROOT: u8 = 10;
}

/// The largest time between a change and its commit when nobody asks.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// What opening a volume had to mend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// What was replayed from the journal.
    pub journal: lanefs_journal::recovery::Report,
    /// Files that were unlinked or being truncated when the volume was left. Finished by a
    /// volume that is open for writing.
    pub orphans: u32,
}

/// An open volume.
#[derive(Debug)]
pub(crate) struct Fs {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) layout: Layout,
    pub(crate) checksummer: Checksummer,
    pub(crate) block_size: u32,
    pub(crate) inode_ctx: InodeContext,
    pub(crate) first_ino: u32,
    own_inodes: [(u32, &'static str); 5],
    pub(crate) journal: Journal,
    pub(crate) alloc: Arc<Alloc>,
    pub(crate) nodes: NodeTable,
    pub(crate) orphans: Orphans,
    /// The superblock as it would be written now, but for the free counts.
    pub(crate) sb: Mutex<Superblock>,
    /// The block of the superblock.
    super_buffer: lanefs_sync::OnceLock<Buffer>,
    pub(crate) options: OpenOptions,
    features: lanefs_format::Features,
    pub(crate) reserved_blocks: u64,
    overhead: lanefs_sync::OnceLock<u64>,
    journal_blocks: u64,
    pub(crate) dirs: DirParams,
    pub(crate) xattr_sharing: Sharing,
    pub(crate) zones: Arc<Zones>,
    read_only: bool,
    /// Held by renames between directories, which may turn the tree.
    pub(crate) topology: Mutex<()>,
    /// The first failure that no caller saw.
    error: Mutex<Option<String>>,
    state_at_open: State,
    pub(crate) recovery: Recovery,
    closed: AtomicBool,
    generation: AtomicU32,
    pub(crate) clock: Clock,
    pub(crate) pages: Arc<PageCache>,
    pub(crate) flusher: Flusher,
    pub(crate) combiner: Combiner,
    pub(crate) counters: Box<Counters>,
    /// Content goes past the page cache: the device is memory.
    pub(crate) dax: bool,
    /// The device is memory whose writes need no flush.
    pub(crate) writes_last: bool,
    dirty_times: DirtyTimes,
    /// The flush that covers what was written to files whose nodes were evicted since.
    unflushed: AtomicU64,
    /// The opener, and all uses of inodes: the last to go closes the volume.
    users: AtomicUsize,
}

impl Fs {
    /// One more who keeps the volume open.
    pub(crate) fn retain(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// One less: the last closes it, without a word of errors.
    pub(crate) fn release(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            // What closing uses of it does not close it again.
            self.retain();
            let _ = self.close();
        }
    }

    /// Whether the volume was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Keeps the ticket of a file whose node is evicted.
    pub(crate) fn keep_unflushed(&self, ticket: Ticket) {
        self.unflushed.fetch_max(ticket.to_u64(), Ordering::AcqRel);
    }

    /// Returns the ticket that covers what was written to a file before its node was loaded.
    pub(crate) fn unflushed(&self) -> Ticket {
        Ticket::from_u64(self.unflushed.load(Ordering::Acquire))
    }

    /// Notes that the inode of a file does not tell of its last change yet, which `raise` says.
    pub(crate) fn note_dirty_times(&self, ino: u32, raise: impl FnOnce()) {
        self.dirty_times.add(ino, raise);
        self.flusher.stir();
    }

    /// Returns the number of files whose inodes do not tell of their last change.
    pub(crate) fn dirty_times(&self) -> usize {
        self.dirty_times.len()
    }

    /// Lists the files whose inodes do not tell of their last change.
    pub(crate) fn list_dirty_times(&self) -> Vec<(u32, Round)> {
        self.dirty_times.list()
    }

    /// Takes a file off that list whose inode knows what was pending in `round`.
    pub(crate) fn forget_dirty_times(&self, ino: u32, round: Round) {
        self.dirty_times.remove(ino, round);
    }

    /// What the background begins with: pages are written out at the age at which changes are
    /// committed, for here memory ends with the process.
    pub(crate) fn background_jobs(&self) -> Background {
        let age = self.options.commit_interval;
        Background::new((!age.is_zero()).then_some(age))
    }

    /// Returns whether the inodes of these files are to be updated in the background.
    pub(crate) fn times_are_due(&self) -> bool {
        self.dirty_times.are_due(self.options.commit_interval)
    }

    /// Whether the volume may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        // After a failure nothing is taken that could not be kept.
        if self.read_only || self.journal.has_ended() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Whether the volume is open for reading only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn has(&self, bits: Compat) -> bool {
        self.features.compat.contains(bits)
    }

    pub(crate) fn has_incompat(&self, bits: Incompat) -> bool {
        self.features.incompat.contains(bits)
    }

    pub(crate) fn has_ro(&self, bits: RoCompat) -> bool {
        self.features.ro_compat.contains(bits)
    }

    /// Whether group descriptors carry checksums, and with them the flags of unwritten bitmaps.
    pub(crate) fn has_group_checksums(&self) -> bool {
        self.features.ro_compat.intersects(RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM)
    }

    /// The time that changes are stamped with.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// i_generation for a new inode: without a pattern, and the same twice under a fixed clock.
    pub(crate) fn next_generation(&self) -> u32 {
        let n = self.generation.fetch_add(1, Ordering::Relaxed);
        lanefs_format::ext4_chksum(!0, &n.to_le_bytes())
    }

    /// A metadata block that a file's structure points at.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Corrupt) if no file can own that block; what `verify` says, which
    /// is asked once after each load of the block.
    pub(crate) fn file_block(
        &self,
        block: u64,
        kind: u8,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Buffer> {
        self.check_data_range(block, 1)?;
        let buffer = self.journal.read(block)?;
        if !buffer.verified(kind) {
            verify(&buffer.read())?;
            buffer.set_verified(kind);
        }
        Ok(buffer)
    }

    /// Checks that a file can own `len` blocks from `start` on. Fails as [`Zones::check`].
    pub(crate) fn check_data_range(&self, start: u64, len: u64) -> Result<()> {
        self.zones.check(&self.layout, start, len)
    }

    /// The device's byte at which a block begins.
    pub(crate) fn byte_of(&self, block: u64) -> u64 {
        block.saturating_mul(u64::from(self.block_size))
    }

    /// Parses the bytes of a group descriptor.
    pub(crate) fn parse_desc(&self, group: u32, bytes: &[u8]) -> Result<GroupDesc> {
        Ok(GroupDesc::parse(bytes, group, &self.layout, &self.checksummer)?)
    }

    /// Changes the superblock under a handle. Its block is held in memory since the volume was
    /// opened for writing, so that this does no I/O.
    pub(crate) fn write_super(&self, txn: &Txn<'_>, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let buffer = match self.super_buffer.get() {
            Some(buffer) => buffer,
            None => &self.read_super_buffer()?,
        };
        let offset = if self.block_size == 1024 { 0 } else { 1024 };
        let mut sb = Ordered::take(Level::Super, 0, || self.sb.lock());
        let mut bytes = txn.write(buffer)?;
        change(&mut sb);
        if let Some(slot) = bytes.get_mut(offset..offset + 1024) {
            slot.copy_from_slice(&sb.encode());
        }
        Ok(())
    }

    fn read_super_buffer(&self) -> Result<Buffer> {
        Ok(self.journal.read(u64::from(self.block_size == 1024))?)
    }
}
