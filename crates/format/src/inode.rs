//! Inodes of 128 bytes and more.
//!
//! An [`Inode`] is the decoded slot. [`Inode::encode`] changes the slot in place, so bytes without
//! a field stay as they are. A slot that was never used may hold anything (its group has
//! INODE_UNINIT) and is never parsed: start from [`Inode::new`] and [`Inode::encode_new`].
//!
//! `i_dtime` has two meanings: the time of deletion, and, while the inode is on the orphan list,
//! the number of the next inode of the list.

// The bits of `InodeFlags` are the kernel's; those of no use to lanefs need no words.
#![allow(missing_docs)]

use crate::checksum::{Checksummer, ext4_chksum};
use crate::file_type::{DeviceNumber, FileType, S_IFMT};
use crate::le::{join, put, put_u16, put_u32, u16_at, u32_at};
use crate::time::Timestamp;
use crate::xattr::EXT4_XATTR_MAGIC;
use crate::{FormatError, Incompat, Result, RoCompat, Superblock};

/// The root directory.
pub const EXT4_ROOT_INO: u32 = 2;
/// The inode of the blocks reserved for more group descriptors.
pub const EXT4_RESIZE_INO: u32 = 7;
/// The usual journal inode; `s_journal_inum` says which it is.
pub const EXT4_JOURNAL_INO: u32 = 8;

/// The most names of a file, and of a directory whose links are counted.
pub const EXT4_LINK_MAX: u16 = 65000;

/// Bytes of an inode that every volume has.
pub const GOOD_OLD_INODE_SIZE: usize = 128;

const I_BLOCK: usize = 0x28;
const CHECKSUM_LO: usize = 0x7C;
const EXTRA_ISIZE: usize = 0x80;
/// The extra size that the kernel gives inodes.
const KERNEL_EXTRA_ISIZE: u16 = 32;
const CHECKSUM_HI: usize = 0x82;
const BLOCKS_MAX: u64 = (1 << 48) - 1;

bitflags::bitflags! {
    /// `i_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u32 {
        const SECRM = 0x1;
        const UNRM = 0x2;
        const COMPR = 0x4;
        const SYNC = 0x8;
        const IMMUTABLE = 0x10;
        const APPEND = 0x20;
        const NODUMP = 0x40;
        const NOATIME = 0x80;
        const DIRTY = 0x100;
        const COMPRBLK = 0x200;
        const NOCOMPR = 0x400;
        const ENCRYPT = 0x800;
        /// The directory has an htree.
        const INDEX = 0x1000;
        const IMAGIC = 0x2000;
        const JOURNAL_DATA = 0x4000;
        const NOTAIL = 0x8000;
        const DIRSYNC = 0x1_0000;
        const TOPDIR = 0x2_0000;
        /// `i_blocks` counts file-system blocks, not sectors.
        const HUGE_FILE = 0x4_0000;
        /// `i_block` is the root of an extent tree.
        const EXTENTS = 0x8_0000;
        const VERITY = 0x10_0000;
        /// The inode holds the value of an xattr.
        const EA_INODE = 0x20_0000;
        const DAX = 0x200_0000;
        const INLINE_DATA = 0x1000_0000;
        const PROJINHERIT = 0x2000_0000;
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// The flags that lsattr(1) shows (`EXT4_FL_USER_VISIBLE`).
    pub const USER_VISIBLE: Self = Self::from_bits_retain(0x725B_DFFF);

    /// The flags that no regular file has.
    pub const OF_DIRECTORIES: Self =
        Self::DIRSYNC.union(Self::TOPDIR).union(Self::PROJINHERIT).union(Self::CASEFOLD);

    /// The flags that a new file inherits from its directory.
    pub const INHERITED: Self = Self::from_bits_retain(
        0x1 | 0x2
            | 0x4
            | 0x8
            | 0x40
            | 0x80
            | 0x400
            | 0x4000
            | 0x8000
            | 0x1_0000
            | 0x2000_0000
            | 0x4000_0000
            | 0x200_0000,
    );
}

/// The properties of a volume that decide the format of its inodes. Cheap to copy; from
/// [`Superblock::inode_context`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeContext {
    /// Bytes in an inode.
    pub inode_size: u16,
    /// Bytes in a block.
    pub block_size: u32,
    /// Bytes in a cluster: in a block, without `bigalloc`.
    pub cluster_size: u32,
    /// The volume has `ea_inode`.
    pub ea_inode: bool,
    /// The volume has `huge_file`.
    pub huge_file: bool,
    /// The volume has `large_dir`.
    pub large_dir: bool,
    /// `i_extra_isize` of new inodes: 0 for inodes of 128 bytes.
    pub want_extra_isize: u16,
    /// What checksums are made with.
    pub csum: Checksummer,
}

impl Superblock {
    /// Returns the properties that decide the format of the volume's inodes.
    pub fn inode_context(&self) -> InodeContext {
        let room = self.inode_size() - GOOD_OLD_INODE_SIZE as u16;
        let want = self.raw().s_want_extra_isize.get().max(self.raw().s_min_extra_isize.get());
        // The kernel's own structure ends at 160 bytes: 32 of them extra.
        let want = if want == 0 || !want.is_multiple_of(4) { 32 } else { want };
        InodeContext {
            inode_size: self.inode_size(),
            block_size: self.block_size(),
            cluster_size: 1024 << self.raw().s_log_cluster_size.get(),
            ea_inode: self.has_in(Incompat::EA_INODE),
            huge_file: self.has_ro(RoCompat::HUGE_FILE),
            large_dir: self.has_in(Incompat::LARGEDIR),
            want_extra_isize: want.min(room),
            csum: self.checksummer(),
        }
    }
}

/// The fields of a slot that tell whether the inode is in use, without a look at any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeUse {
    /// `i_mode`.
    pub mode: u16,
    /// `i_links_count`.
    pub links: u16,
    /// `i_dtime`.
    pub dtime: u32,
}

impl InodeUse {
    /// Reads them from a slot.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn of(slot: &[u8]) -> Result<Self> {
        let need = GOOD_OLD_INODE_SIZE;
        let Some(b) = slot.get(..need) else {
            return Err(FormatError::Truncated { what: "inode", len: slot.len(), need });
        };
        Ok(Self { mode: u16_at(b, 0x00), links: u16_at(b, 0x1A), dtime: u32_at(b, 0x14) })
    }
}

/// A decoded inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// The inode's number. No field of the slot has it; checksums depend on it.
    pub ino: u32,
    /// `i_mode`: file type and permissions.
    pub mode: u16,
    /// `i_uid`, 32 bits.
    pub uid: u32,
    /// `i_gid`, 32 bits.
    pub gid: u32,
    /// `i_size` in bytes.
    pub size: u64,
    /// `i_atime`.
    pub atime: Timestamp,
    /// `i_ctime`.
    pub ctime: Timestamp,
    /// `i_mtime`.
    pub mtime: Timestamp,
    /// `i_crtime`; zero where the inode has no room for it.
    pub crtime: Timestamp,
    /// `i_dtime`: seconds of deletion, or the next inode of the orphan list.
    pub dtime: u32,
    /// `i_links_count`.
    pub links_count: u16,
    /// `i_blocks` in sectors of 512 bytes, whatever the unit on disk.
    pub blocks: u64,
    /// `i_flags`. `HUGE_FILE` is set and cleared by [`encode`](Self::encode).
    pub flags: InodeFlags,
    /// `i_version`; 32 bits where the inode has no room for more.
    pub version: u64,
    /// `i_generation`.
    pub generation: u32,
    /// `i_file_acl`: the xattr block, 0 for none.
    pub file_acl: u64,
    /// `i_projid`; 0 where the inode has no room for it.
    pub projid: u32,
    /// `i_extra_isize`: bytes of fields beyond the first 128.
    pub extra_isize: u16,
    /// `i_block`: extent tree, block map, symlink target, device number or inline data.
    pub i_block: [u8; 60],
    /// The bytes behind the fields, where xattrs lie.
    pub xattr_area: Vec<u8>,
}

impl Inode {
    /// Returns a new inode with all else zero: no size, no links, no blocks.
    pub fn new(ino: u32, mode: u16, ctx: &InodeContext) -> Self {
        let area = usize::from(ctx.inode_size) - GOOD_OLD_INODE_SIZE - usize::from(ctx.want_extra_isize);
        Self {
            ino,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            crtime: Timestamp::default(),
            dtime: 0,
            links_count: 0,
            blocks: 0,
            flags: InodeFlags::empty(),
            version: 0,
            generation: 0,
            file_acl: 0,
            projid: 0,
            extra_isize: ctx.want_extra_isize,
            i_block: [0; 60],
            xattr_area: vec![0; area],
        }
    }

    /// Checks and decodes the slot of inode `ino`.
    ///
    /// A free inode (mode 0) passes too; [`file_type`](Self::file_type) says what is in use.
    ///
    /// # Errors
    /// A wrong checksum, or the first rule that the fields break.
    pub fn parse(slot: &[u8], ino: u32, ctx: &InodeContext) -> Result<Self> {
        let b = whole(slot, ctx)?;
        let extra_isize = Self::check_extra_isize(b, ino)?;
        if let Some(expected) = checksum(b, ino, ctx) {
            let wide = fits(extra_isize, CHECKSUM_HI + 2);
            let hi = if wide { u16_at(b, CHECKSUM_HI) } else { 0 };
            let found = u32::from(hi) << 16 | u32::from(u16_at(b, CHECKSUM_LO));
            if found != expected {
                return Err(FormatError::InodeChecksum { ino, found, expected });
            }
        }
        let inode = Self::decode(b, ino, used_extra_isize(b, extra_isize), ctx);
        inode.check()?;
        Ok(inode)
    }

    fn check_extra_isize(b: &[u8], ino: u32) -> Result<u16> {
        let max = b.len().saturating_sub(GOOD_OLD_INODE_SIZE) as u16;
        let value = if max == 0 { 0 } else { u16_at(b, EXTRA_ISIZE) };
        if value > max || value % 4 != 0 {
            return Err(FormatError::ExtraIsize { ino, value, max });
        }
        Ok(value)
    }

    fn decode(b: &[u8], ino: u32, extra_isize: u16, ctx: &InodeContext) -> Self {
        let extra = |at| fits(extra_isize, at + 4).then(|| u32_at(b, at));
        let time = |low, high| Timestamp::decode(u32_at(b, low), extra(high));
        let mode = u16_at(b, 0x00);
        let flags = InodeFlags::from_bits_retain(u32_at(b, 0x20));
        // Only files are long everywhere: the high half of other sizes was once a block of ACLs.
        let long = mode & S_IFMT == FileType::Regular.mode_bits() || ctx.large_dir;
        let mut i_block = [0; 60];
        i_block.copy_from_slice(&b[I_BLOCK..I_BLOCK + 60]);
        let mut blocks = u64::from(u32_at(b, 0x1C));
        if ctx.huge_file {
            blocks |= u64::from(u16_at(b, 0x74)) << 32;
            if flags.contains(InodeFlags::HUGE_FILE) {
                blocks *= u64::from(ctx.block_size / 512);
            }
        }
        Self {
            ino,
            mode,
            uid: u32::from(u16_at(b, 0x78)) << 16 | u32::from(u16_at(b, 0x02)),
            gid: u32::from(u16_at(b, 0x7A)) << 16 | u32::from(u16_at(b, 0x18)),
            size: join(u32_at(b, 0x04), if long { u32_at(b, 0x6C) } else { 0 }),
            atime: time(0x08, 0x8C),
            ctime: time(0x0C, 0x84),
            mtime: time(0x10, 0x88),
            crtime: extra(0x90).map_or(Timestamp::default(), |low| Timestamp::decode(low, extra(0x94))),
            dtime: u32_at(b, 0x14),
            links_count: u16_at(b, 0x1A),
            blocks,
            flags,
            version: join(u32_at(b, 0x24), extra(0x98).unwrap_or(0)),
            generation: u32_at(b, 0x64),
            file_acl: u64::from(u16_at(b, 0x76)) << 32 | u64::from(u32_at(b, 0x68)),
            projid: extra(0x9C).unwrap_or(0),
            extra_isize,
            i_block,
            xattr_area: b[GOOD_OLD_INODE_SIZE + usize::from(extra_isize)..].to_vec(),
        }
    }

    fn check(&self) -> Result<()> {
        let ino = self.ino;
        if self.mode & S_IFMT != 0 && FileType::from_mode(self.mode).is_none() {
            return Err(FormatError::FileMode { ino, mode: self.mode });
        }
        let max = i64::MAX as u64;
        if self.size > max {
            return Err(FormatError::FileSize { ino, size: self.size, max });
        }
        Ok(())
    }

    /// Writes the inode into its slot and makes the checksum. Bytes that have no field here stay.
    ///
    /// # Errors
    /// A number that does not fit in its field, an xattr area that does not fill the inode, a
    /// slot that is too short. The slot is then unchanged.
    pub fn encode(&self, slot: &mut [u8], ctx: &InodeContext) -> Result<()> {
        let (ino, len) = (self.ino, slot.len());
        whole(slot, ctx)?;
        let b = slot.get_mut(..ctx.inode_size.into()).ok_or(truncated(len, ctx))?;
        let expected = b.len().checked_sub(GOOD_OLD_INODE_SIZE + usize::from(self.extra_isize));
        if expected != Some(self.xattr_area.len()) || !self.extra_isize.is_multiple_of(4) {
            let (len, expected) = (self.xattr_area.len(), expected.unwrap_or(0));
            return Err(FormatError::XattrArea { ino, len, expected });
        }
        if self.file_acl > BLOCKS_MAX {
            return Err(FormatError::FileAcl { ino, block: self.file_acl });
        }
        self.check()?;
        let (blocks, huge) = self.encode_blocks(ctx)?;
        let mut flags = self.flags;
        flags.set(InodeFlags::HUGE_FILE, huge);

        put_u16(b, 0x00, self.mode);
        put_u16(b, 0x02, self.uid as u16);
        put_u32(b, 0x04, self.size as u32);
        put_u32(b, 0x14, self.dtime);
        put_u16(b, 0x18, self.gid as u16);
        put_u16(b, 0x1A, self.links_count);
        put_u32(b, 0x1C, blocks as u32);
        put_u32(b, 0x20, flags.bits());
        put_u32(b, 0x24, self.version as u32);
        put(b, I_BLOCK, &self.i_block);
        put_u32(b, 0x64, self.generation);
        put_u32(b, 0x68, self.file_acl as u32);
        put_u32(b, 0x6C, (self.size >> 32) as u32);
        put_u16(b, 0x74, (blocks >> 32) as u16);
        put_u16(b, 0x76, (self.file_acl >> 32) as u16);
        put_u16(b, 0x78, (self.uid >> 16) as u16);
        put_u16(b, 0x7A, (self.gid >> 16) as u16);
        if b.len() > GOOD_OLD_INODE_SIZE {
            put_u16(b, EXTRA_ISIZE, self.extra_isize);
        }
        self.encode_extra(b);
        put(b, GOOD_OLD_INODE_SIZE + usize::from(self.extra_isize), &self.xattr_area);
        if let Some(sum) = checksum(b, ino, ctx) {
            put_u16(b, CHECKSUM_LO, sum as u16);
            if fits(self.extra_isize, CHECKSUM_HI + 2) {
                put_u16(b, CHECKSUM_HI, (sum >> 16) as u16);
            }
        }
        Ok(())
    }

    /// Writes a new inode into a slot whose old bytes mean nothing.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_new(&self, slot: &mut [u8], ctx: &InodeContext) -> Result<()> {
        let len = slot.len();
        slot.get_mut(..ctx.inode_size.into()).ok_or(truncated(len, ctx))?.fill(0);
        self.encode(slot, ctx)
    }

    fn encode_extra(&self, b: &mut [u8]) {
        let has = |at: usize| fits(self.extra_isize, at + 4);
        let mut extra = |at: usize, v: u32| {
            if has(at) {
                put_u32(b, at, v);
            }
        };
        extra(0x98, (self.version >> 32) as u32);
        extra(0x9C, self.projid);
        let crtime = self.crtime.encode(has(0x94));
        extra(0x90, crtime.0);
        extra(0x94, crtime.1);
        for (low, high, time) in
            [(0x08, 0x8C, self.atime), (0x0C, 0x84, self.ctime), (0x10, 0x88, self.mtime)]
        {
            let (sec, more) = time.encode(has(high));
            put_u32(b, low, sec);
            if has(high) {
                put_u32(b, high, more);
            }
        }
    }

    /// Returns `i_blocks` as it goes to disk, and whether it counts file-system blocks.
    fn encode_blocks(&self, ctx: &InodeContext) -> Result<(u64, bool)> {
        let max = match ctx.huge_file {
            true => BLOCKS_MAX.saturating_mul(u64::from(ctx.block_size / 512)),
            false => u64::from(u32::MAX),
        };
        if self.blocks > max {
            return Err(FormatError::FileBlocks { ino: self.ino, blocks: self.blocks, max });
        }
        if self.blocks > BLOCKS_MAX {
            return Ok((self.blocks / u64::from(ctx.block_size / 512), true));
        }
        Ok((self.blocks, false))
    }

    /// Returns the seed of the checksums of the blocks that belong to the inode: extent blocks,
    /// blocks of a directory. `None` without metadata checksums.
    pub fn seed(&self, csum: &Checksummer) -> Option<u32> {
        csum.inode_seed(self.ino, self.generation)
    }

    /// Returns the type of the file.
    ///
    /// # Errors
    /// [`FormatError::FileMode`] if the inode is not in use.
    pub fn file_type(&self) -> Result<FileType> {
        FileType::from_mode(self.mode).ok_or(FormatError::FileMode { ino: self.ino, mode: self.mode })
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Directory)
    }

    /// Returns whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Regular)
    }

    /// Returns whether it is a symlink.
    pub fn is_symlink(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Symlink)
    }

    /// Returns the target of a symlink that lies in `i_block`: the inode has no more than the
    /// cluster of its xattrs. The kernel wants all of that cluster; fewer sectors hold no target
    /// either. With `ea_inode` the size alone decides, because `i_blocks` counts the inodes that
    /// hold values of xattrs too.
    pub fn fast_symlink(&self, ctx: &InodeContext) -> Option<&[u8]> {
        let other = InodeFlags::INLINE_DATA | InodeFlags::EA_INODE | InodeFlags::EXTENTS;
        let of_xattrs = if self.file_acl == 0 { 0 } else { u64::from(ctx.cluster_size / 512) };
        let is_fast = if ctx.ea_inode { self.size > 0 } else { self.blocks <= of_xattrs };
        if !self.is_symlink() || !is_fast || self.flags.intersects(other) || self.size >= 60 {
            return None;
        }
        self.i_block.get(..self.size as usize)
    }

    /// Returns the device that a device file stands for.
    pub fn device(&self) -> Option<DeviceNumber> {
        match FileType::from_mode(self.mode)? {
            FileType::CharDevice | FileType::BlockDevice => {
                Some(DeviceNumber::decode(u32_at(&self.i_block, 0), u32_at(&self.i_block, 4)))
            }
            _ => None,
        }
    }

    /// Returns whether there is room for epochs and nanoseconds of the three times.
    pub fn has_fine_times(&self) -> bool {
        fits(self.extra_isize, 0x8C + 4)
    }

    /// Makes `i_block` name a device.
    pub fn set_device(&mut self, device: DeviceNumber) {
        let (old, new) = device.encode();
        self.i_block = [0; 60];
        put_u32(&mut self.i_block, 0, old);
        put_u32(&mut self.i_block, 4, new);
    }

    /// Returns whether `crtime` can be kept.
    pub fn has_crtime(&self) -> bool {
        fits(self.extra_isize, 0x98)
    }
}

/// Returns whether fields up to byte `end` of the inode are there.
fn fits(extra_isize: u16, end: usize) -> bool {
    GOOD_OLD_INODE_SIZE + usize::from(extra_isize) >= end
}

/// Returns the extra size of an inode in use. Where it is stored as 0, as tune2fs leaves old inodes
/// that it makes larger, the kernel takes 32 bytes for it with the next change, and sees no
/// attributes. One that has attributes there all the same keeps them.
fn used_extra_isize(b: &[u8], stored: u16) -> u16 {
    let room = b.len().saturating_sub(GOOD_OLD_INODE_SIZE) as u16;
    let is_used = u16_at(b, 0x00) != 0;
    let has_attributes = room > 0 && u32_at(b, GOOD_OLD_INODE_SIZE) == EXT4_XATTR_MAGIC;
    if stored == 0 && is_used && !has_attributes { room.min(KERNEL_EXTRA_ISIZE) } else { stored }
}

fn truncated(len: usize, ctx: &InodeContext) -> FormatError {
    FormatError::Truncated { what: "inode", len, need: usize::from(ctx.inode_size).max(GOOD_OLD_INODE_SIZE) }
}

/// Returns the bytes of exactly one inode: at least 128.
fn whole<'a>(slot: &'a [u8], ctx: &InodeContext) -> Result<&'a [u8]> {
    let b = slot.get(..ctx.inode_size.into()).filter(|b| b.len() >= GOOD_OLD_INODE_SIZE);
    b.ok_or(truncated(slot.len(), ctx))
}

/// Returns the checksum of a slot as its fields can hold it: 16 bits where there is no high half.
/// `b` must be whole.
fn checksum(b: &[u8], ino: u32, ctx: &InodeContext) -> Option<u32> {
    let seed = ctx.csum.inode_seed(ino, u32_at(b, 0x64))?;
    let sum = ext4_chksum(ext4_chksum(seed, &b[..CHECKSUM_LO]), &[0; 2]);
    let sum = ext4_chksum(sum, &b[CHECKSUM_LO + 2..GOOD_OLD_INODE_SIZE]);
    if b.len() == GOOD_OLD_INODE_SIZE {
        return Some(sum & 0xFFFF);
    }
    let sum = ext4_chksum(sum, &b[GOOD_OLD_INODE_SIZE..CHECKSUM_HI]);
    if !fits(u16_at(b, EXTRA_ISIZE), CHECKSUM_HI + 2) {
        return Some(ext4_chksum(sum, &b[CHECKSUM_HI..]) & 0xFFFF);
    }
    Some(ext4_chksum(ext4_chksum(sum, &[0; 2]), &b[CHECKSUM_HI + 2..]))
}

#[cfg(test)]
mod tests;
