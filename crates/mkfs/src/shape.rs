//! Computes the numbers of blocks, groups and inodes of a volume as mke2fs does.
//!
//! The sizes depend on each other: inodes fill whole blocks of each group's inode table, and a last
//! group that is too short for its own structures is dropped, which changes the number of groups.
//! So the computation is a loop.

use crate::{MkfsError, Options, PlannedDevice, Usage};
use lanefs_format::{Compat, Features, Incompat, RawSuperblock, RoCompat, Superblock};

/// log2 of the groups in a flex group.
const LOG_GROUPS_PER_FLEX: u8 = 4;
const FIRST_INO: u32 = 11;

/// mke2fs rounds the size of a device down to whole pages, and not a size that was asked for.
const PAGE: u32 = 4096;

/// Returns the superblock for a device, complete but for what is placed: counts of free blocks and
/// inodes, journal, orphan file.
pub(crate) fn shape(device: PlannedDevice, options: &Options) -> Result<Superblock, MkfsError> {
    let size = options.size.unwrap_or(device.size);
    if size > device.size {
        return Err(MkfsError::BeyondDevice { bytes: size, device: device.size });
    }
    if options.label.len() > 16 {
        return Err(MkfsError::Label(options.label.len()));
    }
    let (uid, gid) = options.root_owner;
    if uid == u32::MAX || gid == u32::MAX {
        return Err(MkfsError::Owner { uid, gid });
    }
    let mut features = features(options)?;
    // The table of sizes is entered with the blocks that are known before it has been read.
    let first = options.block_size.unwrap_or(1024);
    check_power(first, 1024, 65536).ok_or(MkfsError::BlockSize(first))?;
    let usage = options.usage.unwrap_or_else(|| Usage::by_size(size / u64::from(first), first));
    let sector = device.sector;
    let block_size = options.block_size.unwrap_or(usage.block_size().max(sector));
    check_power(block_size, sector, 65536).ok_or(MkfsError::BelowSector { block_size, sector })?;
    let mut blocks = size / u64::from(block_size);
    if options.size.is_none() && block_size < PAGE {
        blocks -= blocks % u64::from(PAGE / block_size);
    }
    if blocks > u64::from(u32::MAX) {
        // Its indirect blocks have no room for such block numbers.
        features.compat.remove(Compat::RESIZE_INODE);
    }
    let shape = Shape {
        features,
        block_size,
        blocks,
        inode_size: options.inode_size.unwrap_or(256),
        ratio: options.inode_ratio.unwrap_or(usage.inode_ratio().max(block_size)),
        reserved: options.reserved_percent.unwrap_or(5.0),
    };
    shape.check()?;
    let mut raw = shape.raw();
    identity(&mut raw, options);
    shape.fit(raw, shape.inodes(options)?)
}

/// Checks the features asked for against each other.
fn features(options: &Options) -> Result<Features, MkfsError> {
    let mut f = options.features.apply(options.fs_type.features());
    // Set while a volume is in use, or of structures that only other tools make.
    let never = Features {
        compat: Compat::DIR_PREALLOC | Compat::IMAGIC_INODES | Compat::LAZY_BG,
        incompat: Incompat::RECOVER,
        ro_compat: RoCompat::BTREE_DIR | RoCompat::ORPHAN_PRESENT,
    };
    let foreign = f.minus(lanefs_format::features::WRITABLE.minus(never));
    if !foreign.is_empty() {
        return Err(MkfsError::Features(foreign.to_string()));
    }
    let needs = |feature, needs| Err(MkfsError::Needs { feature, needs });
    if f.incompat.contains(Incompat::BIT64) && !f.incompat.contains(Incompat::EXTENTS) {
        return needs("64bit", "extent");
    }
    if f.compat.contains(Compat::ORPHAN_FILE) && !f.compat.contains(Compat::HAS_JOURNAL) {
        return needs("orphan_file", "has_journal");
    }
    if f.incompat.contains(Incompat::CSUM_SEED) && !f.ro_compat.contains(RoCompat::METADATA_CSUM) {
        return needs("metadata_csum_seed", "metadata_csum");
    }
    let sparse = f.ro_compat.contains(RoCompat::SPARSE_SUPER) || f.compat.contains(Compat::SPARSE_SUPER2);
    if f.compat.contains(Compat::RESIZE_INODE) && !sparse {
        return needs("resize_inode", "sparse_super");
    }
    if f.compat.contains(Compat::RESIZE_INODE) && f.incompat.contains(Incompat::META_BG) {
        return Err(MkfsError::Exclusive("resize_inode", "meta_bg"));
    }
    if f.ro_compat.contains(RoCompat::METADATA_CSUM) {
        f.ro_compat.remove(RoCompat::GDT_CSUM);
    }
    Ok(f)
}

/// Sets name, UUID, times and defaults.
fn identity(raw: &mut RawSuperblock, options: &Options) {
    let now = options.time.unwrap_or_else(now);
    raw.s_uuid = options.uuid.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
    let seed = options.hash_seed.unwrap_or_else(|| match options.uuid {
        Some(uuid) => derived_seed(&uuid),
        None => uuid::Uuid::new_v4().into_bytes(),
    });
    for (word, bytes) in raw.s_hash_seed.iter_mut().zip(seed.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes).into();
    }
    for (to, from) in raw.s_volume_name.iter_mut().zip(&options.label) {
        *to = *from;
    }
    let (low, high) = (now as u32, (now >> 32) as u8);
    (raw.s_wtime, raw.s_wtime_hi) = (low.into(), high);
    (raw.s_mkfs_time, raw.s_mkfs_time_hi) = (low.into(), high);
    (raw.s_lastcheck, raw.s_lastcheck_hi) = (low.into(), high);
    if raw.s_feature_incompat & Incompat::CSUM_SEED.bits() != 0 {
        raw.s_checksum_seed = lanefs_format::ext4_chksum(!0, &raw.s_uuid).into();
    }
}

/// Returns the hash seed for a UUID that the caller has fixed, so that the volume is reproducible.
fn derived_seed(uuid: &[u8; 16]) -> [u8; 16] {
    let mut seed = [0; 16];
    for (n, word) in (0..).zip(seed.as_chunks_mut::<4>().0) {
        *word = lanefs_format::ext4_chksum(n, uuid).to_le_bytes();
    }
    seed
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

struct Shape {
    features: Features,
    block_size: u32,
    blocks: u64,
    inode_size: u16,
    ratio: u32,
    reserved: f64,
}

impl Shape {
    fn has(&self, bits: Incompat) -> bool {
        self.features.incompat.contains(bits)
    }

    fn check(&self) -> Result<(), MkfsError> {
        let size = self.inode_size;
        let max = self.block_size;
        check_power(size.into(), 128, max).ok_or(MkfsError::InodeSize { size, max })?;
        if !(1024..=65536 * 1024).contains(&self.ratio) {
            return Err(MkfsError::InodeRatio(self.ratio));
        }
        if !(0.0..=50.0).contains(&self.reserved) {
            return Err(MkfsError::ReservedPercent(self.reserved));
        }
        if self.blocks > u64::from(u32::MAX) && !self.has(Incompat::BIT64) {
            return Err(MkfsError::TooManyBlocks { blocks: self.blocks });
        }
        Ok(())
    }

    /// Returns the number of inodes asked for, by number or ratio.
    fn inodes(&self, options: &Options) -> Result<u32, MkfsError> {
        let bytes = self.blocks.saturating_mul(u64::from(self.block_size));
        let inodes = match options.inode_count {
            Some(n) if n > 0 => u64::from(n),
            _ => (bytes / u64::from(self.ratio)).min(u64::from(u32::MAX)),
        };
        if inodes.saturating_mul(u64::from(self.inode_size)) >= bytes {
            return Err(MkfsError::TooManyInodes {
                inodes,
                inode_size: self.inode_size,
                blocks: self.blocks,
            });
        }
        Ok((inodes as u32).max(FIRST_INO + 1))
    }

    /// Returns all fields that do not depend on the number of groups.
    fn raw(&self) -> RawSuperblock {
        let mut r = RawSuperblock::zeroed();
        let f = self.features;
        [r.s_feature_compat, r.s_feature_incompat, r.s_feature_ro_compat] = f.words().map(Into::into);
        r.s_magic = 0xEF53.into();
        r.s_state = 1.into();
        r.s_errors = 1.into();
        r.s_rev_level = 1.into();
        r.s_max_mnt_count = u16::MAX.into();
        r.s_first_ino = FIRST_INO.into();
        r.s_inode_size = self.inode_size.into();
        if self.inode_size > 128 {
            r.s_min_extra_isize = 32.into();
            r.s_want_extra_isize = 32.into();
        }
        r.s_log_block_size = (self.block_size.ilog2() - 10).into();
        r.s_log_cluster_size = r.s_log_block_size;
        r.s_first_data_block = u32::from(self.block_size == 1024).into();
        // acl, user_xattr
        r.s_default_mount_opts = 0xC.into();
        // half_md4, of signed characters
        r.s_def_hash_version = 1;
        r.s_flags = 1.into();
        if self.has(Incompat::BIT64) {
            r.s_desc_size = 64.into();
        }
        if self.has(Incompat::FLEX_BG) {
            r.s_log_groups_per_flex = LOG_GROUPS_PER_FLEX;
        }
        if f.ro_compat.contains(RoCompat::METADATA_CSUM) {
            r.s_checksum_type = 1;
        }
        r
    }

    /// Finds the numbers of blocks, groups and inodes that fit each other.
    fn fit(&self, mut raw: RawSuperblock, inodes: u32) -> Result<Superblock, MkfsError> {
        let block_size = self.block_size;
        let first = u64::from(raw.s_first_data_block.get());
        let small = MkfsError::TooSmall { blocks: self.blocks, block_size };
        let many = |inodes: u32| MkfsError::TooManyInodes {
            inodes: inodes.into(),
            inode_size: self.inode_size,
            blocks: self.blocks,
        };
        let mut blocks = self.blocks;
        let all_reserved = (self.reserved * blocks as f64 / 100.0) as u64;
        let mut reserved = all_reserved;
        let mut per_group = (block_size * 8).min(65536 - 8);
        loop {
            if blocks <= first + 8 {
                return Err(small);
            }
            let groups = (blocks - first).div_ceil(per_group.into());
            let groups = u32::try_from(groups).map_err(|_| MkfsError::TooManyGroups { blocks, per_group })?;
            let ipg = inodes.div_ceil(groups);
            if ipg > block_size * 8 {
                // More inodes than a bitmap has bits: smaller groups.
                if per_group < 256 {
                    return Err(many(inodes));
                }
                (per_group, blocks) = (per_group - 8, self.blocks);
                continue;
            }
            let ipg = self.inodes_per_group(ipg, groups).ok_or_else(|| many(inodes))?;

            if ipg * groups < FIRST_INO {
                return Err(small);
            }
            raw.s_blocks_count_lo = (blocks as u32).into();
            raw.s_blocks_count_hi = ((blocks >> 32) as u32).into();
            raw.s_r_blocks_count_lo = (reserved as u32).into();
            raw.s_r_blocks_count_hi = ((reserved >> 32) as u32).into();
            raw.s_blocks_per_group = per_group.into();
            raw.s_clusters_per_group = per_group.into();
            raw.s_inodes_per_group = ipg.into();
            raw.s_inodes_count = (ipg * groups).into();
            raw.s_free_inodes_count = raw.s_inodes_count;
            self.descriptors(&mut raw, groups, blocks, per_group);
            self.backups(&mut raw, groups);

            let sb = Superblock::from_raw(raw.clone())?;
            let layout = sb.layout();
            let table = layout.inode_table_blocks();
            let copies = 1 + layout.group_desc_blocks(0) + u32::from(raw.s_reserved_gdt_blocks.get());
            if 2 + table + copies > per_group {
                return Err(many(inodes));
            }
            // What the last group must hold at least, and room for a file or two.
            let last = groups - 1;
            let overhead = 2 + table + if layout.has_super(last) { copies } else { 0 };
            let rest = ((blocks - first) % u64::from(per_group)) as u32;
            if rest != 0 && groups == 1 && rest < overhead {
                return Err(small);
            }
            if rest == 0 || rest >= overhead + 50 {
                return Ok(sb);
            }
            blocks -= u64::from(rest);
            reserved = (all_reserved as f64 / self.blocks as f64 * blocks as f64) as u64;
        }
    }

    /// Returns the number of inodes in a group: whole blocks of the table, a multiple of 8.
    fn inodes_per_group(&self, wanted: u32, groups: u32) -> Option<u32> {
        let per_block = self.block_size / u32::from(self.inode_size);
        let mut wanted = wanted.min(65536 - per_block);
        loop {
            let ipg = (wanted.div_ceil(per_block) * per_block).max(8) & !7;
            if ipg.checked_mul(groups).is_some() {
                return Some(ipg);
            }
            wanted = wanted.checked_sub(1)?;
        }
    }

    /// Sets the blocks kept for more descriptors: enough for a volume 1024 times as large, as far
    /// as 32-bit block numbers reach and one indirect block has room.
    fn descriptors(&self, raw: &mut RawSuperblock, groups: u32, blocks: u64, per_group: u32) {
        let per_block = self.block_size / if self.has(Incompat::BIT64) { 64 } else { 32 };
        let desc_blocks = groups.div_ceil(per_block);
        let mut reserved = 0;
        if raw.s_feature_compat.get() & Compat::RESIZE_INODE.bits() != 0 {
            let max = blocks.saturating_mul(1024);
            let max = if blocks < u64::from(u32::MAX / 1024) { max } else { u32::MAX.into() };
            let first = u64::from(raw.s_first_data_block.get());
            let groups = max.saturating_sub(first).div_ceil(per_group.into());
            let most = groups.div_ceil(per_block.into()).saturating_sub(desc_blocks.into());
            reserved = most.min(u64::from(self.block_size / 4)) as u16;
        }
        // Descriptors that would fill a group are spread over all groups instead, where none can
        // be reserved.
        if u64::from(reserved) + u64::from(desc_blocks) > u64::from(per_group) * 3 / 4 {
            raw.s_feature_incompat = (raw.s_feature_incompat.get() | Incompat::META_BG.bits()).into();
            raw.s_feature_compat = (raw.s_feature_compat.get() & !Compat::RESIZE_INODE.bits()).into();
            reserved = 0;
        }
        raw.s_reserved_gdt_blocks = reserved.into();
    }

    /// Sets the two groups of copies with sparse_super2: the second and the last.
    fn backups(&self, raw: &mut RawSuperblock, groups: u32) {
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            let last = groups - 1;
            let backups = if last <= 1 { [0, last] } else { [1, last] };
            raw.s_backup_bgs = backups.map(Into::into);
        }
    }
}

fn check_power(n: u32, min: u32, max: u32) -> Option<()> {
    (n.is_power_of_two() && (min..=max).contains(&n)).then_some(())
}
