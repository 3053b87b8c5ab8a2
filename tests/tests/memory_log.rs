//! Metadata keeps to its bound however large the log is, and an idle volume gives its memory back.
//!
//! The test is a binary of its own: it measures the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs::{OpenOptions, Volume};
use lanefs_tests::{Watchdog, e2fsck_clean, memory_of, mke2fs};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Of all caches together.
const BOUND: u64 = 32 * MIB;

/// For what threads have on its way, inodes in use, maps, and what the allocator cannot use.
const SLACK: u64 = 16 * MIB;

/// Directories, each of which takes a block: four times the bound.
const DIRS: u64 = 32 << 10;

/// Blocks that an open volume never gives back: the superblock and those of the orphan file.
const PINNED: u64 = 64;

fn level(volume: &Volume, name: &str) -> u64 {
    volume.stats().levels().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn a_large_log_is_not_kept_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    let _watchdog = Watchdog::new("a volume with a large log");
    mke2fs(&image, 1 << 30, &["-t", "ext4", "-b", "4096", "-J", "size=400", "-N", "70000"]);
    let options = OpenOptions::new().write(true).cache_bytes(BOUND as usize);
    let options = options.commit_interval(Duration::from_secs(1)).release_memory_when_idle(true);
    let volume = options.open(&image).unwrap();
    let before = memory_of(std::process::id());
    let grown = || memory_of(std::process::id()).saturating_sub(before);

    let mut most = 0;
    for top in 0..DIRS / 1024 {
        volume.create_dir(format!("/{top}")).unwrap();
        for dir in 0..1024 {
            volume.create_dir(format!("/{top}/{dir}")).unwrap();
            if dir % 16 == 0 {
                most = most.max(grown());
            }
        }
        let blocks = level(&volume, "blocks_to_checkpoint");
        assert!(blocks * 4096 <= BOUND / 4, "{blocks} blocks are to be checkpointed");
    }
    println!("at work: {} KiB more", most >> 10);
    assert!(most <= BOUND + SLACK, "{} KiB more", most >> 10);

    // It comes to rest by itself: all is on the device, and the memory is given back. The watchdog
    // ends a wait that lasts.
    let at_rest =
        || level(&volume, "blocks_in_memory") <= PINNED && level(&volume, "blocks_to_checkpoint") == 0;
    while !at_rest() || grown() > 4 * MIB {
        thread::sleep(Duration::from_millis(100));
    }
    assert!(volume.exists("/3/1000").unwrap());
    volume.close().unwrap();
    e2fsck_clean(&image);
}
