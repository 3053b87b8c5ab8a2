//! Metadata keeps to its bound however large the log is, and a volume that nobody uses gives its
//! memory back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs::{OpenOptions, Volume};
use lanefs_tests::{Watchdog, e2fsck_clean, mke2fs};
use std::fs;
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

/// A field of this process's status, in bytes.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn level(volume: &Volume, name: &str) -> u64 {
    volume.stats().levels().find(|(known, _)| *known == name).unwrap().1
}

/// One test in this program: the memory is that of all of it.
#[test]
fn a_large_log_is_not_kept_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    let _watchdog = Watchdog::new("a volume with a large log");
    mke2fs(&image, 1 << 30, &["-t", "ext4", "-b", "4096", "-J", "size=400", "-N", "70000"]);
    let options = OpenOptions::new().write(true).cache_bytes(BOUND as usize);
    let options = options.commit_interval(Duration::from_secs(1)).release_memory_when_idle(true);
    let volume = options.open(&image).unwrap();
    let before = status("VmRSS:");
    // Forgets the highest of what was resident before.
    fs::write("/proc/self/clear_refs", "5").unwrap();

    for top in 0..DIRS / 1024 {
        volume.create_dir(format!("/{top}")).unwrap();
        for dir in 0..1024 {
            volume.create_dir(format!("/{top}/{dir}")).unwrap();
        }
        let blocks = level(&volume, "blocks_to_checkpoint");
        assert!(blocks * 4096 <= BOUND / 4, "{blocks} blocks are to be checkpointed");
    }
    let grown = status("VmHWM:").saturating_sub(before);
    println!("at work: {} KiB more", grown >> 10);
    assert!(grown <= BOUND + SLACK, "{} KiB more", grown >> 10);

    // It comes to rest by itself: all is on the device, and the memory is given back.
    let at_rest =
        || level(&volume, "blocks_in_memory") <= PINNED && level(&volume, "blocks_to_checkpoint") == 0;
    while !at_rest() {
        thread::sleep(Duration::from_millis(100));
    }
    let rest = || status("VmRSS:").saturating_sub(before);
    for _ in 0..100 {
        if rest() <= 4 * MIB {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    println!("idle: {} KiB more", rest() >> 10);
    assert!(rest() <= 4 * MIB, "{} KiB more", rest() >> 10);
    assert!(volume.exists("/3/1000").unwrap());
    volume.close().unwrap();
    e2fsck_clean(&image);
}
