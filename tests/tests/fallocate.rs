//! The kernel as judge of fallocate: the same random writes, truncations and calls of fallocate by
//! lanefs and by the kernel's ext4, on volumes of each kind. Every call must say the same; then
//! size, content and holes must be the same, also as the kernel reads them on the volume that
//! lanefs changed. A run tries a third of the kinds and modes, by the day; with `LANEFS_LONG=3`
//! all.

use lanefs::{FallocMode, File, Volume};
use lanefs_sim::seed_from_env;
use lanefs_tests::{LoopMount, debugfs, e2fsck_clean, mke2fs, modes, open, slice, writing};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

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
        Call::Write(at, len, fill) => file.write_at(&vec![fill; len], at),
        Call::Truncate(len) => file.set_len(len),
        Call::Sync => file.sync_all(),
        Call::Falloc(mode, at, len) => file.fallocate(MODES[mode].0, at, len),
    };
    done.map_err(|e| e.errno())
}

/// The visible state of a file: where its data lies, and all of it.
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
    let volume = open(writing(), image).unwrap();
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
        mount.keep_unwritten();
        let host = fs::File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(mount.path().join("a"))
            .unwrap();
        let volume = open(options.clone(), &lane).unwrap();
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
    let kinds = (0..KINDS.len()).flat_map(|kind| modes().into_iter().map(move |mode| (kind, mode)));
    for (kind, mode) in slice(kinds, 3) {
        run(kind, seed + kind as u64, mode.options(), 3);
    }
}

/// A punch that goes beyond the end takes what is preallocated in the end's page, also where it was
/// not asked to go so far, and none behind that. Where there is nothing to punch, the file is
/// stamped all the same.
#[test]
fn a_punch_at_the_end_goes_as_far_as_the_kernels() {
    let (block, args) = KINDS[1];
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, 24 << 20, args);
    let calls =
        [Call::Write(0, 10_000, 1), Call::Falloc(1, 0, 40 * block), Call::Falloc(2, 9 * block, block + 1)];
    let mount = LoopMount::new(&image, "");
    let host = fs::File::create(mount.path().join("kernel")).unwrap();
    calls.iter().for_each(|call| by_kernel(&host, *call).unwrap());
    drop(host);
    mount.unmount();
    let volume = open(writing(), &image).unwrap();
    let file = volume.create_file("/lanefs").unwrap();
    calls.iter().for_each(|call| by_lanefs(&file, *call).unwrap());
    let mapped = |file: &File| -> Vec<(u64, u64, bool)> {
        let map = file.fiemap(0..u64::MAX, usize::MAX).unwrap();
        map.iter().map(|e| (e.logical / block, e.len / block, e.unwritten)).collect()
    };
    assert_eq!(mapped(&file), [(0, 9, false), (12, 28, true)]);
    assert_eq!(mapped(&volume.open_file("/kernel").unwrap()), mapped(&file));
    let long_ago = lanefs::SetTime::At(lanefs::Timestamp { sec: 1, nsec: 0 });
    file.set_attr(&lanefs::SetAttr { mtime: Some(long_ago), ..lanefs::SetAttr::default() }).unwrap();
    by_lanefs(&file, Call::Falloc(2, 50_000, 1000)).unwrap();
    assert_ne!(file.metadata().mtime().sec, 1);
    // As copy_file_range(2), which looks at the place before it looks at how much there is.
    assert!(matches!(file.copy_range(1 << 40, &file, 1 << 50, 1), Err(lanefs::Error::FileTooBig)));
}

/// A file of data, holes and unwritten blocks, and one that has other bytes.
fn two_files(volume: &Volume) -> (File, File) {
    let options = volume.open_options().read(true).write(true).create(true);
    let (a, b) = (options.open("/a").unwrap(), options.open("/b").unwrap());
    a.write_at(&[1; 50_000], 0).unwrap();
    a.write_at(&[2; 70_000], 300_000).unwrap();
    a.fallocate(FallocMode::Allocate, 500_000, 100_000).unwrap();
    b.write_at(&[9; 200_000], 0).unwrap();
    (a, b)
}

#[test]
fn copies_have_the_bytes_and_the_holes() {
    for (_, args) in KINDS.iter().filter(|(_, args)| args[1] == "ext4") {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        mke2fs(&image, 24 << 20, args);
        let volume = open(writing(), &image).unwrap();
        let (a, b) = two_files(&volume);
        let mut expected = vec![9; 200_000];
        let from = volume.read("/a").unwrap();
        for (offset, to, len) in [(0, 0, 10), (10_001, 4095, 123_456), (40_000, 150_000, 1 << 30)] {
            let n = a.copy_range(offset, &b, to, len).unwrap();
            let piece = &from[offset as usize..(offset + len).min(600_000) as usize];
            assert_eq!(n, piece.len() as u64);
            expected.resize(expected.len().max(to as usize + piece.len()), 0);
            expected[to as usize..to as usize + piece.len()].copy_from_slice(piece);
            assert!(volume.read("/b").unwrap() == expected, "{args:?} {offset} {to} {len}");
        }
        assert!(b.seek_hole(0).unwrap() < 100_000 && b.metadata().sectors() < 2 * 200_000 / 512);
        // In one file, side by side; not over each other.
        assert_eq!(a.copy_range(0, &a, 50_000, 50_000).unwrap(), 50_000);
        assert!(matches!(a.copy_range(0, &a, 49_999, 50_000), Err(lanefs::Error::Invalid(_))));
        assert_eq!(a.copy_range(600_000, &b, 0, 5).unwrap(), 0);
        assert!(volume.read("/a").unwrap()[..100_000].iter().all(|b| *b == 1));
        drop((a, b));
        volume.close().unwrap();
        e2fsck_clean(&image);
    }
}

/// debugfs prints each extent: logical and physical blocks, and whether it is unwritten.
#[test]
fn fiemap_says_what_debugfs_sees() {
    for (block, args) in KINDS.iter().filter(|(_, args)| args[1] == "ext4") {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        mke2fs(&image, 24 << 20, args);
        let volume = open(writing(), &image).unwrap();
        let (a, _b) = two_files(&volume);
        let map = a.fiemap(0..u64::MAX, usize::MAX).unwrap();
        assert!(map.len() >= 3 && map.iter().filter(|e| e.last).count() == 1 && map.last().unwrap().last);
        let inside = a.fiemap(300_000..300_001, usize::MAX).unwrap();
        assert_eq!(inside.len(), 1);
        assert_eq!(
            (inside[0].logical, inside[0].len, inside[0].last),
            (300_000 / block * block, *block, false)
        );
        assert_eq!(a.fiemap(100_000..200_000, usize::MAX).unwrap(), []);
        // In parts, each from where the one before ended, it is the same.
        let mut parts = Vec::new();
        while parts.last().is_none_or(|e: &lanefs::FiemapExtent| !e.last) {
            let from = parts.last().map_or(0, |e| e.logical + e.len);
            let part = a.fiemap(from..u64::MAX, 1).unwrap();
            assert_eq!(part.len(), 1);
            parts.extend(part);
        }
        assert_eq!(parts, map);
        assert_eq!(a.fiemap(0..u64::MAX, 0).unwrap(), []);
        drop((a, _b));
        volume.close().unwrap();
        let mut said = Vec::new();
        for e in &map {
            for n in 0..e.len / block {
                said.push(((e.logical / block + n), e.physical / block + n, e.unwritten));
            }
        }
        // Lines of leaves: "0/ 0   1/  3     0 -    12  5000 -  5012     13 Uninit"
        let dump = debugfs(&image, "dump_extents -l a");
        let mut theirs = Vec::new();
        for line in dump.lines().skip(1) {
            let numbers: Vec<u64> =
                line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
            let &[_, _, _, _, from, to, start, _, _] = &numbers[..] else { panic!("{dump}") };
            theirs.extend((from..=to).map(|n| (n, start + n - from, line.contains("Uninit"))));
        }
        assert_eq!(said, theirs, "{dump}");
    }
}

#[test]
fn what_would_wait_says_so() {
    let device = std::sync::Arc::new(lanefs_device::MemDevice::new(32 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(4096), ..lanefs_mkfs::Options::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    let options = lanefs::OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(device).unwrap();
    let options = volume.open_options().read(true).write(true).create(true);
    let (file, direct) = (options.open("/a").unwrap(), options.clone().direct(true).open("/a").unwrap());
    let append = volume.open_options().append(true).open("/a").unwrap();
    let waits = |done: lanefs::Result<usize>| matches!(done, Err(lanefs::Error::WouldBlock));
    let mut buf = [0; 8192];
    assert_eq!(file.try_read_at(&mut buf, 0).unwrap(), 0);
    assert!(waits(file.try_write_at(b"a", 0)), "a hole needs a place");
    file.write_at(&[1; 6000], 0).unwrap();
    assert_eq!(file.try_write_at(&[2; 100], 10).unwrap(), 100);
    assert_eq!(file.try_write_at(&[3; 10], 5999).unwrap(), 10, "in the last block the file grows");
    assert_eq!(append.try_write_at(&[4; 3000], 0).unwrap(), 8192 - 6009, "up to the end of the block");
    assert!(waits(append.try_write_at(b"a", 0)));
    assert_eq!(file.try_read_at(&mut buf, 0).unwrap(), 8192);
    assert_eq!((buf[9], buf[10], buf[109], buf[110], buf[6008], buf[6009]), (1, 2, 2, 1, 3, 4));
    assert!(waits(direct.try_read_at(&mut buf, 0)), "what is dirty is newer");
    file.sync_all().unwrap();
    assert_eq!(direct.try_read_at(&mut buf, 0).unwrap(), 8192);
    assert_eq!(direct.try_write_at(&[7; 4096], 4096).unwrap(), 4096);
    assert!(waits(file.try_read_at(&mut buf, 4096)), "dropped from the cache");
    assert_eq!(file.read_at(&mut buf, 4096).unwrap(), 4096);
    assert_eq!(buf[..4096], [7; 4096]);
    assert!(waits(direct.try_write_at(&[7; 4096], 8192)));
}
