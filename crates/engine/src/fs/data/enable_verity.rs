//! Giving a file a hash tree (fs-verity).
//!
//! 1. Dirty pages are written out. No thread may have the file open for writing, and every change
//!    of its content is refused (`FileData::check_writers`).
//! 2. One handle makes the inode an orphan: recovery then frees the blocks behind i_size.
//! 3. Tree and descriptor are written behind i_size, which does not move. The bytes are locked
//!    shared: reads go on.
//! 4. One handle sets the flag and takes the inode off the orphan list. A commit flushes what was
//!    written before it, so a file with the flag has its tree.
//!
//! The first two steps and the last one lock the bytes exclusively: no read that was begun without
//! a tree caches a block behind the last step.

use super::content::Content;
use super::{ALL, set_size};
use crate::error::{Error, Result};
use crate::fs::Writer;
use crate::fs::file::lock::LockedBytes;
use crate::fs::file::verity::tree_of;
use crate::store::alloc;
use crate::store::io::ReadPath;
use crate::store::map;
use crate::store::orphan;
use crate::store::txn::credits;
use lanefs_format::verity::{MAX_LEVELS, MAX_SALT, MIN_BLOCK_SIZE, VerityDescriptor, VerityHash, tree_start};
use lanefs_format::{InodeFlags, RoCompat};
use lanefs_rangelock::Range as Bytes;
use std::ops::Range;

/// What the hash tree of a file is made of. By default SHA-256, the volume's blocks, but at most
/// 4096 bytes, and no salt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verity {
    /// The hash algorithm.
    pub hash: VerityHash,
    /// Bytes of a block of the tree: a power of two from 1024 to the volume's.
    pub block_size: Option<u32>,
    /// At most 32 bytes that go before each block.
    pub salt: Vec<u8>,
}

impl Default for Verity {
    fn default() -> Self {
        Self { hash: VerityHash::Sha256, block_size: None, salt: Vec::new() }
    }
}

impl Verity {
    /// Returns the bytes that tree and descriptor of a file of `size` bytes take, on a volume with
    /// blocks of `volume_block` bytes; `None` if no file can have them.
    pub fn room(&self, size: u64, volume_block: u32) -> Option<Range<u64>> {
        self.check(volume_block).ok()?;
        let descriptor = self.descriptor(size, volume_block);
        let start = tree_start(size)?;
        let tree = tree_of(&descriptor);
        if tree.depth() > MAX_LEVELS {
            return None;
        }
        let end = start.checked_add(tree.size())?;
        let end = end.checked_next_multiple_of(volume_block.into())?;
        Some(start..end.checked_add(descriptor.encode_blocks(volume_block).len() as u64)?)
    }

    /// Checks block size and salt.
    fn check(&self, volume_block: u32) -> Result<()> {
        let size = self.block_size.unwrap_or(volume_block);
        if !size.is_power_of_two() || !(MIN_BLOCK_SIZE..=volume_block).contains(&size) {
            return Err(Error::Invalid("a block that is no power of two from 1024 to the volume's"));
        }
        match self.salt.len() > MAX_SALT {
            true => Err(Error::Invalid("a salt of more than 32 bytes")),
            false => Ok(()),
        }
    }

    /// Returns the descriptor, without its root hash.
    fn descriptor(&self, data_size: u64, volume_block: u32) -> VerityDescriptor {
        let block_size = self.block_size.unwrap_or(volume_block.min(4096));
        let (hash, salt) = (self.hash, self.salt.clone());
        VerityDescriptor { hash, block_size, data_size, root_hash: Vec::new(), salt }
    }
}

impl<'n> Content<'n> {
    /// Gives the file a hash tree. `own` is the number of handles open for writing that the caller
    /// has.
    ///
    /// # Errors
    /// As [`File::enable_verity`](crate::File::enable_verity). The file then has no tree.
    pub(crate) fn enable_verity(self, verity: &Verity, own: u32) -> Result<()> {
        let fs = self.fs();
        fs.check_writable()?;
        verity.check(fs.block_size)?;
        self.file.deny_writers(own)?;
        let made = self.enable_alone(verity);
        self.file.allow_writers(own);
        made
    }

    fn enable_alone(self, verity: &Verity) -> Result<()> {
        let (descriptor, room) = self.begin_tree(verity)?;
        let data_size = descriptor.data_size;
        let shared = self.counted(self.share(0, u64::MAX));
        let written = shared.and_then(|_held| self.write_tree(descriptor, room));
        // If the volume is closed meanwhile, the file stays an orphan without a tree.
        let _held = self.counted(self.lock_all())?;
        let made = written.and_then(|()| self.seal());
        if made.is_err() {
            self.undo(data_size);
        }
        made
    }

    /// Locks all bytes exclusively.
    fn lock_all(self) -> LockedBytes<'n> {
        self.file.lock.write(self.node.ino, Bytes::ALL, &self.fs().counters.range_wait)
    }

    /// Begins a part of the change under the lock of all bytes: a close waits for it.
    ///
    /// # Errors
    /// [`Error::Closed`].
    fn counted(self, held: LockedBytes<'n>) -> Result<(Writer<'n>, LockedBytes<'n>)> {
        Ok((self.fs().enter()?, held))
    }

    /// Checks that the file may have a tree, and makes it an orphan with nothing behind i_size.
    /// Returns the descriptor, without its root hash, and the bytes for tree and descriptor.
    fn begin_tree(self, verity: &Verity) -> Result<(VerityDescriptor, Range<u64>)> {
        let _held = self.counted(self.lock_all())?;
        if self.is_verity() {
            return Err(Error::Exists);
        }
        self.node.check_mutable()?;
        self.file.check_growth(self.node.ino)?;
        if self.node.flags().contains(InodeFlags::DAX) {
            return Err(Error::Invalid("a hash tree of a file with the flag DAX"));
        }
        if !map::is_tree(&self.node.state()) {
            return Err(Error::NotSupported("only a file of extents can have a hash tree".into()));
        }
        self.write_back(ALL)?;
        let data_size = self.file.size();
        let room = verity.room(data_size, self.fs().block_size).ok_or(Error::FileTooBig)?;
        map::check_size(self.fs(), self.node.flags(), room.end)?;
        let descriptor = verity.descriptor(data_size, self.fs().block_size);
        let begun = self.make_orphan(data_size).and_then(|()| self.free_room(&room));
        if begun.is_err() {
            self.undo(data_size);
        }
        begun.map(|()| (descriptor, room))
    }

    /// Frees what was written behind `data_size`, and takes the file off the orphan list. The
    /// caller has locked all bytes exclusively.
    fn undo(self, data_size: u64) {
        let _alone = self.hold_writeback();
        // The inode is an orphan even if no block was mapped. If this fails, recovery frees the
        // blocks.
        let _ = self.free_cut(data_size);
    }

    /// Puts the file on the orphan list, and keeps it there if it gets a name meanwhile: a
    /// recovery frees what lies behind i_disksize. A late write that failed has left that behind
    /// `data_size`.
    fn make_orphan(self, data_size: u64) -> Result<()> {
        let _alone = self.hold_writeback();
        self.node.zero_tail(self.file.disk_size(), data_size)?;
        self.file.set_cut_short(true);
        let prepared = self.node.prepare()?;
        self.fs().transact(credits::INODE + credits::ORPHAN + credits::SUPER, |txn| {
            prepared.update(txn, |txn, inode| {
                if data_size > inode.size {
                    set_size(txn, inode, data_size)?;
                }
                orphan::add(txn, self.node.ino)
            })
        })
    }

    /// Frees the blocks behind i_size, and checks that there is space for the tree in their place.
    fn free_room(self, room: &Range<u64>) -> Result<()> {
        let fs = self.fs();
        {
            let _alone = self.hold_writeback();
            self.file.alloc.discard();
            self.node.free_behind(|_| Ok(()))?;
        }
        // Before anything is read, and other threads' writes find no space.
        match (room.end - room.start) / u64::from(fs.block_size) > alloc::to_come(fs) {
            true => Err(Error::NoSpace),
            false => Ok(()),
        }
    }

    /// Writes tree and descriptor behind i_size. The caller has locked all bytes, shared at least.
    fn write_tree(self, mut descriptor: VerityDescriptor, room: Range<u64>) -> Result<()> {
        let fs = self.fs();
        let tree = tree_of(&descriptor);
        descriptor.root_hash = tree.make(
            |buf, at| self.read_held(buf, at, ReadPath::AsOpened).map(drop),
            |bytes, at| self.write_behind(bytes, room.start + at),
        )?;
        let blocks = descriptor.encode_blocks(fs.block_size);
        self.write_behind(&blocks, room.end - blocks.len() as u64)?;
        self.file.alloc.discard();
        self.file.wrote(fs);
        Ok(())
    }

    /// Sets the flag, and takes the file off the orphan list.
    fn seal(self) -> Result<()> {
        let fs = self.fs();
        let alone = self.hold_writeback();
        let prepared = self.node.prepare()?;
        fs.transact(credits::INODE + credits::ORPHAN + credits::SUPER, |txn| {
            // First, because it may read the inode of a neighbour on the orphan list.
            prepared.update(txn, |txn, inode| {
                inode.flags |= InodeFlags::VERITY;
                orphan::settle(txn, inode)
            })?;
            if !fs.sb.lock().has_ro(RoCompat::VERITY) {
                fs.write_super(txn, |sb| sb.set_verity())?;
            }
            Ok(())
        })?;
        self.file.set_cut_short(false);
        drop(alone);
        // From now on each block is verified before it is cached.
        self.file.drop_pages(0..u32::MAX);
        Ok(())
    }
}
