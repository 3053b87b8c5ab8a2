use super::*;
use crate::testing::{Image, mke2fs, run};

fn debugfs(image: &Image, write: bool, command: &str) -> String {
    let path = image.0.to_str().unwrap();
    if write { run("debugfs", &["-w", "-R", command, path]) } else { run("debugfs", &["-R", command, path]) }
}

/// The slot of `ino`, found by way of our own superblock, layout and descriptors.
fn slot(image: &Image, ino: u32) -> (Vec<u8>, InodeContext) {
    let bytes = image.bytes();
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let (layout, csum, bs) = (sb.layout(), sb.checksummer(), sb.block_size() as usize);
    let place = layout.inode_slot(ino).unwrap();
    let (block, at) = layout.desc_location(place.group).unwrap();
    let desc = &bytes[block as usize * bs + at as usize..];
    let desc = crate::GroupDesc::parse(desc, place.group, &layout, &csum).unwrap();
    let start = (desc.inode_table as usize + place.table_block as usize) * bs + place.offset as usize;
    (bytes[start..start + usize::from(sb.inode_size())].to_vec(), sb.inode_context())
}

const SETS: [&[&str]; 5] = [
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^64bit"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    &["-t", "ext4", "-b", "2048", "-O", "metadata_csum_seed", "-I", "512"],
    &["-t", "ext3", "-b", "1024", "-I", "128"],
];

#[test]
fn debugfs_set_fields_are_read() {
    for args in SETS {
        let image = mke2fs("40M", args);
        debugfs(&image, true, "write /dev/null file");
        for (field, value) in [
            ("mode", "0100751"),
            ("uid", "70000"),
            ("gid", "80000"),
            ("links_count", "3"),
            ("generation", "77"),
            ("size", "6000000000"),
            ("mtime", "@1700000000"),
            ("flags", "0x80010"),
        ] {
            debugfs(&image, true, &format!("sif file {field} {value}"));
        }
        let (bytes, ctx) = slot(&image, 12);
        let inode = Inode::parse(&bytes, 12, &ctx).unwrap();
        assert_eq!((inode.mode, inode.uid, inode.gid), (0o100_751, 70_000, 80_000));
        assert_eq!((inode.links_count, inode.generation, inode.size), (3, 77, 6_000_000_000));
        assert_eq!(inode.mtime.sec, 1_700_000_000);
        assert_eq!(inode.flags, InodeFlags::EXTENTS | InodeFlags::IMMUTABLE);
        assert!(inode.is_regular());

        let mut again = bytes.clone();
        inode.encode(&mut again, &ctx).unwrap();
        assert_eq!(again, bytes, "{args:?}");
    }
}

#[test]
fn every_inode_of_a_new_volume_goes_both_ways() {
    for args in SETS {
        let image = mke2fs("40M", args);
        for ino in [1, 2, 7, 8, 11] {
            let (bytes, ctx) = slot(&image, ino);
            let inode = Inode::parse(&bytes, ino, &ctx).unwrap();
            let mut again = bytes.clone();
            inode.encode(&mut again, &ctx).unwrap();
            assert_eq!(again, bytes, "{args:?} inode {ino}");
            assert_eq!(inode.is_dir(), ino == 2 || ino == 11);
        }
    }
}

/// What we write, debugfs reads: the judge of `encode`.
#[test]
fn debugfs_reads_what_is_encoded() {
    for args in SETS {
        let image = mke2fs("40M", args);
        debugfs(&image, true, "write /dev/null file");
        let (mut bytes, ctx) = slot(&image, 12);
        let mut inode = Inode::new(12, 0o020_640, &ctx);
        inode.uid = 123_456;
        inode.gid = 654_321;
        inode.links_count = 1;
        inode.atime = Timestamp { sec: 5_000_000_000, nsec: 123_456_789 };
        inode.ctime = Timestamp { sec: -86_400, nsec: 0 };
        inode.mtime = Timestamp { sec: 1_600_000_000, nsec: 1 };
        inode.crtime = Timestamp { sec: 1_500_000_000, nsec: 2 };
        inode.version = 0x1_0000_0005;
        inode.set_device(DeviceNumber { major: 259, minor: 70_000 });
        let old = bytes.clone();
        inode.encode_new(&mut bytes, &ctx).unwrap();

        let mut whole = image.bytes();
        let at = whole.windows(old.len()).position(|w| w == old).unwrap();
        whole[at..at + bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&image.0, whole).unwrap();

        let stat = debugfs(&image, false, "stat <12>");
        for want in ["Type: character special", "Mode:  0640", "User: 123456", "Group: 654321", "259:70000"] {
            assert!(stat.contains(want), "{args:?}: no {want:?} in {stat}");
        }
        if ctx.inode_size > 128 {
            assert!(stat.contains("Version: 0x00000001:00000005"), "{stat}");
            // atime: 5_000_000_000 = 0x1_2A05_F200, epoch 1; ctime has a negative low word.
            assert!(stat.contains("atime: 0x2a05f200:1d6f3455"), "{stat}");
            assert!(stat.contains("mtime: 0x5f5e1000:00000004"), "{stat}");
            assert!(stat.contains("crtime: 0x59682f00:00000008"), "{stat}");
        }
        let back = Inode::parse(&bytes, 12, &ctx).unwrap();
        let long = ctx.inode_size > 128;
        assert_eq!(back.atime, inode.atime.clamped(long));
        assert_eq!(back.ctime, inode.ctime);
        assert_eq!(back.device(), Some(DeviceNumber { major: 259, minor: 70_000 }));
    }
}

#[test]
fn broken_rules() {
    let image = mke2fs("40M", &["-t", "ext4", "-b", "4096"]);
    let (bytes, ctx) = slot(&image, 2);
    let mut b = bytes.clone();
    b[4] ^= 1;
    assert!(matches!(Inode::parse(&b, 2, &ctx), Err(FormatError::InodeChecksum { ino: 2, .. })));
    assert!(matches!(Inode::parse(&bytes, 3, &ctx), Err(FormatError::InodeChecksum { ino: 3, .. })));
    assert!(matches!(Inode::parse(&bytes[..255], 2, &ctx), Err(FormatError::Truncated { .. })));

    let plain = InodeContext { csum: Checksummer::NONE, ..ctx };
    for value in [129u16, 2, 0xFFFC] {
        put_u16(&mut b, 0x80, value);
        let want = FormatError::ExtraIsize { ino: 2, value, max: 128 };
        assert_eq!(Inode::parse(&b, 2, &plain), Err(want));
    }
    put_u16(&mut b, 0x80, 128);
    assert!(Inode::parse(&b, 2, &plain).unwrap().xattr_area.is_empty());
    put_u16(&mut b, 0, 0o170_000);
    assert_eq!(Inode::parse(&b, 2, &plain), Err(FormatError::FileMode { ino: 2, mode: 0o170_000 }));
    put_u16(&mut b, 0, 0o100_000);
    put_u32(&mut b, 0x6C, 1 << 31);
    assert!(matches!(Inode::parse(&b, 2, &plain), Err(FormatError::FileSize { ino: 2, .. })));
}

#[test]
fn blocks_by_sector_and_by_block() {
    let image = mke2fs("40M", &["-t", "ext4", "-b", "4096"]);
    let (_, ctx) = slot(&image, 2);
    let mut inode = Inode::new(12, 0o100_644, &ctx);
    let mut b = vec![0; 256];
    for (blocks, huge) in [(8, false), (BLOCKS_MAX, false), ((BLOCKS_MAX + 1) / 8 * 8 + 8, true)] {
        inode.blocks = blocks;
        inode.encode(&mut b, &ctx).unwrap();
        let back = Inode::parse(&b, 12, &ctx).unwrap();
        assert_eq!((back.blocks, back.flags.contains(InodeFlags::HUGE_FILE)), (blocks, huge));
    }
    inode.blocks = 1 << 32;
    let small = InodeContext { huge_file: false, ..ctx };
    let max = u64::from(u32::MAX);
    let want = FormatError::FileBlocks { ino: 12, blocks: 1 << 32, max };
    assert_eq!(inode.encode(&mut b, &small), Err(want));
}

/// An inode whose extra fields end early keeps the times that it has no epoch bits for, clamped,
/// and the attributes behind its fields.
#[test]
fn fields_that_do_not_fit_are_not_written() {
    let image = mke2fs("40M", &["-t", "ext4", "-b", "4096"]);
    let (_, ctx) = slot(&image, 2);
    let far = Timestamp { sec: 1 << 33, nsec: 5 };
    // Up to the extra fields of ctime, mtime and atime, and in front of that of crtime.
    for (extra_isize, fits) in [(4, 0), (8, 1), (12, 2), (16, 3), (20, 3), (24, 4)] {
        let mut inode = Inode::new(12, 0o100_644, &ctx);
        inode.extra_isize = extra_isize;
        inode.xattr_area = vec![0xAA; 256 - GOOD_OLD_INODE_SIZE - usize::from(extra_isize)];
        (inode.ctime, inode.mtime, inode.atime, inode.crtime) = (far, far, far, far);
        let mut b = vec![0; 256];
        inode.encode(&mut b, &ctx).unwrap();
        let back = Inode::parse(&b, 12, &ctx).unwrap();
        for (n, time) in [back.ctime, back.mtime, back.atime].into_iter().enumerate() {
            assert_eq!(time, far.clamped(n < fits), "extra {extra_isize}, time {n}");
        }
        let crtime = if extra_isize < 20 { Timestamp::default() } else { far.clamped(fits == 4) };
        assert_eq!(back.crtime, crtime, "extra {extra_isize}");
        assert_eq!(back.xattr_area, inode.xattr_area);
    }
}

#[test]
fn symlinks_in_the_inode() {
    let image = mke2fs("40M", &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, true, "symlink short a/target");
    debugfs(&image, true, &format!("symlink long {}", "x".repeat(60)));
    let (short, ctx) = slot(&image, 12);
    assert_eq!(Inode::parse(&short, 12, &ctx).unwrap().fast_symlink(&ctx), Some(&b"a/target"[..]));
    let (long, ctx) = slot(&image, 13);
    assert_eq!(Inode::parse(&long, 13, &ctx).unwrap().fast_symlink(&ctx), None);
}

/// As `ext4_inode_is_fast_symlink`, but that fewer sectors than those of the xattrs are taken.
#[test]
fn blocks_of_xattrs_hold_no_target() {
    let image = mke2fs("40M", &["-t", "ext4", "-b", "1024"]);
    let (_, plain) = slot(&image, 2);
    let bigalloc = InodeContext { cluster_size: 16_384, ..plain };
    let values = InodeContext { ea_inode: true, ..plain };
    let mut link = Inode::new(12, 0o120_777, &plain);
    link.i_block[..8].copy_from_slice(b"a/target");
    // The attribute block, the sectors, and whether the target is in the inode by each context.
    for (file_acl, blocks, fast) in [
        (0, 0, [true, true, true]),
        (0, 2, [false, false, true]),
        (500, 2, [true, true, true]),
        (500, 32, [false, true, true]),
        (500, 34, [false, false, true]),
    ] {
        (link.file_acl, link.blocks, link.size) = (file_acl, blocks, 8);
        let found = [plain, bigalloc, values].map(|ctx| link.fast_symlink(&ctx).is_some());
        assert_eq!(found, fast, "{blocks} sectors, i_file_acl {file_acl}");
        link.size = 60;
        assert_eq!(link.fast_symlink(&values), None);
    }
}
