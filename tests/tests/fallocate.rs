//! The kernel as judge of fallocate: the same random writes, truncations and calls of fallocate by lanefs and
//! by the kernel's ext4, on volumes of each kind. Every call must say the same; then size, content and
//! holes must be the same, also as the kernel reads them on the volume that lanefs changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs::{FallocMode, File, Volume};
use lanefs_sim::seed_from_env;
use lanefs_tests::{LoopMount, e2fsck_clean, mke2fs, modes};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Block size, and what mke2fs is told.
const KINDS: [(u64, &[&str]); 4] = [
    (4096, &["-t", "ext4", "-b", "4096"]),
    (1024, &["-t", "ext4", "-b", "1024"]),
    (1024, &["-t", "ext3", "-b", "1024"]),
    (2048, &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum,^64bit"]),
];

const MODES: [(FallocMode, FallocateFlags); 7] = [
    (FallocMode::Allocate, FallocateFlags::empty()),
    (FallocMode::KeepSize, FallocateFlags::KEEP_SIZE),
    (FallocMode::PunchHole, FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE)),
    (FallocMode::ZeroRange, FallocateFlags::ZERO_RANGE),
    (FallocMode::ZeroRangeKeepSize, FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE)),
    (FallocMode::CollapseRange, FallocateFlags::COLLAPSE_RANGE),
    (FallocMode::InsertRange, FallocateFlags::INSERT_RANGE),
];

/// The largest file.
const MAX: u64 = 600_000;

#[derive(Debug, Clone, Copy)]
enum Call {
    Write(u64, usize, u8),
    Truncate(u64),
    Falloc(usize, u64, u64),
    Sync,
}

fn draw(rng: &mut StdRng, size: u64, block: u64) -> Call {
    let place = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => rng.random_range(0..=MAX / block) * block,
        1 => rng.random_range(0..=size / block) * block,
        2 => size.saturating_sub(rng.random_range(0..3 * block)),
        _ => rng.random_range(0..MAX),
    };
    match rng.random_range(0..10) {
        0..4 => Call::Write(place(rng), rng.random_range(1..30_000), rng.random_range(1..=255)),
        4 => Call::Truncate(place(rng)),
        5 => Call::Sync,
        _ => {
            let mode = rng.random_range(0..MODES.len());
            let (at, to) = (place(rng), place(rng));
            let (mut at, mut len) = (at.min(to), at.abs_diff(to));
            if mode >= 5 && rng.random_range(0..8) > 0 {
                (at, len) = (at / block * block, len / block * block);
                if mode == 6 {
                    len = len.min((MAX - size.min(MAX)) / block * block);
                }
            }
            Call::Falloc(mode, at, len)
        }
    }
}

/// What a call said: an errno.
fn by_kernel(file: &fs::File, call: Call) -> Result<(), i32> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap();
    match call {
        Call::Write(at, len, fill) => file.write_all_at(&vec![fill; len], at).map_err(errno),
        Call::Truncate(len) => file.set_len(len).map_err(errno),
        Call::Sync => file.sync_all().map_err(errno),
        Call::Falloc(mode, at, len) => {
            fallocate(file, MODES[mode].1, at, len).map_err(rustix::io::Errno::raw_os_error)
        }
    }
}

fn by_lanefs(file: &File, call: Call) -> Result<(), i32> {
    let done = match call {
        Call::Write(at, len, fill) => file.write_at(at, &vec![fill; len]),
        Call::Truncate(len) => file.set_len(len),
        Call::Sync => file.sync_all(),
        Call::Falloc(mode, at, len) => file.fallocate(MODES[mode].0, at, len),
    };
    done.map_err(|e| e.errno())
}

/// What there is to see of a file: where its data lies, and all of it.
#[derive(PartialEq, Eq)]
struct Seen {
    data: Vec<(u64, u64)>,
    content: Vec<u8>,
}

/// The runs of data, by the two kinds of seek.
fn runs(mut data: impl FnMut(u64) -> Option<u64>, mut hole: impl FnMut(u64) -> u64) -> Vec<(u64, u64)> {
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Some(start) = data(at) {
        at = hole(start);
        runs.push((start, at));
    }
    runs
}

fn seen_by_kernel(image: &Path) -> Seen {
    let mount = LoopMount::new(image, "ro");
    let file = fs::File::open(mount.path().join("a")).unwrap();
    // Before anything is read: what is cached counts as data.
    let data = runs(|at| seek(&file, SeekFrom::Data(at)).ok(), |at| seek(&file, SeekFrom::Hole(at)).unwrap());
    let content = fs::read(mount.path().join("a")).unwrap();
    drop(file);
    mount.unmount();
    Seen { data, content }
}

fn seen_by_lanefs(image: &Path) -> Seen {
    let volume = Volume::open(image).unwrap();
    let file = volume.open_file("/a").unwrap();
    let data = runs(|at| file.seek_data(at).ok(), |at| file.seek_hole(at).unwrap());
    Seen { data, content: volume.read("/a").unwrap() }
}

fn same(a: &Seen, b: &Seen, what: &str) {
    assert_eq!(a.content.len(), b.content.len(), "{what}: size");
    let differs = a.content.iter().zip(&b.content).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
    assert_eq!(a.data, b.data, "{what}: where data lies");
}

fn run(kind: usize, seed: u64, options: lanefs::OpenOptions, rounds: usize) {
    let (block, args) = KINDS[kind];
    let dir = tempfile::tempdir().unwrap();
    let (kernel, lane) = (dir.path().join("kernel"), dir.path().join("lane"));
    mke2fs(&kernel, 24 << 20, args);
    mke2fs(&lane, 24 << 20, args);
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..rounds {
        let what = format!("kind {kind}, seed {seed:#x}, round {round}");
        let mount = LoopMount::new(&kernel, "");
        // Else it writes zeros to short runs of unwritten blocks, and they count as data.
        let device = mount.device().rsplit('/').next().unwrap();
        fs::write(format!("/sys/fs/ext4/{device}/extent_max_zeroout_kb"), "0").unwrap();
        let host = fs::File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(mount.path().join("a"))
            .unwrap();
        let volume = options.clone().open(&lane).unwrap();
        let file = volume.open_options().read(true).write(true).create(true).open("/a").unwrap();
        let mut log = Vec::new();
        for _ in 0..60 {
            let call = draw(&mut rng, file.metadata().len(), block);
            log.push(call);
            let (theirs, ours) = (by_kernel(&host, call), by_lanefs(&file, call));
            assert_eq!(ours, theirs, "{what}: {call:?} after {log:?}");
            assert_eq!(file.metadata().len(), host.metadata().unwrap().len(), "{what}: {log:?}");
        }
        drop((host, file));
        mount.unmount();
        volume.close().unwrap();
        e2fsck_clean(&lane);
        let expected = seen_by_kernel(&kernel);
        same(&seen_by_kernel(&lane), &expected, &format!("{what}: as the kernel sees it: {log:?}"));
        same(&seen_by_lanefs(&lane), &expected, &format!("{what}: {log:?}"));
    }
}

#[test]
fn each_call_does_what_the_kernel_does() {
    let seed = seed_from_env("LANEFS_SEED").value();
    for kind in 0..KINDS.len() {
        for mode in modes() {
            run(kind, seed + kind as u64, mode.options(), 3);
        }
    }
}
