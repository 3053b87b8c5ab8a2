//! What a superblock claims takes no memory: a sparse file of many small groups, of which only the
//! superblock was written, is refused, read and checked in a few MiB.
//!
//! A binary of its own: its allocator counts the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs::OpenOptions;
use lanefs_device::{BlockDevice, FileDevice};
use lanefs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use lanefs_tests::{Watchdog, mke2fs};
use peak_alloc::PeakAlloc;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Groups that the superblock claims, of so few blocks of 1 KiB each as the format allows.
const GROUPS: u32 = 1 << 20;
const BLOCKS_PER_GROUP: u32 = 8;

/// For all that does not depend on the volume.
const BYTES: usize = 16 << 20;

fn le32(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

/// Makes a volume of one group, and has its superblock claim [`GROUPS`]. Without `sparse_super`
/// each group has a copy of the superblock.
fn claiming(path: &Path, args: &[&str]) {
    let inode_per_block = ["-I", "1024", "-N", "16"];
    mke2fs(path, 1 << 20, &[&["-b", "1024", "-O", "none"], &inode_per_block[..], args].concat());
    let blocks = GROUPS * BLOCKS_PER_GROUP + 1;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(u64::from(blocks) * 1024).unwrap();
    let device = FileDevice::open(path).unwrap();
    let mut sb = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut sb, SUPERBLOCK_OFFSET).unwrap();
    for (at, value) in [
        (0x00, GROUPS * 2),
        (0x04, blocks),
        (0x08, 0),
        (0x10, 0),
        (0x20, BLOCKS_PER_GROUP),
        (0x24, BLOCKS_PER_GROUP),
        (0x28, 2),
    ] {
        sb[at..at + 4].copy_from_slice(&le32(value));
    }
    let parsed = Superblock::parse(&sb).unwrap();
    assert_eq!(parsed.layout().group_count(), GROUPS);
    device.write_at(&sb, SUPERBLOCK_OFFSET).unwrap();
}

/// Runs `f`, which takes little memory beside what it returns.
fn bounded<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let done = f();
    let peak = MEMORY.peak_usage().saturating_sub(before);
    println!("{what}: {} KiB", peak >> 10);
    assert!(peak <= BYTES, "{what}: {} KiB", peak >> 10);
    done
}

/// One test in this program: memory is counted for all of it.
#[test]
fn groups_that_are_only_claimed_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&[][..], &["-O", "sparse_super"]] {
        let _watchdog = Watchdog::new("a superblock that claims many groups");
        let path = dir.path().join("volume");
        claiming(&path, args);
        let device = || Arc::new(FileDevice::open_read_only(&path).unwrap());
        let report = bounded("check", || lanefs_check::check(device(), &lanefs_check::Options::default()));
        assert!(!report.unwrap().is_clean());
        let read = bounded("open to read", || OpenOptions::new().open_device(device()).map(drop));
        println!("{read:?}");
        let write = |device| OpenOptions::new().write(true).open_device(device).map(drop);
        let write = bounded("open to write", || write(Arc::new(FileDevice::open(&path).unwrap())));
        assert!(write.is_err());
        std::fs::remove_file(path).unwrap();
    }
}
