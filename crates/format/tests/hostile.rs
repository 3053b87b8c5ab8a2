//! Parses arbitrary bytes: every parser returns a value or an error, and the fields of a value can
//! be used in computations without a panic.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use lanefs_format::orphan_file::OrphanFile;
use lanefs_format::{
    Checksummer, EXT4_ROOT_INO, GroupDesc, Inode, InodeContext, InodeFlags, Layout, Mmp, RawSuperblock,
    Superblock, ext4_chksum,
};
use zerocopy::{FromBytes, IntoBytes};

/// xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number that is likely to sit at an edge.
    fn nasty(&mut self) -> u32 {
        match self.below(4) {
            0 => 1 << self.below(32),
            1 => (1u32 << self.below(32)).wrapping_sub(1),
            2 => 0u32.wrapping_sub(self.below(4) as u32),
            _ => self.next() as u32,
        }
    }
}

/// A sound superblock: 64 MiB, 4 KiB blocks.
fn sound() -> RawSuperblock {
    let mut r = RawSuperblock::zeroed();
    r.s_magic = 0xEF53.into();
    r.s_rev_level = 1.into();
    r.s_log_block_size = 2.into();
    r.s_log_cluster_size = 2.into();
    r.s_blocks_count_lo = 16384.into();
    r.s_blocks_per_group = 32768.into();
    r.s_clusters_per_group = 32768.into();
    r.s_inodes_per_group = 4096.into();
    r.s_inodes_count = 4096.into();
    r.s_first_ino = 11.into();
    r.s_inode_size = 256.into();
    r.s_desc_size = 64.into();
    r.s_checksum_type = 1;
    r.s_log_groups_per_flex = 4;
    r.s_feature_incompat = 0x2C2.into();
    r.s_feature_ro_compat = 0x46B.into();
    r
}

/// Asks a layout for everything.
fn use_layout(l: &Layout, random: &mut Random) {
    let groups = [0, 1, l.group_count() - 1, l.group_count(), random.nasty()];
    for group in groups {
        let _ = (l.group_first_block(group), l.group_blocks(group), l.group_clusters(group));
        let _ = (l.has_super(group), l.group_desc_blocks(group), l.group_base_meta(group));
        let _ = (l.desc_location(group), l.desc_block(group), l.super_location(group));
        let _ = (l.ino(group, 0), l.ino(group, random.nasty()));
    }
    for ino in [0, 1, EXT4_ROOT_INO, l.inodes_count(), u32::MAX, random.nasty()] {
        if let Ok(slot) = l.inode_slot(ino) {
            assert_eq!(l.ino(slot.group, slot.index), Ok(ino));
            assert!(slot.table_block < l.inode_table_blocks());
            assert!(slot.offset + u32::from(l.inode_size()) <= l.block_size());
        }
    }
    for block in [0, 1, l.blocks_count() - 1, l.blocks_count(), random.next(), u64::MAX] {
        if let Ok((group, at)) = l.group_of_block(block) {
            assert!(at < l.group_blocks(group).unwrap());
        }
        let _ = l.check_blocks(block, random.next());
    }
    let _ = (l.overhead(), l.groups_per_flex(), l.descs_per_block(), l.desc_blocks());
}

#[test]
fn superblocks_with_broken_fields() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut passed = 0;
    for _ in 0..200_000 {
        let mut raw = sound();
        for _ in 0..=random.below(3) {
            let (at, value) = (random.below(255) * 4, random.nasty());
            let width = [1, 2, 4][random.below(3)];
            raw.as_mut_bytes()[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        raw.s_checksum = ext4_chksum(!0, &raw.as_bytes()[..1020]).into();
        if let Ok(sb) = Superblock::parse(raw.as_bytes()) {
            passed += 1;
            use_layout(&sb.layout(), &mut random);
            let _ = (sb.check_device(random.next()), sb.unsupported(), sb.label(), sb.times());
            let _ = (sb.inode_context(), sb.checksummer());
            assert_eq!(Superblock::parse(&sb.encode()).as_ref(), Ok(&sb));
        }
    }
    // Most fields may hold anything; many must not.
    assert!((20_000..190_000).contains(&passed), "{passed}");
}

#[test]
fn structures_of_noise() {
    let mut random = Random(42);
    let sb = Superblock::from_raw(sound()).unwrap();
    let (layout, csum) = (sb.layout(), Checksummer::NONE);
    for round in 0..100_000 {
        let mut bytes = vec![0u8; random.below(300)];
        for b in &mut bytes {
            *b = random.next() as u8;
        }
        let _ = GroupDesc::parse(&bytes, 0, &layout, &csum);
        let inode_size = [128, 256][round % 2];
        let ctx = InodeContext { inode_size, csum, large_dir: true, ..sb.inode_context() };
        if bytes.len() > 130 {
            // A size and a mode that pass, so that the rest is reached.
            bytes[1] = 0x81;
            bytes[128] &= 0x7C;
            bytes[129] = 0;
            bytes[0x6F] &= 0x7F;
        }
        if let Ok(mut inode) = Inode::parse(&bytes, 12, &ctx) {
            let mut again = bytes.clone();
            inode.encode(&mut again, &ctx).unwrap();
            // The unit of i_blocks is chosen anew.
            let mut back = Inode::parse(&again, 12, &ctx).unwrap();
            back.flags.remove(InodeFlags::HUGE_FILE);
            inode.flags.remove(InodeFlags::HUGE_FILE);
            assert_eq!(back, inode);
            let _ = (inode.device(), inode.fast_symlink(&ctx), inode.file_type());
        }
        let _ = Mmp::parse(&bytes, 1, &csum);
        let _ = OrphanFile::new(&Inode::new(12, 0, &sb.inode_context()), &csum).verify(&bytes, 1);
        let _ = RawSuperblock::read_from_prefix(&bytes);
    }
}
