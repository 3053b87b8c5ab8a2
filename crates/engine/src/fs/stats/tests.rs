use crate::{Error, Locking, OpenOptions, Overwrite, Volume};
use lanefs_device::{AlignedBuf, MemDevice};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn volume(options: OpenOptions) -> Volume {
    made(lanefs_mkfs::Options::default(), options)
}

fn made(mkfs: lanefs_mkfs::Options, options: OpenOptions) -> Volume {
    let device = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&device, &mkfs).unwrap();
    options.write(true).commit_interval(Duration::ZERO).open_device(Arc::new(device)).unwrap()
}

/// Returns a file with 16 written blocks, open past the page cache.
fn written(volume: &Volume) -> crate::File {
    volume.write("/f", &[1; 16 * 4096]).unwrap();
    volume.sync().unwrap();
    volume.open_options().read(true).write(true).direct(true).open("/f").unwrap()
}

#[test]
fn overwrites_start_no_handle_unless_they_are_told_to() {
    let block = AlignedBuf::zeroed(4096);
    for (mode, handles) in [(Overwrite::NoJournal, 0), (Overwrite::Journal, 1000)] {
        let volume = volume(OpenOptions::new().overwrite(mode));
        let file = written(&volume);
        let before = volume.stats();
        for i in 0..1000 {
            file.write_at(&block, i % 16 * 4096).unwrap();
        }
        let after = volume.stats();
        assert_eq!(after.journal.handles - before.journal.handles, handles, "{mode:?}");
        assert_eq!(after.counts.overwrites, 1000 - handles);
        assert_eq!(after.counts.overwrites_journalled, handles);
        assert_eq!(after.times.write_direct.count, 1000);
        // Across the end, and behind it: no overwrites.
        file.write_at(&block, 16 * 4096 - 100).unwrap();
        file.write_at(&block, 1 << 20).unwrap();
        assert_eq!(volume.stats().counts.overwrites, 1000 - handles);
    }
}

#[test]
fn each_operation_is_counted_where_it_belongs() {
    let volume = volume(OpenOptions::new());
    let direct = written(&volume);
    let cached = volume.open_options().read(true).write(true).open("/f").unwrap();
    let before = volume.stats();
    let mut buf = vec![0; 4096];
    for _ in 0..3 {
        cached.read_at(&mut buf, 0).unwrap();
    }
    for _ in 0..4 {
        cached.write_at(b"x", 5).unwrap();
    }
    cached.sync_all().unwrap();
    cached.sync_data().unwrap();
    cached.sync_data().unwrap();
    for _ in 0..5 {
        direct.read_at(&mut buf, 0).unwrap();
    }
    drop(volume.open_file("/f").unwrap());
    let (a, b) = (volume.stats(), before);
    let more = |f: fn(&super::Times) -> &lanefs_stats::Snapshot| f(&a.times).count - f(&b.times).count;
    assert_eq!(more(|t| &t.read), 3);
    assert_eq!(more(|t| &t.write), 4);
    assert_eq!((more(|t| &t.fsync), more(|t| &t.fdatasync)), (1, 2));
    assert_eq!(more(|t| &t.read_direct), 5);
    assert_eq!(more(|t| &t.open), 1);
    let block = u64::from(volume.statfs().block_size);
    assert_eq!(a.counts.bytes_written_back - b.counts.bytes_written_back, block);
    assert_eq!(more(|t| &t.writeback), 1);
    assert_eq!(a.cache.dirty, 0);
    assert_eq!(a.times.range_wait.count, 0, "nobody had to wait");
}

#[test]
fn a_wait_for_a_range_is_timed() {
    for locking in [Locking::Inode, Locking::RangeMutex, Locking::Range] {
        let volume = volume(OpenOptions::new().locking(locking));
        let file = written(&volume);
        let node = file.inode();
        let mut patience = Duration::from_millis(20);
        // A reader that comes too late does not wait. It is tried again with a longer delay.
        let waits = loop {
            let held = node.content().lock_from(0).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| file.read_at(&mut [0; 10], 0).unwrap());
                thread::sleep(patience);
                drop(held);
            });
            let waits = volume.stats().times.range_wait;
            // A reader that comes at the last moment waits for less.
            if waits.max > 1_000_000 {
                break waits;
            }
            patience *= 2;
            assert!(patience < Duration::from_secs(60), "{locking:?}: {waits:?}");
        };
        assert!(waits.count >= 1, "{locking:?}");
        assert_eq!(waits.count, waits.timed, "{locking:?}");
    }
}

#[test]
fn a_full_volume_shows_that_commits_were_waited_for() {
    let volume = volume(OpenOptions::new());
    volume.write("/gone", &[7; 1 << 20]).unwrap();
    volume.sync().unwrap();
    let file = volume.open_options().write(true).create(true).direct(true).open("/full").unwrap();
    let mut end = 0;
    let full = loop {
        match file.write_at(&[7; 1 << 20], end) {
            Ok(()) => end += 1 << 20,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    assert_eq!(volume.stats().counts.space_retries, 0, "there was nothing to wait for");
    volume.remove_file("/gone").unwrap();
    file.write_at(&[7; 1 << 20], end).unwrap();
    assert!(volume.stats().counts.space_retries > 0);
}

#[test]
fn attributes_that_do_not_fit_write_no_other_file_out() {
    let volume = volume(OpenOptions::new());
    volume.write("/other", &[7; 1 << 20]).unwrap();
    let file = volume.create_file("/file").unwrap();
    let fs = &file.inode().fs;
    let dirty = fs.pages.dirty_bytes();
    let e = file.set_xattr("user.large", &[7; 8192], crate::SetXattr::Any).unwrap_err();
    let after = fs.pages.dirty_bytes();
    assert_eq!((e.errno(), volume.stats().counts.space_retries), (28, 0), "{e}");
    assert!(dirty > 0 && after == dirty, "{dirty} bytes, {after} afterwards");
}

#[test]
fn a_want_of_inodes_writes_no_file_out() {
    let mkfs = lanefs_mkfs::Options { inode_count: Some(64), ..Default::default() };
    let volume = made(mkfs, OpenOptions::new());
    volume.write("/other", &[7; 1 << 20]).unwrap();
    let other = volume.open_options().read(true).open("/other").unwrap();
    let fs = &other.inode().fs;
    let dirty = fs.pages.dirty_bytes();
    let e = (0..).find_map(|n| volume.create_file(format!("/{n}")).err()).unwrap();
    assert!(matches!(e.kind(), Error::NoInodes) && e.errno() == 28, "{e}");
    assert!(volume.create_dir("/dir").is_err() && volume.symlink("x", "/link").is_err());
    assert_eq!(volume.stats().counts.space_retries, 0);
    assert!(
        dirty > 0 && fs.pages.dirty_bytes() == dirty,
        "{dirty} bytes, {} afterwards",
        fs.pages.dirty_bytes()
    );
    // A freed inode waits for no commit.
    let commits = volume.stats().journal.commits;
    volume.remove_file("/0").unwrap();
    volume.create_file("/again").unwrap();
    assert_eq!(volume.stats().journal.commits, commits);
}

#[test]
fn json_and_the_table_tell_the_same() {
    let volume = volume(OpenOptions::new());
    written(&volume).sync_all().unwrap();
    let stats = volume.stats();
    let (json, table) = (stats.to_json(), stats.to_string());
    let handles = stats.journal.handles;
    assert!(
        handles > 0
            && json.starts_with(&format!("{{\"io\":\"memory\",\"counters\":{{\"handles\":{handles},")),
        "{json}"
    );
    assert!(table.lines().any(|l| l.split_whitespace().eq(["handles", &handles.to_string()])), "{table}");
    let fsync = &stats.times.fsync;
    let wanted = format!(
        "\"fsync\":{{\"count\":1,\"timed\":1,\"running\":0,\"sum\":{0},\"mean\":{0},\"p50\":{0},",
        fsync.max
    );
    assert!(json.contains(&wanted), "{wanted} in {json}");
    assert!(table.lines().any(|l| l.starts_with("fsync ")) && !table.contains("throttle"), "{table}");
    assert_eq!(json.matches(['{', '[']).count(), json.matches(['}', ']']).count());
}

/// The way to the device is chosen at the open, and told.
#[test]
fn the_way_to_the_device_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    lanefs_mkfs::format(
        &lanefs_device::FileDevice::create(&path, 32 << 20).unwrap(),
        &lanefs_mkfs::Options::default(),
    )
    .unwrap();
    let io = |options: OpenOptions| {
        let stats = options.write(true).open(&path).unwrap().stats();
        (stats.cached.unwrap().to_string(), stats.to_json().starts_with("{\"io\":\"mixed\""))
    };
    assert_eq!(io(OpenOptions::new()), ("mixed".into(), true));
    assert_eq!(io(OpenOptions::new().mount_options("io=buffered").unwrap()), ("buffered".into(), false));
    assert_eq!(io(OpenOptions::new().direct(true)), ("direct".into(), false));
    // In units of 512 bytes there is no direct I/O to it.
    let odd = std::fs::File::options().write(true).open(&path).unwrap();
    odd.set_len((32 << 20) + 100).unwrap();
    assert_eq!(io(OpenOptions::new()), ("buffered".into(), false));
}
