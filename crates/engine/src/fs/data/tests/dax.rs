//! Volumes on memory: no page cache, slices of files, and the same guarantees.

use super::{churn, run};
use crate::{Error, File, Locking, OpenOptions, Volume};
use lanefs_device::{BlockDevice, PmemDevice};
use lanefs_format::InodeFlags;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const BLOCK: usize = 4096;

/// Returns a volume in a file of memory, and one in a file of a disk.
fn volumes() -> Vec<(TempDir, PathBuf)> {
    let dirs = [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()];
    dirs.into_iter()
        .map(|dir| {
            let path = dir.path().join("volume");
            let (code, text) =
                run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", path.to_str().unwrap(), "16M"]);
            assert_eq!(code, 0, "{text}");
            (dir, path)
        })
        .collect()
}

fn open(path: &Path, options: OpenOptions) -> Volume {
    // Without a timer: the counts are those of the calls alone.
    let options = options.write(true).commit_interval(Duration::ZERO);
    options.open_device(Arc::new(PmemDevice::open(path).unwrap())).unwrap()
}

fn fsck(path: &Path) {
    let (code, text) = run("e2fsck", &["-fn", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
}

fn file(volume: &Volume, name: &str, direct: bool) -> File {
    volume.open_options().read(true).write(true).create(true).direct(direct).open(name).unwrap()
}

#[test]
fn random_writes_without_a_page_cache_and_with_one() {
    for (seed, (_dir, path)) in volumes().into_iter().enumerate() {
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let mut model = Vec::new();
        for dax in [true, false, true] {
            let volume = open(&path, OpenOptions::new().dax(dax));
            let f = file(&volume, "/f", false);
            churn(f.inode(), &mut model, &mut rng, 60, 2_000_000);
            f.sync_all().unwrap();
            let stats = volume.stats();
            assert_eq!(stats.cache.used == 0, dax);
            assert_eq!(stats.times.read.count == 0 && stats.times.write.count == 0, dax);
            drop(f);
            volume.close().unwrap();
            fsck(&path);
        }
        let volume = open(&path, OpenOptions::new());
        assert!(volume.read("/f").unwrap() == model);
    }
}

#[test]
fn overwrites_start_no_handle() {
    for (_dir, path) in volumes() {
        let volume = open(&path, OpenOptions::new());
        for direct in [false, true] {
            let f = file(&volume, "/f", direct);
            f.write_at(&[1; 16 * BLOCK], 0).unwrap();
            f.sync_all().unwrap();
            let before = volume.stats();
            for i in 0..1000 {
                f.write_at(b"small", i * 61).unwrap();
            }
            f.sync_data().unwrap();
            let after = volume.stats();
            assert_eq!(after.journal.handles, before.journal.handles);
            assert_eq!(after.counts.overwrites - before.counts.overwrites, 1000);
            assert_eq!(after.journal.commits, before.journal.commits);
        }
    }
}

#[test]
fn without_waiting_too() {
    let (_dir, path) = volumes().swap_remove(0);
    let volume = open(&path, OpenOptions::new());
    let f = file(&volume, "/f", false);
    f.write_at(&[1; 4 * BLOCK], 0).unwrap();
    assert_eq!(f.try_write_at(&[2; BLOCK], 100).unwrap(), BLOCK);
    let mut buf = [0; BLOCK];
    assert_eq!(f.try_read_at(&mut buf, 100).unwrap(), BLOCK);
    assert!(buf.iter().all(|b| *b == 2));
    assert!(matches!(f.try_write_at(&[2; BLOCK + 1], 3 * BLOCK as u64), Err(Error::WouldBlock)));
    let slice = f.map(0, BLOCK).unwrap().unwrap();
    assert!(matches!(f.try_write_at(b"x", 0), Err(Error::WouldBlock)));
    let direct = file(&volume, "/f", true);
    assert!(matches!(direct.try_write_at(b"x", 0), Err(Error::WouldBlock)));
    assert!(slice[..100].iter().all(|b| *b == 1));
    drop(slice);
    assert_eq!(direct.try_write_at(b"x", 0).unwrap(), 1);
    assert_eq!(volume.stats().cache.used, 0);
}

/// Every reader must see both blocks of one write, or of another.
#[test]
fn readers_see_all_of_a_write_or_none() {
    for locking in [Locking::Inode, Locking::RangeMutex, Locking::Range] {
        let (_dir, path) = volumes().swap_remove(0);
        let volume = open(&path, OpenOptions::new().locking(locking));
        let f = file(&volume, "/f", false);
        f.write_at(&[0; 16 * BLOCK], 0).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for id in 0..2_u8 {
                let (f, stop) = (&f, &stop);
                scope.spawn(move || {
                    let mut n = id;
                    while !stop.load(Ordering::Relaxed) {
                        n = n.wrapping_add(2);
                        f.write_at(&[n; 8 * BLOCK], 1000).unwrap();
                    }
                });
            }
            let mut seen = std::collections::BTreeSet::new();
            let mut buf = vec![0; 8 * BLOCK];
            let (mut whole, mut round) = (true, 0);
            // Readers and writers both make progress, however the threads are scheduled.
            while whole && (round < 3000 || seen.len() < 2) {
                f.read_at(&mut buf, 1000).unwrap();
                seen.insert(buf[0]);
                whole = buf.iter().all(|b| *b == buf[0]);
                round += 1;
            }
            stop.store(true, Ordering::Relaxed);
            assert!(whole, "{locking:?}: a mixture");
        });
    }
}

#[test]
fn what_can_be_mapped_is_what_is_there() {
    for (_dir, path) in volumes() {
        let volume = open(&path, OpenOptions::new());
        let f = file(&volume, "/f", false);
        let content: Vec<u8> = (0..20 * BLOCK).map(|i| (i / 7) as u8).collect();
        f.write_at(&content, 0).unwrap();
        for (offset, len) in [(0, 20 * BLOCK), (1, 1), (5000, 3 * BLOCK), (19 * BLOCK, BLOCK)] {
            let slice = f.map(offset as u64, len).unwrap().unwrap();
            assert!(*slice == content[offset..offset + len]);
        }
        assert!(f.map(0, 20 * BLOCK + 1).unwrap().is_none(), "beyond the end");
        assert!(f.map(20 * BLOCK as u64, 1).unwrap().is_none());
        assert!(f.map(u64::MAX, 2).unwrap().is_none());
        assert!(f.map(5, 0).unwrap().is_none());
        // A hole, and blocks that do not follow each other.
        f.write_at(b"far", 30 * BLOCK as u64).unwrap();
        assert!(f.map(25 * BLOCK as u64, 10).unwrap().is_none(), "a hole");
        assert!(f.map(19 * BLOCK as u64, BLOCK + 1).unwrap().is_none(), "into a hole");
        let two = [file(&volume, "/a", false), file(&volume, "/b", false)];
        for i in 0..200 {
            let f = &two[i % 2];
            f.write_at(&[7; BLOCK], (i / 2 * BLOCK) as u64).unwrap();
        }
        let all: Vec<bool> =
            (0..99).map(|i| two[0].map(i * BLOCK as u64, 2 * BLOCK).unwrap().is_some()).collect();
        for (i, mapped) in all.into_iter().enumerate() {
            let place = |i| two[0].inode().content().mapping(i).unwrap();
            let (a, b) = (place(i as u32), place(i as u32 + 1));
            let side_by_side = matches!((a, b), (
                crate::store::map::Mapping::Mapped { block: a, .. },
                crate::store::map::Mapping::Mapped { block: b, .. },
            ) if a + 1 == b);
            assert_eq!(mapped, side_by_side, "block {i}");
        }
        let unreadable = volume.open_options().write(true).open("/f").unwrap();
        assert!(matches!(unreadable.map(0, 1), Err(Error::BadHandle(_))));
        drop((f, two, unreadable));
        volume.close().unwrap();
        let cached = open(&path, OpenOptions::new().dax(false));
        assert!(cached.open_file("/f").unwrap().map(0, 1).unwrap().is_none());
    }
}

/// While a slice is lent, every change of its bytes waits, and none fails.
#[test]
fn a_slice_stays_as_it_is() {
    type Change = fn(&Volume);
    let changes: [(&str, Change); 5] = [
        ("plain write", |v| file(v, "/f", false).write_at(b"??", 3 * BLOCK as u64 - 1).unwrap()),
        ("direct write", |v| file(v, "/f", true).write_at(&[9; 4 * BLOCK], 2 * BLOCK as u64).unwrap()),
        ("truncation", |v| file(v, "/f", false).set_len(0).unwrap()),
        ("extension", |v| file(v, "/f", false).write_at(&[9; BLOCK], 8 * BLOCK as u64 - 1).unwrap()),
        ("append", |v| {
            v.open_options().append(true).open("/f").unwrap().write_at(&[9; BLOCK], 0).unwrap();
        }),
    ];
    for (_dir, path) in volumes() {
        for (what, change) in changes {
            let volume = open(&path, OpenOptions::new());
            let f = file(&volume, "/f", false);
            f.set_len(0).unwrap();
            f.write_at(&[5; 8 * BLOCK - 10], 0).unwrap();
            let slice = f.map(3 * BLOCK as u64 - 5, 5 * BLOCK - 5).unwrap().unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    change(&volume);
                    done.store(true, Ordering::Release);
                });
                thread::sleep(Duration::from_millis(50));
                assert!(slice.iter().all(|b| *b == 5), "{what}");
                assert!(!done.load(Ordering::Acquire), "{what} did not wait");
                if what.ends_with(" write") {
                    // Other threads go on meanwhile.
                    f.read_at(&mut [0; 100], 0).unwrap();
                    f.write_at(b"elsewhere", 0).unwrap();
                    assert!(slice.iter().all(|b| *b == 5), "{what}");
                }
                drop(slice);
            });
            assert!(done.load(Ordering::Acquire));
            f.write_at(b"the volume takes changes", 1 << 20).unwrap();
            f.sync_all().unwrap();
            drop(f);
            volume.close().unwrap();
            fsck(&path);
        }
    }
}

/// Nothing needs a flush: data that one thread wrote is durable once another thread has synced.
#[test]
fn what_was_synced_is_in_the_file() {
    let (_dir, path) = volumes().swap_remove(1);
    let device = Arc::new(PmemDevice::open(&path).unwrap());
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
    let f = file(&volume, "/f", false);
    f.write_at(&[1; 4 * BLOCK], 0).unwrap();
    f.sync_all().unwrap();
    let flushes = volume.stats().journal.flushes;
    thread::scope(|scope| {
        scope.spawn(|| f.write_at(&[2; BLOCK], 100).unwrap());
    });
    f.sync_data().unwrap();
    assert_eq!(volume.stats().journal.flushes, flushes + 1);
    f.sync_data().unwrap();
    assert_eq!(volume.stats().journal.flushes, flushes + 1, "nothing was written since");
}

#[test]
fn what_was_allowed_comes_down_whatever_the_flags_are() {
    for (_dir, path) in volumes() {
        for dax in [false, true] {
            let volume = open(&path, OpenOptions::new().dax(dax));
            for flag in [InodeFlags::APPEND, InodeFlags::IMMUTABLE] {
                let name = format!("/{dax}{}", flag.bits());
                let file = file(&volume, &name, false);
                file.write_late(&[b'a'; 2 * BLOCK], 0).unwrap();
                file.inode().set_file_attr(Some(flag | InodeFlags::EXTENTS), None).unwrap();
                // In the middle, over the end, and behind a hole.
                for (at, len) in [(512, 512), (2 * BLOCK - 1, 7), (5 * BLOCK, 1)] {
                    assert!(matches!(
                        file.write_at(&vec![b'b'; len], at as u64),
                        Err(Error::NotPermitted(_))
                    ));
                    file.write_late(&vec![b'c'; len], at as u64).unwrap();
                    assert_eq!(volume.read(&name).unwrap()[at..at + len], vec![b'c'; len][..]);
                }
                let end = u64::from(u32::MAX) * BLOCK as u64;
                assert!(matches!(file.write_late(b"x", end), Err(Error::FileTooBig)));
                file.inode().set_file_attr(Some(InodeFlags::EXTENTS), None).unwrap();
            }
            volume.close().unwrap();
            fsck(&path);
        }
    }
}
