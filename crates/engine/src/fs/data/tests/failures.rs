//! Files that cannot be written out, beside files that can.

use super::*;
use crate::fs::file::cache::{Background, FileCache};
use crate::fs::namei::{NewAttr, NewKind};
use lanefs_device::{MemDevice, Op};
use lanefs_sim::FailingDevice;

type Device = Arc<FailingDevice<MemDevice>>;

/// Returns a volume with the empty files "a" and "b", without a timer, on a device that can be made
/// to fail.
fn volume(options: OpenOptions) -> (Device, OpenOptions, Arc<Fs>, [InodeRef; 2]) {
    volume_in(&Image::new("16M", KINDS[0]), options.commit_interval(Duration::ZERO))
}

/// Opens a copy of `image`, in which files "a" and "b" are made before, on a device that can be
/// made to fail.
fn volume_in(image: &Image, options: OpenOptions) -> (Device, OpenOptions, Arc<Fs>, [InodeRef; 2]) {
    let (a, b) = (image.file("a"), image.file("b"));
    let bytes = std::fs::read(image.path()).unwrap();
    let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(bytes)));
    let options = options.write(true);
    let fs = Fs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options.clone()).unwrap();
    let nodes = [fs.inode(a).unwrap(), fs.inode(b).unwrap()];
    (device, options, fs, nodes)
}

fn create(fs: &Arc<Fs>, name: &[u8]) {
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    drop(fs.root().unwrap().create(name, NewKind::File, attr).unwrap());
}

#[test]
fn one_file_that_fails_does_not_keep_others_from_being_committed() {
    for close in [false, true] {
        let (device, options, fs, [a, _]) = volume(OpenOptions::new());
        buffered::write(&a, 0, &[1; 4096]).unwrap();
        create(&fs, b"new");
        // The block bitmap cannot be read: the page of "a" stays dirty.
        device.fail_from(Op::Read, 1, 5);
        let failed = match close {
            true => fs.close(),
            false => fs.sync(),
        };
        assert!(failed.is_err());
        device.heal();
        let after = Arc::new(MemDevice::from_bytes(device.inner().to_bytes()));
        let fs = Fs::open(after, options).unwrap();
        let found = fs.root().unwrap().lookup(b"new");
        assert!(found.is_ok(), "close {close}: what was made is lost: {:?}", found.err());
    }
}

#[test]
fn a_writer_is_not_told_of_another_file() {
    let (device, _, fs, [a, b]) = volume(OpenOptions::new().cache_bytes(1 << 20));
    // More than the cache may hold, and no blocks can be found for it.
    buffered::write(&a, 0, &[1; 600 << 10]).unwrap();
    device.fail_from(Op::Read, 1, 5);
    buffered::write(&b, 0, &[2; 4096]).unwrap();
    assert!(a.sync_all().is_err());
    device.heal();
    b.sync_all().unwrap();
    a.sync_all().unwrap();
    let mut room = [0; 10];
    buffered::read(&b, 0, &mut room).unwrap();
    assert_eq!(room, [2; 10]);
    drop((a, b));
    fs.close().unwrap();
}

/// Pages that could not be written out keep their claim, so no other file is given their space.
#[test]
fn what_could_not_be_written_out_keeps_its_space() {
    const GROUP: usize = 8 << 20;
    for nolock in [false, true] {
        // Every bitmap is on the disk, and is read when blocks of its group are first looked for.
        let image =
            Image::new("40M", &["-t", "ext4", "-b", "1024", "-O", "^uninit_bg,^metadata_csum,^flex_bg"]);
        let options = match nolock {
            true => OpenOptions::new().writeback(crate::WritebackMode::DioreadNolock),
            false => OpenOptions::new(),
        };
        let (device, _, fs, [a, b]) =
            volume_in(&image, options.use_reserved(true).commit_interval(Duration::ZERO));
        let content: Vec<u8> = (0..5 * GROUP / 2).map(|i| (i / 1000) as u8).collect();
        buffered::write(&a, 0, &content).unwrap();
        let free = fs.alloc.free_blocks();
        // The first group has a place for some of it; where the others do is not to be learnt.
        device.fail_from(Op::Read, 2, 5);
        assert!(a.sync_all().is_err());
        assert!(fs.alloc.free_blocks() <= free, "{free} blocks were free, now {}", fs.alloc.free_blocks());
        device.heal();
        while fs.alloc.free_blocks() > 0 {
            let end = b.file().size();
            let n = fs.alloc.free_blocks().min(64) * 1024;
            if b.content().fallocate(FallocMode::Allocate, end, n).is_err() {
                break;
            }
        }
        a.sync_all().unwrap_or_else(|e| panic!("nolock {nolock}: {e}"));
        assert!(all(&a) == content);
        drop((a, b));
        fs.close().unwrap();
        let copy = Image::new("1M", KINDS[0]);
        std::fs::write(copy.path(), device.inner().to_bytes()).unwrap();
        let (code, text) = run("e2fsck", &["-fn", &copy.path()]);
        assert_eq!(code, 0, "{text}");
    }
}

/// Without a timer, and when the journal has ended, the flusher has no reason to wake up, whatever
/// is dirty.
#[test]
fn what_nothing_will_write_out_wakes_nobody() {
    for (interval, ends) in [(Duration::ZERO, false), (Duration::from_secs(3600), true)] {
        let options = OpenOptions::new().commit_interval(interval);
        let (device, _, fs, [a, _]) = volume_in(&Image::new("16M", KINDS[0]), options);
        buffered::write(&a, 0, &[1; 4096]).unwrap();
        if ends {
            device.fail_from(Op::Write, 1, 5);
            assert!(a.sync_all().is_err() && fs.journal.has_ended());
        }
        assert!(fs.pages.dirty_bytes() > 0 && fs.dirty_times() > 0);
        // The first round checks whether anything was used since the last one.
        let mut jobs = fs.background_jobs();
        fs.background_round(&mut jobs);
        assert_eq!(fs.background_round(&mut jobs), None, "ended: {ends}");
    }
}

/// A round goes on behind a file whose inode is being deleted, and one that fails, and ends though
/// both stay dirty.
#[test]
fn a_file_that_cannot_be_written_out_ends_no_round() {
    let (device, options, fs, [a, b]) = volume(OpenOptions::new());
    let (inos, at_once) = ([a.ino, b.ino], || Background::new(Some(Duration::ZERO)));
    let gone = FileCache::new(&fs.pages, 9999);
    gone.span(0..1).copy_in(&[1; 4096], 0);
    buffered::write(&b, 0, &[2; 4096]).unwrap();
    fs.background_round(&mut at_once());
    assert!(!b.file().pages_if_used().unwrap().is_dirty(), "behind a file without an inode");
    drop((gone, a, b));
    fs.close().unwrap();
    drop(fs);

    let fs = Fs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
    let [a, b] = inos.map(|ino| fs.inode(ino).unwrap());
    buffered::write(&a, 0, &[1; 4096]).unwrap();
    buffered::write(&b, 0, &[3; 4096]).unwrap();
    // No block is found for "a".
    device.fail_from(Op::Read, 1, 5);
    fs.background_round(&mut at_once());
    assert!(a.file().pages_if_used().unwrap().is_dirty());
    assert!(!b.file().pages_if_used().unwrap().is_dirty(), "behind a file that failed");
    device.heal();
    a.sync_all().unwrap();
    drop((a, b));
    fs.close().unwrap();
}

/// What was mapped before the error is a part of the file: i_disksize is never more than i_size, or
/// bytes of a write that failed would come back.
#[test]
fn a_write_that_fails_between_two_runs_keeps_the_first() {
    let mut kept = 0;
    for nth in 1.. {
        let image =
            Image::new("40M", &["-t", "ext4", "-b", "1024", "-O", "^uninit_bg,^metadata_csum,^flex_bg"]);
        let options = OpenOptions::new().use_reserved(true).commit_interval(Duration::ZERO);
        let (device, _, fs, [a, b]) = volume_in(&image, options);
        // Afterwards it is known which blocks are free, and no bitmap is in memory.
        write(&b, 0, &vec![1; 30 << 20]).unwrap();
        b.content().truncate(0).unwrap();
        fs.journal.sync().unwrap();
        fs.journal.checkpoint().unwrap();
        fs.journal.release();
        device.fail_from(Op::Read, nth, 5);
        let written = write(&a, 0, &vec![2; 16 << 20]);
        let failures = device.failures();
        device.heal();
        let (size, disk_size) = (a.file().size(), a.file().disk_size());
        assert!(disk_size <= size, "read {nth}: {disk_size} bytes on disk of {size}, {written:?}");
        assert!(all(&a).iter().all(|byte| *byte == 2), "read {nth}: {written:?}");
        // Inside of a batch.
        kept += u32::from(written.is_err() && !size.is_multiple_of(8 << 20));
        if failures == 0 {
            written.unwrap();
            break;
        }
    }
    assert!(kept > 0, "no write failed between two runs");
}

/// The bytes are not there, but the end of the file has moved.
#[test]
fn a_late_write_that_fails_makes_a_new_version() {
    let (device, _, fs, [a, _]) = volume(OpenOptions::new());
    let before = a.attributes();
    // The block bitmap cannot be read.
    device.fail_from(Op::Read, 1, 5);
    a.content().write_past(&[1; 8192], 0).unwrap_err();
    device.heal();
    let after = a.attributes();
    assert_eq!((before.size, after.size), (0, 8192));
    assert_ne!(after.version, before.version);
    drop(a);
    fs.close().unwrap();
}
