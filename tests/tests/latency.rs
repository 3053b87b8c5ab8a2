//! Reads of a walk over a volume that nothing has cached, counted: on a device with latency each
//! round of them takes as long as one read.

use lanefs::{FileType, OpenOptions, Volume, mkfs};
use lanefs_device::{BlockDevice, MemDevice, ReadOp, Result, forward_to};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts reads, and the rounds that they come in.
#[derive(Debug)]
struct Counting {
    below: MemDevice,
    rounds: AtomicU64,
    bytes: AtomicU64,
}

impl Counting {
    fn note(&self, bytes: usize) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl BlockDevice for Counting {
    forward_to!(below: size read_only write_at write_batch flush discard write_zeroes);

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
    for (dirs, files) in [(100, 200), (1, 20_000)] {
        let device = MemDevice::new(256 << 20);
        mkfs::format(&device, &mkfs::Options::default()).unwrap();
        let counting = Counting { below: device, rounds: 0.into(), bytes: 0.into() };
        let device = Arc::new(counting);
        let volume = OpenOptions::new().write(true).open_device(device.clone()).unwrap();
        for dir in 0..dirs {
            volume.create_dir(format!("/d{dir}")).unwrap();
            for file in 0..files {
                volume.write(format!("/d{dir}/file-number-{file}"), b"").unwrap();
            }
        }
        volume.close().unwrap();
        let volume = Volume::open_device(device.clone()).unwrap();
        let count = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let (opened, _) = (count(&device.rounds), count(&device.bytes));
        assert_eq!(walk(&volume, "/"), dirs * (files + 1) + 1);
        let (rounds, bytes) = (count(&device.rounds), count(&device.bytes));
        println!("{dirs} x {files}: {opened} rounds to open, {rounds} to walk, {} KiB", bytes >> 10);
        // 20,000 inodes are 1250 blocks of the tables. Each directory is a round.
        assert!(rounds < 200 + dirs as u64, "{rounds} rounds");
        assert!(bytes < 16 << 20, "{bytes} bytes");
    }
}
