//! Rounds of I/O, counted: on a device with latency each round takes as long as one request.

use lanefs::{FileType, OpenOptions, Volume, mkfs};
use lanefs_device::{BlockDevice, CowDevice, MemDevice, ReadOp, Result, WriteOp, forward_to};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts requests by the rounds that they come in.
#[derive(Debug)]
struct Counting {
    below: MemDevice,
    /// Rounds of reads, and their bytes.
    rounds: AtomicU64,
    bytes: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

/// What a device counted since the last time.
#[derive(Debug)]
struct Rounds {
    reads: u64,
    bytes: u64,
    writes: u64,
    flushes: u64,
}

impl Counting {
    fn new(below: MemDevice) -> Arc<Self> {
        let [rounds, bytes, writes, flushes] = Default::default();
        Arc::new(Self { below, rounds, bytes, writes, flushes })
    }

    fn formatted() -> Arc<Self> {
        let device = MemDevice::new(256 << 20);
        mkfs::format(&device, &mkfs::Options::default()).unwrap();
        Self::new(device)
    }

    fn note(&self, bytes: usize) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn take(&self) -> Rounds {
        let count = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let (reads, bytes) = (count(&self.rounds), count(&self.bytes));
        Rounds { reads, bytes, writes: count(&self.writes), flushes: count(&self.flushes) }
    }
}

impl BlockDevice for Counting {
    forward_to!(below: size read_only discard write_zeroes);

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.write_at(data, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.write_batch(ops)
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.below.flush()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.note(buf.len());
        self.below.read_at(buf, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.note(ops.iter().map(|op| op.buf.len()).sum());
        self.below.read_batch(ops)
    }
}

/// Lists all, with the metadata of each name. Returns the number of names.
fn walk(volume: &Volume, dir: &str) -> usize {
    let mut names = 0;
    for entry in volume.read_dir(dir).unwrap() {
        let path = format!("{}/{}", dir.trim_end_matches('/'), entry.name.to_string_lossy());
        let meta = volume.symlink_metadata(&path).unwrap();
        names += 1;
        if meta.file_type() == FileType::Directory {
            names += walk(volume, &path);
        }
    }
    names
}

#[test]
fn a_walk_of_many_files_is_few_rounds() {
    for (dirs, files, most) in [(100, 200, 220), (1, 20_000, 140)] {
        let device = Counting::formatted();
        let volume = OpenOptions::new().write(true).open_device(device.clone()).unwrap();
        for dir in 0..dirs {
            volume.create_dir(format!("/d{dir}")).unwrap();
            for file in 0..files {
                volume.write(format!("/d{dir}/file-number-{file}"), b"").unwrap();
            }
        }
        volume.close().unwrap();
        device.take();
        let volume = Volume::open_device(device.clone()).unwrap();
        let opened = device.take().reads;
        assert_eq!(walk(&volume, "/"), dirs * (files + 1) + 1);
        let Rounds { reads, bytes, .. } = device.take();
        println!("{dirs} x {files}: {opened} rounds to open, {reads} to walk, {} KiB", bytes >> 10);
        // 20,000 inodes are 1250 blocks of the tables. Each directory is a round.
        assert!(reads < most, "{reads} rounds");
        assert!(bytes < 16 << 20, "{bytes} bytes");
    }
}

const EXTENTS: u64 = 20_000;

/// Returns a volume with the file `/f` of so many extents.
fn with_a_fragmented_file() -> Arc<Counting> {
    let device = Counting::formatted();
    let volume = OpenOptions::new().write(true).open_device(device.clone()).unwrap();
    let file = volume.create_file("/f").unwrap();
    for n in 0..EXTENTS {
        file.write_at(b"x", n * 8192).unwrap();
    }
    drop(file);
    volume.close().unwrap();
    device
}

#[test]
fn the_deletion_of_a_fragmented_file_is_few_rounds() {
    let device = with_a_fragmented_file();
    let options = OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
    let volume = options.open_device(device.clone()).unwrap();
    device.take();
    volume.remove_file("/f").unwrap();
    let Rounds { reads, bytes, .. } = device.take();
    println!("deletion of {EXTENTS} extents: {reads} rounds, {} KiB", bytes >> 10);
    // A few for the nodes, of which there are 239, and one for the bitmap of each group.
    assert!(reads <= 40, "{reads} rounds");
    assert!(bytes < 1 << 20, "{bytes} bytes");
    volume.close().unwrap();
}

#[test]
fn the_map_of_a_fragmented_file_is_few_rounds() {
    let device = with_a_fragmented_file();
    let volume = Volume::open_device(device.clone()).unwrap();
    volume.metadata("/f").unwrap();
    device.take();
    assert_eq!(volume.extents("/f").unwrap().extents, EXTENTS);
    let Rounds { reads, bytes, .. } = device.take();
    println!("map of {EXTENTS} extents: {reads} rounds, {} KiB", bytes >> 10);
    // A node has 84 extents, and a round 128 nodes of one parent.
    assert!(reads <= 5, "{reads} rounds");
    assert!(bytes < 1 << 20, "{bytes} bytes");

    // A lookup in the middle reads its own nodes alone.
    let volume = Volume::open_device(device.clone()).unwrap();
    let file = volume.open_file("/f").unwrap();
    device.take();
    assert_eq!(file.fiemap(80_011 * 1024..80_012 * 1024, 1).unwrap().len(), 0);
    let Rounds { reads, bytes, .. } = device.take();
    assert!(reads <= 2 && bytes <= 2 * 1024, "{reads} rounds, {bytes} bytes");
}

#[test]
fn a_recovery_is_few_rounds() {
    const COMMITS: u64 = 300;
    for block_size in [4096, 1024] {
        let device = MemDevice::new(256 << 20);
        mkfs::format(&device, &mkfs::Options { block_size: Some(block_size), ..Default::default() }).unwrap();
        let device = Counting::new(device);
        let options = || OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
        let volume = options().open_device(device.clone()).unwrap();
        for n in 0..COMMITS {
            volume.write(format!("/file-{n}"), b"").unwrap();
            volume.sync().unwrap();
        }
        let cut = Counting::new(MemDevice::from_bytes(device.below.to_bytes()));
        drop(volume);
        let volume = options().open_device(cut.clone()).unwrap();
        let Rounds { reads, writes, flushes, .. } = cut.take();
        let replayed = volume.info().recovery.journal;
        println!("{replayed:?}: {reads} rounds of reads, {writes} of writes, {flushes} flushes");
        assert!(u64::from(replayed.transactions) >= COMMITS, "{replayed:?}");
        assert!(reads < 60 && writes < 10, "{reads} rounds of reads, {writes} of writes");
        volume.close().unwrap();
    }
}

/// `lanefs commit` of scattered blocks.
#[test]
fn a_fold_of_an_overlay_into_its_base_is_few_rounds() {
    const BLOCKS: u64 = 1000;
    let base = Counting::new(MemDevice::new(64 << 20));
    let size = CowDevice::top_size(base.size()).unwrap();
    let top = Arc::new(MemDevice::new(size as usize));
    let overlay = CowDevice::new(base.clone(), top.clone(), "base").unwrap();
    for n in 0..BLOCKS {
        overlay.write_at(&[n as u8 | 1; 4096], n * 3 * 4096).unwrap();
    }
    overlay.flush().unwrap();
    drop(overlay);
    base.take();
    assert_eq!(CowDevice::commit(&*base, top, "base", None).unwrap(), BLOCKS * 4096);
    let Rounds { reads, writes, flushes, .. } = base.take();
    println!("a fold of {BLOCKS} blocks: {reads} rounds of reads, {writes} of writes, {flushes} flushes");
    // 256 blocks each; the superblock before, for the mark, and behind.
    assert!(writes <= 4 && flushes == 1 && reads <= 3, "{reads} reads, {writes} writes, {flushes} flushes");
    let bytes = base.below.to_bytes();
    assert!((0..BLOCKS).all(|n| bytes[n as usize * 3 * 4096..][..4096] == [n as u8 | 1; 4096]));
}

/// A file is made, written and synced: its content goes with the log blocks.
#[test]
fn a_file_is_durable_in_two_rounds_of_writes() {
    let device = Counting::formatted();
    let options = OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
    let volume = options.open_device(device.clone()).unwrap();
    let make = |n: u64| {
        let file = volume.create_file(format!("/file-{n}")).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        file.sync_all().unwrap();
    };
    (0..10).for_each(make);
    device.take();
    (10..110).for_each(make);
    let Rounds { reads, writes, flushes, .. } = device.take();
    println!("100 files: {reads} rounds of reads, {writes} of writes, {flushes} flushes");
    assert!(writes <= 200 && flushes <= 200, "{writes} rounds of writes, {flushes} flushes");
    volume.close().unwrap();
}

#[test]
fn a_commit_and_a_checkpoint_are_few_rounds() {
    let device = Counting::formatted();
    let options = OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
    let volume = options.open_device(device.clone()).unwrap();
    let fill = |dir: &str| {
        volume.create_dir(dir).unwrap();
        (0..5000).for_each(|n| volume.write(format!("{dir}/file-{n}"), b"").unwrap());
    };
    // The first of a log writes its superblock too.
    fill("/first");
    volume.sync().unwrap();
    fill("/second");
    device.take();
    volume.sync().unwrap();
    let Rounds { writes, flushes, .. } = device.take();
    println!("a commit: {writes} rounds of writes, {flushes} flushes");
    // The blocks in one, and the commit block behind a flush.
    assert!(writes <= 2 && flushes <= 2, "{writes} rounds of writes, {flushes} flushes");
    fill("/third");
    volume.sync().unwrap();
    device.take();
    volume.close().unwrap();
    let Rounds { writes, flushes, .. } = device.take();
    println!("a close: {writes} rounds of writes, {flushes} flushes");
    // Home blocks, the log's tail, the superblock, and the log again.
    assert!(writes <= 8, "{writes} rounds of writes");
}
