//! Files with a block of the map that cannot be read: the rest of them stays usable, and what a
//! call has changed before it met that block is seen.

use super::half::{leaves_of, of_three_leaves};
use super::*;
use lanefs_device::{MemDevice, Op};
use lanefs_sim::FailingDevice;

/// Flips a bit of `block`, whose checksum is wrong then.
fn damage(image: &Image, block: u64) {
    let mut bytes = std::fs::read(image.path()).unwrap();
    bytes[block as usize * 1024 + 20] ^= 1;
    std::fs::write(image.path(), bytes).unwrap();
}

/// More uses than those after which a snapshot of the whole map is tried.
#[test]
fn a_damaged_leaf_hides_no_block_of_the_others() {
    type Use = fn(&InodeRef) -> Result<()>;
    let read_direct: Use = |node| read(node, 0, &mut [0; 1024]).map(drop);
    let read_cached: Use = |node| {
        node.file().drop_pages(0..u32::MAX);
        buffered::read(node, 0, &mut [0; 1024]).map(drop)
    };
    let overwrite: Use = |node| write(node, 0, &[2; 1024]);
    let image = Image::new("16M", KINDS[1]);
    let (ino, leaves) = of_three_leaves(&image);
    damage(&image, leaves[2]);
    for (case, again) in [read_direct, read_cached, overwrite].into_iter().enumerate() {
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        for n in 0..100 {
            again(&node).unwrap_or_else(|e| panic!("case {case}, use {n}: {e}"));
        }
        assert!(read(&node, 398 * 1024, &mut [0; 1024]).is_err());
        drop(node);
        fs.close().unwrap();
    }
}

/// A read that fails costs a file its snapshot for a while, not for good.
#[test]
fn a_file_has_a_snapshot_after_the_device_has_healed() {
    let image = Image::new("16M", KINDS[1]);
    let (ino, _) = of_three_leaves(&image);
    let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(std::fs::read(image.path()).unwrap())));
    let fs = image.open_on(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let node = fs.inode(ino).unwrap();
    // No leaf of its map is in memory.
    device.fail_from(Op::Read, 1, 5);
    assert!((0..17).all(|_| !node.content().miss()));
    assert!(device.failures() > 0, "the map was not read");
    device.heal();
    (0..100).for_each(|_| write(&node, 0, &[2; 1024]).unwrap());
    assert!(node.file().snapshot.find(0).is_some());
    drop(node);
    fs.close().unwrap();
}

/// Its i_size lies behind every block that a map can have, so there is no last block to zero.
#[test]
fn an_orphan_of_more_bytes_than_a_map_can_have_is_cut() {
    const SIZE: u64 = 0x1000_0000_0000_0001;
    for kind in [KINDS[1], KINDS[3]] {
        let image = Image::new("16M", &[kind, &["-O", "^orphan_file"]].concat());
        let ino = image.file("f");
        image.debugfs(&format!("set_inode_field f size {SIZE:#x}"));
        image.debugfs(&format!("set_super_value last_orphan {ino}"));
        let fs = image.open();
        assert_eq!(fs.recovery.orphans, 1);
        let node = fs.inode(ino).unwrap();
        assert_eq!(node.attributes().size, SIZE);
        node.content().truncate(0).unwrap();
        assert!(fs.orphans.is_empty());
        drop(node);
        image.close(fs);
    }
}

/// A truncation that recovery cannot finish either: the old bytes do not come back.
#[test]
fn a_file_that_recovery_cannot_cut_does_not_grow() {
    let image = Image::new("16M", KINDS[1]);
    let (ino, leaves) = of_three_leaves(&image);
    damage(&image, leaves[2]);
    let fs = image.open();
    assert!(fs.inode(ino).unwrap().content().truncate(0).is_err());
    fs.close().unwrap();
    drop(fs);
    let fs = image.open();
    for _ in 0..2 {
        let node = fs.inode(ino).unwrap();
        assert!(node.content().truncate(64 << 10).is_err());
        let written = [write(&node, 60 << 10, b"x"), buffered::write(&node, 60 << 10, b"x")];
        for grown in written.into_iter().chain([node.content().extend(64 << 10)]) {
            assert!(matches!(grown, Err(Error::CutShort { .. })), "{grown:?}");
        }
        assert_eq!(node.attributes().size, 0);
        drop(node);
        // What the inode on disk does not say is not forgotten.
        fs.inodes.sweep_all();
    }
    fs.close().unwrap();
}

/// Bytes whose pages are locked at a time.
const SPAN: u64 = super::super::buffered::SPAN;

/// Makes a file of one run of [`SPAN`] bytes and of 200 blocks with holes between them, and damages
/// the second leaf of its map.
fn of_a_run_and_a_damaged_leaf(image: &Image) -> u32 {
    let ino = image.file("f");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &vec![1; SPAN as usize]).unwrap();
    (0..200).for_each(|n| write(&node, SPAN + n * 2048, &[1; 1024]).unwrap());
    drop(node);
    image.close(fs);
    let leaves = leaves_of(image);
    assert_eq!(leaves.len(), 3);
    damage(image, leaves[1]);
    ino
}

/// The bytes before the damage are written: in the spans before its own, and in blocks of its span
/// that were dirty already.
#[test]
fn a_write_that_fails_half_way_makes_a_new_version() {
    type Change = fn(&InodeRef) -> Result<()>;
    let nowait: Change =
        |node| node.content().try_write(&vec![3; 480 << 10], Some(0), Caching::Cached).map(drop);
    let cached: Change = |node| buffered::write(node, SPAN, &vec![3; 224 << 10]);
    for (case, (at, change)) in [(0, nowait), (SPAN, cached)].into_iter().enumerate() {
        let image = Image::new("16M", KINDS[1]);
        let ino = of_a_run_and_a_damaged_leaf(&image);
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        buffered::write(&node, SPAN, &[2; 1024]).unwrap();
        let look = || {
            let mut byte = [0];
            buffered::read(&node, at, &mut byte).unwrap();
            (byte[0], node.attributes().version)
        };
        let before = look();
        let ended = change(&node);
        let after = look();
        assert!(before.0 != 3 && after.0 == 3, "case {case}: {ended:?}");
        assert_ne!(after.1, before.1, "case {case}: {ended:?}");
        drop(node);
        fs.close().unwrap();
    }
}

/// The first of two runs is overwritten.
#[test]
fn an_overwrite_that_fails_half_way_makes_a_new_version() {
    let image = Image::new("16M", KINDS[1]);
    let ino = image.file("f");
    let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(std::fs::read(image.path()).unwrap())));
    let fs = image.open_on(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &[1; 3072]).unwrap();
    node.content().fallocate(FallocMode::CollapseRange, 1024, 1024).unwrap();
    node.sync_all().unwrap();
    let look = || {
        let mut blocks = [0; 2048];
        read(&node, 0, &mut blocks).unwrap();
        ((blocks[0], blocks[1024]), node.attributes().version)
    };
    let before = look();
    device.fail_once(Op::Write, 2, 5);
    write(&node, 0, &[2; 2048]).unwrap_err();
    let after = look();
    assert_eq!((before.0, after.0), ((1, 1), (2, 1)));
    assert_ne!(after.1, before.1);
}

/// The pieces and steps before the error stay, and change the number of blocks.
#[test]
fn a_fallocate_that_fails_half_way_makes_a_new_version() {
    // A block of the map that is free is in the way of a removal only.
    for (mode, len, leaf, is_damaged) in [
        (FallocMode::Allocate, 400 << 10, 2, true),
        (FallocMode::PunchHole, 400 << 10, 1, false),
        (FallocMode::CollapseRange, 1024, 2, true),
    ] {
        let image = Image::new("16M", KINDS[1]);
        let (ino, leaves) = of_three_leaves(&image);
        match is_damaged {
            true => damage(&image, leaves[leaf]),
            false => drop(image.debugfs(&format!("freeb {}", leaves[leaf]))),
        }
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        let before = node.attributes();
        node.content().fallocate(mode, 0, len).unwrap_err();
        assert!(!fs.journal.has_ended(), "{mode:?}");
        let after = node.attributes();
        assert_ne!(after.blocks, before.blocks, "{mode:?}");
        assert!(after.version != before.version && after.mtime > before.mtime, "{mode:?}");
        drop(node);
        fs.close().unwrap();
    }
}
