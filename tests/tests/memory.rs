//! The page cache keeps to its bound, whatever is read and written: files of a hundred times as
//! much.
//!
//! A binary of its own: its allocator counts the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs::{File, Volume};
use lanefs_tests::{Watchdog, e2fsck_clean, mke2fs, modes};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The bound of the page cache in bytes.
const BOUND: u64 = 1 << 20;

const SIZE: u64 = 100 * BOUND;

/// The bytes of a read or write.
const PIECE: usize = 64 << 10;

/// For the heap: the bound, cached metadata, the allocator's maps, and what all threads have on its
/// way.
const HEAP: usize = 6 << 20;

fn bytes(at: u64) -> Vec<u8> {
    let word = |i: u64| (at + i * 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..PIECE as u64 / 8).flat_map(word).collect()
}

fn places(thread: u64) -> impl Iterator<Item = u64> {
    (thread * PIECE as u64..SIZE).step_by(4 * PIECE)
}

fn within(volume: &Volume, what: &str) {
    let used = volume.stats().cache.used;
    // What is locked or on its way may go above it.
    assert!(used <= 2 * BOUND, "{what}: {used} bytes of pages");
}

fn pass(volume: &Volume, what: &str, each: impl Fn(&File, u64) + Sync) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let each = &each;
            scope.spawn(move || {
                let file = volume.open_options().read(true).write(true).create(true).open("/large").unwrap();
                for at in places(thread) {
                    each(&file, at);
                    within(volume, what);
                }
            });
        }
    });
    let peak = MEMORY.peak_usage().saturating_sub(before);
    println!("{what}: {} KiB of heap at most", peak >> 10);
    assert!(peak <= HEAP, "{what}: {} KiB of heap", peak >> 10);
}

/// One test in this program: the heap is counted for all of it.
#[test]
fn files_of_a_hundred_times_the_bound() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    for mode in modes().into_iter().filter(|mode| ["default", "unwritten"].contains(&mode.name())) {
        let _watchdog = Watchdog::new(mode.to_string());
        mke2fs(&image, SIZE + (40 << 20), &["-t", "ext4", "-b", "4096", "-J", "size=4"]);
        let volume =
            mode.options().cache_bytes(BOUND as usize).metadata_cache_bytes(1 << 20).open(&image).unwrap();
        pass(&volume, "written", |file, at| file.write_at(&bytes(at), at).unwrap());
        let check = |file: &File, at: u64| {
            let mut found = vec![0; PIECE];
            assert_eq!(file.read_at(&mut found, at).unwrap(), PIECE);
            assert!(found == bytes(at), "{mode}: at {at}");
        };
        pass(&volume, "read", check);
        pass(&volume, "overwritten", |file, at| file.write_at(b"a byte", SIZE - at - 1).unwrap());
        volume.close().unwrap();
        e2fsck_clean(&image);
    }
}
