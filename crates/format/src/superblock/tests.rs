use super::*;
use crate::testing::{dumpe2fs_field, mke2fs};

#[test]
fn agrees_with_dumpe2fs() {
    for args in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^64bit", "-I", "128"],
        &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,uninit_bg"],
        &["-t", "ext4", "-b", "4096", "-O", "metadata_csum_seed,orphan_file"],
        &["-t", "ext3", "-b", "2048"],
        &["-t", "ext2", "-r", "0", "-b", "1024"],
    ] {
        let image = mke2fs("40M", args);
        let bytes = image.bytes();
        let sb = Superblock::parse(&bytes[1024..]).unwrap();
        let size = sb.blocks_count() * u64::from(sb.block_size());
        sb.check_device(size).unwrap();
        assert!(sb.check_device(size - 1).is_err());
        let field = |name| dumpe2fs_field(&image, name);
        assert_eq!(sb.features().to_string(), names_sorted(&field("Filesystem features")), "{args:?}");
        assert_eq!(sb.inodes_count().to_string(), field("Inode count"));
        assert_eq!(sb.blocks_count().to_string(), field("Block count"));
        assert_eq!(sb.reserved_blocks_count().to_string(), field("Reserved block count"));
        assert_eq!(sb.free_blocks_count().to_string(), field("Free blocks"));
        assert_eq!(sb.free_inodes_count().to_string(), field("Free inodes"));
        assert_eq!(sb.block_size().to_string(), field("Block size"));
        // Revision 0 has no such field, and dumpe2fs no such line.
        assert!(["", &sb.inode_size().to_string()].contains(&field("Inode size").as_str()));
        assert_eq!(sb.encode(), bytes[1024..2048], "{args:?}");
    }
}

/// dumpe2fs prints the features in the order of its own table; ours come in the order of bits.
fn names_sorted(list: &str) -> String {
    let edit: crate::features::FeatureEdit = list.replace("(none)", "").parse().unwrap();
    edit.on.to_string()
}

fn good() -> Vec<u8> {
    mke2fs("40M", &["-t", "ext4", "-b", "4096"]).bytes()[1024..2048].to_vec()
}

fn broken(change: impl FnOnce(&mut RawSuperblock)) -> FormatError {
    let (mut raw, _) = RawSuperblock::read_from_prefix(&good()).unwrap();
    change(&mut raw);
    raw.s_checksum = Superblock::checksum(raw.as_bytes()).into();
    Superblock::parse(raw.as_bytes()).unwrap_err()
}

#[test]
fn a_flipped_bit_is_noticed() {
    let mut bytes = good();
    bytes[0x3F0] ^= 1;
    assert!(matches!(Superblock::parse(&bytes), Err(FormatError::SuperblockChecksum { .. })));
    assert_eq!(
        Superblock::parse(&bytes[..1000]),
        Err(FormatError::Truncated { what: "superblock", len: 1000, need: 1024 })
    );
}

#[test]
fn every_rule_is_an_error_of_its_own() {
    use FormatError as E;
    assert_eq!(broken(|r| r.s_magic = 0x1234.into()), E::BadMagic { found: 0x1234 });
    assert_eq!(broken(|r| r.s_log_block_size = 7.into()), E::LogBlockSize { value: 7 });
    assert_eq!(broken(|r| r.s_log_cluster_size = 3.into()), E::LogClusterSize { value: 3, min: 2, max: 2 });
    let wide = |r: &mut RawSuperblock| {
        r.s_feature_ro_compat = (r.s_feature_ro_compat.get() | RoCompat::BIGALLOC.bits()).into();
        (r.s_log_block_size, r.s_log_cluster_size) = (6.into(), 21.into());
    };
    assert_eq!(broken(wide), E::LogClusterSize { value: 21, min: 6, max: 20 });
    assert_eq!(broken(|r| r.s_blocks_per_group = 0.into()), E::BlocksPerGroup { value: 0, max: 32768 });
    assert_eq!(
        broken(|r| r.s_clusters_per_group = 8.into()),
        E::ClustersPerGroup { value: 8, expected: 32768 }
    );
    assert_eq!(
        broken(|r| r.s_inodes_per_group = 0.into()),
        E::InodesPerGroup { value: 0, min: 16, max: 32768 }
    );
    assert_eq!(broken(|r| r.s_inode_size = 8192.into()), E::InodeSize { value: 8192, max: 4096 });
    assert_eq!(broken(|r| r.s_inode_size = 160.into()), E::InodeSize { value: 160, max: 4096 });
    assert_eq!(broken(|r| r.s_desc_size = 32.into()), E::DescSize { value: 32, min: 64, max: 1024 });
    assert_eq!(broken(|r| r.s_first_data_block = 1.into()), E::FirstDataBlock { value: 1, expected: 0 });
    assert_eq!(broken(|r| r.s_blocks_count_lo = 0.into()), E::TooFewBlocks { value: 0 });
    assert!(matches!(broken(|r| r.s_blocks_count_hi = u32::MAX.into()), E::TooManyGroups { .. }));
    assert!(matches!(broken(|r| r.s_inodes_count = 7.into()), E::InodesCount { value: 7, groups: 1, .. }));
    assert!(matches!(broken(|r| r.s_first_ino = 3.into()), E::FirstIno { value: 3, .. }));
    assert!(matches!(broken(|r| r.s_free_blocks_count_hi = 1.into()), E::FreeBlocksCount { .. }));
    assert!(matches!(broken(|r| r.s_free_inodes_count = 99_999.into()), E::FreeInodesCount { .. }));
    assert!(matches!(broken(|r| r.s_r_blocks_count_hi = 9.into()), E::ReservedBlocksCount { .. }));
    assert_eq!(
        broken(|r| r.s_reserved_gdt_blocks = 1025.into()),
        E::ReservedGdtBlocks { value: 1025, max: 1024 }
    );
    assert_eq!(broken(|r| r.s_log_groups_per_flex = 32), E::LogGroupsPerFlex { value: 32 });
    assert!(matches!(broken(|r| r.s_journal_inum = u32::MAX.into()), E::JournalInum { .. }));
    let sb = Superblock::parse(&good()).unwrap();
    assert_eq!(
        sb.check_device(4096),
        Err(E::BlocksCountDevice { blocks: 10240, block_size: 4096, device: 4096 })
    );
}
