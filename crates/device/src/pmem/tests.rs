//! Judged by what the file holds, and by `exercise`, the model test of file devices.

use super::*;
use crate::file::{LOCKED_AT_REMOVAL, exercise};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file in memory: /dev/shm is a tmpfs on every Linux.
fn memory_file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let path = dir.path().join("volume");
    (dir, path)
}

#[test]
fn all_operations_in_memory_and_on_a_disk() {
    let disk = tempfile::tempdir().unwrap();
    let (_dir, memory) = memory_file();
    for (path, persistence) in [(memory, Persistence::Process), (disk.path().join("v"), Persistence::Flush)] {
        // No multiple of a page, nor of a cache line.
        let dev = PmemDevice::create(&path, (3 << 20) + 1111).unwrap();
        assert_eq!(dev.mapped.persistence(), persistence);
        exercise(&dev, &path);
        drop(dev);
        let again = PmemDevice::open_read_only(&path).unwrap();
        let mut seen = vec![0; again.size() as usize];
        again.read_at(&mut seen, 0).unwrap();
        assert!(seen == std::fs::read(&path).unwrap());
        assert_eq!(again.write_at(b"x", 0).unwrap_err().errno(), libc::EROFS);
        assert_eq!(again.write_zeroes(0, 1).unwrap_err().errno(), libc::EROFS);
        assert_eq!(again.discard(0, 1).unwrap_err().errno(), libc::EROFS);
    }
}

/// No store finds the host full: the space is there, or the open says that it is not.
#[test]
fn space_is_taken_at_once() {
    use std::os::unix::fs::MetadataExt;
    let (_dir, path) = memory_file();
    drop(FileDevice::create(&path, 1 << 20).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
    drop(PmemDevice::open_read_only(&path).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
    drop(PmemDevice::open(&path).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().blocks() * 512, 1 << 20);
    let e = PmemDevice::create(path.with_extension("huge"), 1 << 50).unwrap_err();
    assert!(e.op == Op::Open && [libc::ENOSPC, libc::EFBIG, libc::ENOMEM].contains(&e.errno()), "{e}");
    assert!(!path.with_extension("huge").exists());
    assert_eq!(LOCKED_AT_REMOVAL.take(), Some(true), "without the lock it may be another's");
}

#[test]
fn one_writer() {
    let (_dir, path) = memory_file();
    let dev = PmemDevice::create(&path, 1 << 20).unwrap();
    assert_eq!(FileDevice::open(&path).unwrap_err().op, Op::Lock);
    assert_eq!(PmemDevice::open_read_only(&path).unwrap_err().op, Op::Lock);
    // A slice outlives the device, and keeps the lock.
    let slice = dev.mapped.lend(0, 4096).unwrap();
    drop(dev);
    assert_eq!(FileDevice::open(&path).unwrap_err().op, Op::Lock);
    assert!(slice.iter().all(|&b| b == 0));
    drop(slice);
    FileDevice::open(&path).unwrap();
}

#[test]
fn ranges_end_at_the_size() {
    let (_dir, path) = memory_file();
    let dev = PmemDevice::create(&path, 5000).unwrap();
    for (offset, len) in [(5000, 1), (4999, 2), (u64::MAX, 1), (u64::MAX - 1, 4)] {
        assert_eq!(dev.read_at(&mut vec![0; len], offset).unwrap_err().op, Op::Read);
        assert_eq!(dev.write_at(&vec![0; len], offset).unwrap_err().op, Op::Write);
        assert_eq!(dev.write_zeroes(offset, len as u64).unwrap_err().op, Op::Write);
        assert_eq!(dev.discard(offset, len as u64).unwrap_err().op, Op::Discard);
        assert!(dev.mapped.lend(offset, len).is_none());
    }
    assert!(dev.mapped.lend(5000, 0).is_some());
}

#[test]
fn what_is_lent_is_not_written() {
    let (_dir, path) = memory_file();
    let dev = PmemDevice::create(&path, 1 << 20).unwrap();
    dev.write_at(&[7; 10_000], 0).unwrap();
    let slice = dev.mapped.lend(1000, 1000).unwrap();
    let other = dev.mapped.lend(1500, 4000).unwrap();
    for (offset, len) in [(0, 1001), (1999, 1), (1200, 10), (0, 10_000), (5499, 9)] {
        let e = dev.write_at(&vec![1; len], offset).unwrap_err();
        assert_eq!((e.op, e.errno()), (Op::Write, libc::EBUSY), "{offset}");
        assert_eq!(dev.write_zeroes(offset, len as u64).unwrap_err().errno(), libc::EBUSY);
    }
    dev.write_at(&[1; 1000], 0).unwrap();
    dev.write_at(&[1; 1000], 5500).unwrap();
    assert!(slice.iter().chain(&*other).all(|&b| b == 7));
    drop(slice);
    dev.write_at(&[1; 500], 1000).unwrap();
    assert_eq!(dev.write_at(&[1; 501], 1000).unwrap_err().errno(), libc::EBUSY);
    drop(other);
    dev.write_at(&[1; 5000], 1000).unwrap();

    let all: Vec<Lent> = std::iter::from_fn(|| dev.mapped.lend(0, 1)).collect();
    assert_eq!(all.len(), 64);
    drop(all);
    assert!(dev.mapped.lend(0, 1).is_some());
}

/// A slice never changes under its reader, and both get on: however the threads are scheduled, the
/// rounds end only when something was lent and something was written.
#[test]
fn slices_among_writers() {
    let (_dir, path) = memory_file();
    let dev = PmemDevice::create(&path, 64 << 10).unwrap();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let lender = Arc::new(scope.spawn(|| {
            let (mut lent, mut round) = (0_u64, 0_u64);
            while round < 20_000 || lent == 0 || written.load(Ordering::Relaxed) == 0 {
                if let Some(slice) = dev.mapped.lend(round * 512 % (60 << 10), 4096) {
                    let first = slice.to_vec();
                    assert!(*slice == *first, "changed while lent");
                    lent += 1;
                }
                round += 1;
            }
        }));
        for id in 0..3_u8 {
            let (dev, written, lender) = (&dev, &written, Arc::clone(&lender));
            scope.spawn(move || {
                let mut round = 0_u64;
                while !lender.is_finished() {
                    let stamp = [round as u8 ^ id; 4096];
                    match dev.write_at(&stamp, round * 4096 % (64 << 10)) {
                        Ok(()) => _ = written.fetch_add(1, Ordering::Relaxed),
                        Err(e) => assert_eq!(e.errno(), libc::EBUSY),
                    }
                    round += 1;
                }
            });
        }
    });
}
