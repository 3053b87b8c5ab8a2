//! The superblock: the shape of a volume, its features and its counts.
//!
//! A [`Superblock`] has passed every check: its numbers are consistent, so that [`Layout`] can
//! divide by them. `fields` reads and sets its fields. mkfs fills a [`RawSuperblock`] and checks it
//! by [`Superblock::from_raw`].

mod fields;
mod raw;
mod tuning;

pub use raw::RawSuperblock;
pub use tuning::{BitEdit, ErrorBehavior, Tuning, TuningError};

#[cfg(doc)]
use crate::Layout;
use crate::checksum::ext4_chksum;
use crate::{Compat, FormatError, Incompat, Result, RoCompat};
use zerocopy::{FromBytes, IntoBytes};

/// Byte on the device at which the primary superblock starts, whatever the block size.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Its length in bytes.
pub const SUPERBLOCK_SIZE: usize = 1024;

/// The value of `s_magic`.
const EXT4_SUPER_MAGIC: u16 = 0xEF53;
const MAX_LOG_BLOCK_SIZE: u32 = 6;
/// Clusters of 1 GiB: the kernel's bound.
const MAX_LOG_CLUSTER_SIZE: u32 = 20;
const MAX_DESC_SIZE: u32 = 1024;
const CHECKSUM_AT: usize = SUPERBLOCK_SIZE - 4;

bitflags::bitflags! {
    /// `s_state`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct State: u16 {
        /// Unmounted cleanly.
        const VALID_FS = 1;
        /// Errors were found.
        const ERROR_FS = 2;
        /// Orphans are being worked on.
        const ORPHAN_FS = 4;
        /// Fast-commit replay is going on.
        const FC_REPLAY = 0x20;
        const _ = !0;
    }

    /// `s_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HashFlags: u32 {
        /// Directory hashes take characters as signed.
        const SIGNED_HASH = 1;
        /// Directory hashes take characters as unsigned.
        const UNSIGNED_HASH = 2;
        /// Made to test file systems; not for data of worth.
        const TEST_FILESYS = 4;
        const _ = !0;
    }
}

/// A superblock that has passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    raw: RawSuperblock,
}

impl Superblock {
    /// Checks the 1024 bytes that start at [`SUPERBLOCK_OFFSET`], or those of a backup.
    ///
    /// The size of the device is not known here; call [`check_device`](Self::check_device) too.
    ///
    /// # Errors
    /// The first rule that they break.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| FormatError::Truncated {
            what: "superblock",
            len: bytes.len(),
            need: SUPERBLOCK_SIZE,
        })?;
        let sb = Self { raw };
        sb.check_magic()?;
        sb.check_checksum()?;
        sb.check()?;
        Ok(sb)
    }

    /// Checks fields that mkfs has filled in. `s_checksum` is made by [`encode`](Self::encode).
    ///
    /// # Errors
    /// The first rule that they break.
    pub fn from_raw(raw: RawSuperblock) -> Result<Self> {
        let sb = Self { raw };
        sb.check_magic()?;
        sb.check()?;
        Ok(sb)
    }

    /// Parses as [`parse`](Self::parse) does, without a check of the checksum: for a superblock
    /// that may have been torn, whose caller looks for other evidence.
    ///
    /// # Errors
    /// The first rule that the fields break.
    pub fn parse_torn(bytes: &[u8]) -> Result<Self> {
        let need = SUPERBLOCK_SIZE;
        let truncated = FormatError::Truncated { what: "superblock", len: bytes.len(), need };
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| truncated)?;
        let mut sb = Self { raw };
        // Half of a resize: counts of the larger volume beside the size of the smaller one.
        if sb.reserved_blocks_count() > sb.blocks_count() {
            (sb.raw.s_r_blocks_count_lo, sb.raw.s_r_blocks_count_hi) = (0.into(), 0.into());
        }
        sb.set_free_blocks_count(sb.free_blocks_count());
        sb.set_free_inodes_count(sb.free_inodes_count());
        Self::from_raw(sb.raw)
    }

    /// Returns the bytes on the device at which backups of the superblock in `bytes` probably
    /// begin. Only fields are used that never change, so others may be torn.
    pub fn likely_backups(bytes: &[u8]) -> Vec<u64> {
        let Ok((raw, _)) = RawSuperblock::read_from_prefix(bytes) else { return Vec::new() };
        let log_size = raw.s_log_block_size.get();
        if raw.s_magic != EXT4_SUPER_MAGIC || log_size > MAX_LOG_BLOCK_SIZE {
            return Vec::new();
        }
        let [first, second] = raw.s_backup_bgs.map(|group| u64::from(group.get()));
        let (start, per_group) = (raw.s_first_data_block.get(), raw.s_blocks_per_group.get());
        let byte = |group: u64| (u64::from(start) + group * u64::from(per_group)) << (10 + log_size);
        [1, first, second, 3, 5, 7].into_iter().filter(|&group| group > 0).map(byte).collect()
    }

    /// Returns whether this is a backup of the superblock in `bytes`: by the seed of the directory
    /// hash, which stays when the UUID changes, or where a volume has none by the UUID.
    pub fn is_backup_of(&self, bytes: &[u8]) -> bool {
        let Ok((raw, _)) = RawSuperblock::read_from_prefix(bytes) else { return false };
        match self.hash_seed() {
            [0, 0, 0, 0] => raw.s_uuid == self.raw.s_uuid,
            seed => raw.s_hash_seed.map(|word| word.get()) == seed,
        }
    }

    /// Returns whether both describe one volume: the same in all that does not change while it is
    /// in use. The kernel then sets some features, and raises revision 0 to 1, in the primary
    /// superblock only.
    pub fn same_volume(&self, other: &Self) -> bool {
        self.constant_part().as_bytes() == other.constant_part().as_bytes()
    }

    /// Returns the fields that mkfs and tune2fs set, all others zero. Revision 0 has the values of
    /// revision 1 that it stands for.
    fn constant_part(&self) -> RawSuperblock {
        let r = &self.raw;
        RawSuperblock {
            s_inodes_count: r.s_inodes_count,
            s_blocks_count_lo: r.s_blocks_count_lo,
            s_blocks_count_hi: r.s_blocks_count_hi,
            s_first_data_block: r.s_first_data_block,
            s_log_block_size: r.s_log_block_size,
            s_log_cluster_size: r.s_log_cluster_size,
            s_blocks_per_group: r.s_blocks_per_group,
            s_clusters_per_group: r.s_clusters_per_group,
            s_inodes_per_group: r.s_inodes_per_group,
            s_first_ino: self.first_ino().into(),
            s_inode_size: self.inode_size().into(),
            s_feature_compat: (r.s_feature_compat.get() & !Compat::EXT_ATTR.bits()).into(),
            s_feature_incompat: (r.s_feature_incompat.get()
                & !(Incompat::RECOVER | Incompat::EXTENTS).bits())
            .into(),
            s_feature_ro_compat: (r.s_feature_ro_compat.get()
                & !(RoCompat::ORPHAN_PRESENT
                    | RoCompat::LARGE_FILE
                    | RoCompat::DIR_NLINK
                    | RoCompat::VERITY)
                    .bits())
            .into(),
            s_uuid: r.s_uuid,
            s_reserved_gdt_blocks: r.s_reserved_gdt_blocks,
            s_journal_inum: r.s_journal_inum,
            s_hash_seed: r.s_hash_seed,
            s_desc_size: r.s_desc_size,
            s_first_meta_bg: r.s_first_meta_bg,
            s_log_groups_per_flex: r.s_log_groups_per_flex,
            s_checksum_type: r.s_checksum_type,
            s_checksum_seed: r.s_checksum_seed,
            s_backup_bgs: r.s_backup_bgs,
            s_orphan_file_inum: r.s_orphan_file_inum,
            ..RawSuperblock::zeroed()
        }
    }

    /// Encodes the primary superblock, with its checksum.
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        self.encode_for(self.raw.s_block_group_nr.get())
    }

    /// Encodes the copy in `group`. Of a group beyond 65535 the number is 65535, as mke2fs has it.
    pub fn encode_backup(&self, group: u32) -> [u8; SUPERBLOCK_SIZE] {
        self.encode_for(u16::try_from(group).unwrap_or(u16::MAX))
    }

    fn encode_for(&self, group: u16) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = self.raw.clone();
        raw.s_block_group_nr = group.into();
        if self.has_ro(RoCompat::METADATA_CSUM) {
            raw.s_checksum = Self::checksum(raw.as_bytes()).into();
        }
        zerocopy::transmute!(raw)
    }

    fn checksum(bytes: &[u8]) -> u32 {
        ext4_chksum(!0, bytes.get(..CHECKSUM_AT).unwrap_or_default())
    }

    fn check_magic(&self) -> Result<()> {
        match self.raw.s_magic.get() {
            EXT4_SUPER_MAGIC => Ok(()),
            found => Err(FormatError::BadMagic { found }),
        }
    }

    fn check_checksum(&self) -> Result<()> {
        if !self.has_ro(RoCompat::METADATA_CSUM) {
            return Ok(());
        }
        if self.raw.s_checksum_type != 1 {
            return Err(FormatError::ChecksumType { value: self.raw.s_checksum_type });
        }
        let (found, expected) = (self.raw.s_checksum.get(), Self::checksum(self.raw.as_bytes()));
        if found != expected {
            return Err(FormatError::SuperblockChecksum { found, expected });
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let r = &self.raw;
        if r.s_rev_level > 1 {
            return Err(FormatError::RevLevel { value: r.s_rev_level.get() });
        }
        if r.s_log_block_size > MAX_LOG_BLOCK_SIZE {
            return Err(FormatError::LogBlockSize { value: r.s_log_block_size.get() });
        }
        self.check_groups()?;
        self.check_inodes()?;
        self.check_descriptors()?;
        self.check_counts()
    }

    /// Checks blocks, clusters and groups.
    fn check_groups(&self) -> Result<()> {
        let r = &self.raw;
        let bigalloc = self.has_ro(RoCompat::BIGALLOC);
        let (log_block, log_cluster) = (r.s_log_block_size.get(), r.s_log_cluster_size.get());
        let max = if bigalloc { (log_block + 16).min(MAX_LOG_CLUSTER_SIZE) } else { log_block };
        if !(log_block..=max).contains(&log_cluster) {
            return Err(FormatError::LogClusterSize { value: log_cluster, min: log_block, max });
        }
        let ratio_bits = log_cluster - log_block;
        let (bpg, bits) = (r.s_blocks_per_group.get(), 8 * u64::from(self.block_size()));
        if bpg == 0 || !bpg.is_multiple_of(8) || u64::from(bpg) > bits << ratio_bits {
            return Err(FormatError::BlocksPerGroup { value: bpg, max: bits << ratio_bits });
        }
        let cpg = r.s_clusters_per_group.get();
        if u64::from(cpg) << ratio_bits != u64::from(bpg) {
            return Err(FormatError::ClustersPerGroup { value: cpg, expected: bpg >> ratio_bits });
        }
        let expected = u32::from(log_block == 0 && ratio_bits == 0);
        let first = r.s_first_data_block.get();
        if first != expected && !(bigalloc && log_block == 0 && first == 1) {
            return Err(FormatError::FirstDataBlock { value: first, expected });
        }
        if self.blocks_count() <= u64::from(first) {
            return Err(FormatError::TooFewBlocks { value: self.blocks_count() });
        }
        Ok(())
    }

    fn check_inodes(&self) -> Result<()> {
        let r = &self.raw;
        let block_size = self.block_size();
        let size = self.inode_size();
        if !size.is_power_of_two() || size < 128 || u32::from(size) > block_size {
            return Err(FormatError::InodeSize { value: size, max: block_size });
        }
        let (ipg, min, max) = (r.s_inodes_per_group.get(), block_size / u32::from(size), 8 * block_size);
        if !(min..=max).contains(&ipg) {
            return Err(FormatError::InodesPerGroup { value: ipg, min, max });
        }
        let groups = self.group_count_u64();
        let expected = groups.saturating_mul(u64::from(ipg));
        if groups > u64::from(u32::MAX / ipg) {
            return Err(FormatError::TooManyGroups {
                value: self.blocks_count(),
                max: u64::from(u32::MAX / ipg),
            });
        }
        let count = r.s_inodes_count.get();
        if u64::from(count) != expected {
            return Err(FormatError::InodesCount { value: count, groups, per_group: ipg, expected });
        }
        if !(11..=count.max(11)).contains(&self.first_ino()) {
            return Err(FormatError::FirstIno { value: self.first_ino(), max: count });
        }
        if self.has(Compat::HAS_JOURNAL) && r.s_journal_inum > count {
            return Err(FormatError::JournalInum { value: r.s_journal_inum.get(), max: count });
        }
        if self.has(Compat::ORPHAN_FILE) && r.s_orphan_file_inum > count {
            return Err(FormatError::OrphanFileInum { value: r.s_orphan_file_inum.get(), max: count });
        }
        Ok(())
    }

    fn check_descriptors(&self) -> Result<()> {
        let r = &self.raw;
        if self.has_in(Incompat::BIT64) {
            let (value, max) = (r.s_desc_size.get(), MAX_DESC_SIZE);
            if !value.is_power_of_two() || value < 64 || u32::from(value) > max {
                return Err(FormatError::DescSize { value, min: 64, max });
            }
        }
        let max = self.block_size() / 4;
        if u32::from(r.s_reserved_gdt_blocks.get()) > max {
            return Err(FormatError::ReservedGdtBlocks { value: r.s_reserved_gdt_blocks.get(), max });
        }
        let per_block = u64::from(self.block_size() / u32::from(self.desc_size()));
        let max = self.group_count_u64().div_ceil(per_block) as u32;
        if self.has_in(Incompat::META_BG) && r.s_first_meta_bg > max {
            return Err(FormatError::FirstMetaBg { value: r.s_first_meta_bg.get(), max });
        }
        if r.s_log_groups_per_flex > 31 {
            return Err(FormatError::LogGroupsPerFlex { value: r.s_log_groups_per_flex });
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        let max = self.blocks_count();
        if self.free_blocks_count() > max {
            return Err(FormatError::FreeBlocksCount { value: self.free_blocks_count(), max });
        }
        if self.reserved_blocks_count() > max {
            return Err(FormatError::ReservedBlocksCount { value: self.reserved_blocks_count(), max });
        }
        let max = self.inodes_count();
        if self.free_inodes_count() > max {
            return Err(FormatError::FreeInodesCount { value: self.free_inodes_count(), max });
        }
        Ok(())
    }

    /// Checks that the volume fits on a device of `device` bytes.
    ///
    /// # Errors
    /// [`FormatError::BlocksCountDevice`].
    pub fn check_device(&self, device: u64) -> Result<()> {
        let (blocks, block_size) = (self.blocks_count(), self.block_size());
        match blocks.checked_mul(u64::from(block_size)) {
            Some(bytes) if bytes <= device => Ok(()),
            _ => Err(FormatError::BlocksCountDevice { blocks, block_size, device }),
        }
    }

    fn group_count_u64(&self) -> u64 {
        let blocks = self.blocks_count() - u64::from(self.raw.s_first_data_block.get());
        blocks.div_ceil(u64::from(self.raw.s_blocks_per_group.get()))
    }
}

#[cfg(test)]
mod tests;
