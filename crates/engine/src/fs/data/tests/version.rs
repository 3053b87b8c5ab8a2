//! i_version and times: what observers read, what a write costs, what is durable.

use crate::{Error, IVersion, OpenOptions, Overwrite, SetXattr};
use lanefs_device::{AlignedBuf, BlockDevice, MemDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 4096;

fn options() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO)
}

fn device() -> Arc<MemDevice> {
    let device = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&device, &lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() })
        .unwrap();
    Arc::new(device)
}

/// A block of which every eight bytes are `n`.
fn stamp(n: u64) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(BLOCK as usize);
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&n.to_le_bytes()));
    block
}

/// Writers count up, each in a block of its own. An observer keeps the content that it has read as
/// long as the version stays the same. It must then have everything that was written before it read
/// the version.
fn observe(options: OpenOptions, direct: bool) {
    const WRITERS: usize = 3;
    let volume = options.open_device(device()).unwrap();
    volume.write("/f", &[0; WRITERS * BLOCK as usize]).unwrap();
    volume.sync().unwrap();
    let file = volume.open_options().read(true).write(true).direct(direct).open("/f").unwrap();
    let returned: [AtomicU64; WRITERS] = Default::default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for (i, returned) in returned.iter().enumerate() {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    file.write_at(&stamp(n), i as u64 * BLOCK).unwrap();
                    returned.store(n, Ordering::Release);
                    if n.is_multiple_of(7) {
                        thread::yield_now();
                    }
                }
            });
        }
        let observers: Vec<_> = (0..3)
            .map(|way| {
                let (volume, file, returned) = (&volume, &file, &returned);
                scope.spawn(move || {
                    let (mut kept, mut kept_of, mut changes) = ([0; WRITERS], u64::MAX, 0);
                    let mut rounds = 0;
                    while rounds < 4000 || changes < 20 {
                        rounds += 1;
                        if rounds % 64 == 0 {
                            thread::yield_now();
                        }
                        let written = returned.each_ref().map(|n| n.load(Ordering::Acquire));
                        let version = match way {
                            0 => file.metadata().version(),
                            1 => volume.metadata("/f").unwrap().version(),
                            _ => {
                                let text = volume.xattr("/f", "system.lanefs.i_version").unwrap();
                                String::from_utf8(text).unwrap().parse().unwrap()
                            }
                        };
                        if version != kept_of {
                            for (i, kept) in kept.iter_mut().enumerate() {
                                let mut word = [0; 8];
                                file.read_at(&mut word, i as u64 * BLOCK).unwrap();
                                *kept = u64::from_le_bytes(word);
                            }
                            (kept_of, changes) = (version, changes + 1);
                        }
                        assert!(kept.iter().zip(&written).all(|(kept, n)| kept >= n), "{kept:?} {written:?}");
                    }
                })
            })
            .collect();
        let seen: Vec<_> = observers.into_iter().map(|observer| observer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        seen.into_iter().for_each(|seen| seen.unwrap());
    });
}

#[test]
fn every_observer_sees_every_change() {
    for i_version in [IVersion::Queried, IVersion::Always] {
        for direct in [false, true] {
            observe(options().i_version(i_version), direct);
        }
    }
    observe(options().overwrite(Overwrite::Journal), true);
}

#[test]
fn a_version_lasts_until_somebody_looked() {
    for (i_version, versions, handles) in [(IVersion::Queried, 1, 0), (IVersion::Always, 100, 100)] {
        let volume = options().i_version(i_version).open_device(device()).unwrap();
        volume.write("/f", &[0; 8 * BLOCK as usize]).unwrap();
        volume.sync().unwrap();
        let file = volume.open_options().read(true).write(true).open("/f").unwrap();
        let before = (file.metadata().version(), volume.stats());
        for i in 0..100 {
            file.write_at(b"x", i * 100).unwrap();
        }
        let stats = volume.stats();
        assert_eq!(stats.journal.handles - before.1.journal.handles, handles, "{i_version:?}");
        assert_eq!(stats.counts.versions_journalled - before.1.counts.versions_journalled, handles);
        assert_eq!(file.metadata().version() - before.0, versions, "{i_version:?}");
        assert_eq!(file.metadata().version() - before.0, versions, "looking is no change");
    }
}

#[test]
fn the_attribute_is_read_only_and_not_listed() {
    let volume = options().open_device(device()).unwrap();
    for path in ["/f", "/dir"] {
        match path {
            "/f" => volume.write(path, b"content").unwrap(),
            _ => volume.create_dir(path).unwrap(),
        }
        let name = "system.lanefs.i_version";
        let told = volume.xattr(path, name).unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), volume.metadata(path).unwrap().version().to_string());
        for refused in [volume.set_xattr(path, name, b"1", SetXattr::Any), volume.remove_xattr(path, name)] {
            let e = refused.unwrap_err();
            assert!(matches!(e.kind(), Error::NotPermitted(_)), "{e}");
        }
        assert_eq!(volume.xattrs(path).unwrap(), []);
    }
    let before = volume.metadata("/dir").unwrap().version();
    volume.write("/dir/new", b"").unwrap();
    assert_ne!(volume.metadata("/dir").unwrap().version(), before);
}

/// A copy of the device as it is now: the process has ended without a close.
fn copy_of(device: &MemDevice) -> Arc<MemDevice> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    let copy = MemDevice::new(bytes.len());
    copy.write_at(&bytes, 0).unwrap();
    Arc::new(copy)
}

#[test]
fn times_and_version_are_durable_with_fsync_and_cost_no_handle_before() {
    for direct in [false, true] {
        let device = device();
        let volume = options().open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
        volume.write("/f", &[0; 8 * BLOCK as usize]).unwrap();
        volume.sync().unwrap();
        let file = volume.open_options().read(true).write(true).direct(direct).open("/f").unwrap();
        let old = file.metadata();
        let handles = || volume.stats().journal.handles;
        let before = handles();
        // Until the tick has moved on.
        while file.metadata().mtime() <= old.mtime() {
            thread::sleep(Duration::from_millis(1));
            file.write_at(&stamp(1), 0).unwrap();
        }
        file.sync_data().unwrap();
        assert_eq!(handles(), before, "an overwrite and fdatasync write no metadata");
        let new = file.metadata();
        assert!(new.mtime() > old.mtime() && new.version() > old.version());
        let read = |device: &MemDevice| {
            let volume = options().open_device(copy_of(device)).unwrap();
            let meta = volume.metadata("/f").unwrap();
            (meta.mtime(), meta.ctime(), meta.version())
        };
        assert_eq!(read(&device), (old.mtime(), old.ctime(), old.version()), "lazy");
        file.sync_all().unwrap();
        assert_eq!(handles(), before + 1);
        assert_eq!(read(&device), (new.mtime(), new.ctime(), new.version()));
        file.sync_all().unwrap();
        assert_eq!(handles(), before + 1, "nothing new to tell");
    }
}

/// Whether an earlier reader has seen a file's version is not known when the file is loaded: its
/// next change makes a new one.
#[test]
fn a_change_after_a_load_has_a_new_version() {
    let device = device();
    let open = || options().open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
    open().write("/f", &[1; 2 * BLOCK as usize]).unwrap();
    for direct in [false, true] {
        let told = open().metadata("/f").unwrap().version();
        let volume = open();
        let file = volume.open_options().read(true).write(true).direct(direct).open("/f").unwrap();
        file.write_at(&stamp(1), 0).unwrap();
        assert_ne!(file.metadata().version(), told, "direct {direct}");
    }
}
