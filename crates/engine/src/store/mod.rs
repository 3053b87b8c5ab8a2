//! The structures of a volume, and how they are changed: the format above a device and a journal.
//!
//! [`Store::assemble`] makes a [`Store`]. [`Store::file_block`] reads a metadata block, and refuses
//! pointers out of the volume or into its fixed metadata. A [`Txn`] changes blocks.
//!
//! Nothing here knows of inodes in use or of cached pages. Threads play a part in three places:
//! - The allocator gives each thread a lane of groups of its own, and leaves the reserved blocks if
//!   the thread serves an unprivileged user. The generations of inodes have a counter for each.
//! - `resize` copies blocks by several threads, which it starts and ends itself.

pub(crate) mod alloc;
mod assemble;
mod clock;
mod counters;
mod dimensions;
pub(crate) mod dir;
mod generations;
mod inode_table;
pub(crate) mod io;
pub(crate) mod log_place;
pub(crate) mod map;
pub(crate) mod orphan;
pub(crate) mod resize;
pub(crate) mod space;
mod superblock;
pub(crate) mod threads;
mod torn;
pub(crate) mod txn;
pub(crate) mod xattr;
mod zones;

pub(crate) use alloc::Reserved;
pub(crate) use assemble::Config;
pub(crate) use clock::Clock;
pub(crate) use counters::Counters;
use inode_table::TableAhead;
pub(crate) use inode_table::{ROOT_INO, TableSlot};
pub(crate) use superblock::{read_super, write_super};
pub(crate) use zones::Survey;

use crate::error::{Error, Result};
use alloc::Alloc;
use dimensions::{Dimensions, History};
use dir::DirParams;
use generations::Generations;
use lanefs_device::BlockDevice;
use lanefs_format::{
    Checksummer, Compat, Features, GroupDesc, Incompat, InodeContext, Layout, RoCompat, Superblock, Timestamp,
};
use lanefs_journal::{Buffer, Journal};
use lanefs_sync::atomic::{AtomicBool, Ordering};
use lanefs_sync::{Mutex, OnceLock};
use orphan::Orphans;
use std::sync::Arc;
use xattr::Sharing;
use zones::Zones;

/// The structures that a cached block has been verified as. A block that is used as another
/// structure is verified again.
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

/// The structures of an open volume.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) device: Arc<dyn BlockDevice>,
    dimensions: History,
    pub(crate) checksummer: Checksummer,
    pub(crate) block_size: u32,
    pub(crate) inode_ctx: InodeContext,
    pub(crate) first_ino: u32,
    own_inodes: [(u32, &'static str); 5],
    pub(crate) journal: Journal,
    pub(crate) alloc: Arc<Alloc>,
    pub(crate) orphans: Orphans,
    table_ahead: TableAhead,
    /// The superblock as it would be written now, but for the free counts.
    pub(crate) sb: Mutex<Superblock>,
    /// The block of the superblock.
    super_buffer: OnceLock<Buffer>,
    features: Features,
    /// Whether every caller may use the reserved blocks.
    use_reserved: bool,
    /// Blocks of the log.
    pub(crate) journal_blocks: u64,
    pub(crate) xattr_sharing: Sharing,
    /// Held by the thread that changes the volume's size, or the copies of its superblock.
    pub(crate) resizing: Mutex<()>,
    read_only: bool,
    closed: AtomicBool,
    generations: Generations,
    pub(crate) clock: Clock,
    pub(crate) counters: Box<Counters>,
    /// The first failure that was not returned to any caller.
    error: Mutex<Option<String>>,
    /// POSIX ACLs count.
    pub(crate) acl: bool,
    /// Content goes past the page cache: the device is memory.
    pub(crate) dax: bool,
    /// The device is memory whose writes need no flush.
    pub(crate) writes_last: bool,
}

impl Store {
    /// Returns the values that depend on the volume's size, as they are now.
    fn dimensions(&self) -> &Dimensions {
        self.dimensions.newest()
    }

    /// Returns the geometry of the volume as it is now: a growth changes it between two calls.
    pub(crate) fn layout(&self) -> &Layout {
        &self.dimensions().layout
    }

    /// Returns the fixed metadata of the volume as it is now.
    pub(crate) fn zones(&self) -> &Zones {
        &self.dimensions().zones
    }

    pub(crate) fn dirs(&self) -> &DirParams {
        &self.dimensions().dirs
    }

    /// Returns the number of blocks that only root may use.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.dimensions().reserved_blocks
    }

    /// Returns the number of blocks that files can never have.
    pub(crate) fn overhead(&self) -> u64 {
        self.dimensions().overhead
    }

    /// Returns whether the volume was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Refuses all changes from now on.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Keeps the first error that is not returned to any caller, for the close to mark the volume.
    /// A full volume is sound.
    pub(crate) fn note_error(&self, e: &Error) {
        if !matches!(e, Error::NoSpace) {
            self.error.lock().get_or_insert_with(|| e.to_string());
        }
    }

    /// Returns whether an error was noted.
    pub(crate) fn has_noted_error(&self) -> bool {
        self.error.lock().is_some()
    }

    /// Checks that the volume may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        // After a failure of the journal no change is accepted, because it could not be kept. A
        // close ends the journal after it has marked the volume, so the journal is asked first.
        let is_refused = self.read_only || self.journal.has_ended();
        match self.is_closed() {
            true => Err(Error::Closed),
            false if is_refused => Err(Error::ReadOnly),
            false => Ok(()),
        }
    }

    /// Returns whether the volume is open for reading only.
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

    /// Returns whether group descriptors carry checksums, and with them the flags of unwritten
    /// bitmaps.
    pub(crate) fn has_group_checksums(&self) -> bool {
        self.features.ro_compat.intersects(RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM)
    }

    /// Returns the time that changes are stamped with.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns i_generation for a new inode.
    pub(crate) fn next_generation(&self) -> u32 {
        self.generations.next()
    }

    /// Reads a metadata block that a structure of a file points at.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Corrupt) if no file can own that block; those of `verify`, which
    /// is called once after each load of the block.
    pub(crate) fn file_block(
        &self,
        block: u64,
        kind: u8,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Buffer> {
        self.file_block_among(block, kind, Vec::new, verify)
    }

    /// Reads as [`file_block`](Self::file_block) does, and the blocks that `among` returns with it,
    /// if it is not in the cache. Of these it leaves out those that no file can own.
    pub(crate) fn file_block_among(
        &self,
        block: u64,
        kind: u8,
        among: impl FnOnce() -> Vec<u64>,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Buffer> {
        self.check_data_range(block, 1)?;
        let owned = || {
            let mut blocks = among();
            blocks.retain(|block| self.check_data_range(*block, 1).is_ok());
            blocks
        };
        let buffer = self.journal.read_among(block, owned)?;
        if !buffer.verified(kind) {
            verify(&buffer.read())?;
            buffer.set_verified(kind);
        }
        Ok(buffer)
    }

    /// Checks that a file can own `len` blocks from `start` on. Fails as [`Zones::check`] does.
    pub(crate) fn check_data_range(&self, start: u64, len: u64) -> Result<()> {
        let Dimensions { zones, layout, .. } = self.dimensions();
        zones.check(layout, start, len)
    }

    /// Returns the device's byte at which a block begins.
    pub(crate) fn byte_of(&self, block: u64) -> u64 {
        block.saturating_mul(u64::from(self.block_size))
    }

    /// Parses the bytes of a group descriptor.
    pub(crate) fn parse_desc(&self, group: u32, bytes: &[u8]) -> Result<GroupDesc> {
        Ok(GroupDesc::parse(bytes, group, self.layout(), &self.checksummer)?)
    }
}
