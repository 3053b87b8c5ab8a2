//! Growth of a volume that is open, beside threads that write.

use super::{SHAPES, fill_up, head, judge, make};
use lanefs::{Error, FallocMode, OpenOptions, ResizeError, SetXattr, Upkeep, Volume};
use lanefs_device::{BlockDevice, DeviceError, FileOptions, MemDevice, Op};
use lanefs_sim::FailingDevice;
use lanefs_tests::{
    Ending, LoopMount, copy_file, e2fsck, e2fsck_clean, memory_dir, mke2fs, require_root, require_tools, run,
    volume_digest,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};

pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// Makes the file of a volume longer, as another process does.
fn lengthen(path: &Path, size: u64) {
    File::options().write(true).open(path).unwrap().set_len(size).unwrap();
}

/// Makes, changes, syncs and removes files in a directory of its own until `ended`. Returns those
/// that are left.
fn writer<'s>(
    scope: &'s Scope<'s, '_>,
    volume: &'s Volume,
    thread: usize,
    ended: &'s AtomicBool,
) -> ScopedJoinHandle<'s, Files> {
    scope.spawn(move || {
        let mut files = Files::new();
        volume.create_dir(format!("/w{thread}")).unwrap();
        for n in 0.. {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let name = format!("/w{thread}/a-name-of-some-length-{}", n * 7 % 60);
            match n % 5 {
                3 => {
                    let _ = volume.remove_file(&name);
                    files.remove(&name);
                }
                4 => volume.sync().unwrap(),
                _ => {
                    let content = vec![(n % 251) as u8; n * 977 % 20_000];
                    volume.write(&name, &content).unwrap();
                    volume.set_xattr(&name, "user.n", n.to_string().as_bytes(), SetXattr::Any).unwrap();
                    files.insert(name, content);
                }
            }
        }
        files
    })
}

fn check_files(volume: &Volume, files: &Files) {
    for (name, content) in files {
        assert!(volume.read(name).unwrap() == *content, "{name}");
    }
}

/// Waits until `inodes` are free: the flusher deletes a file that was removed while the flusher
/// wrote it back.
fn wait_for_inodes(volume: &Volume, inodes: u64) {
    let began = std::time::Instant::now();
    while volume.statfs().inodes_free < inodes {
        assert!(began.elapsed().as_secs() < 20, "it is not deleted");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Each shape grows while three threads write, in two steps. What came is used before the volume is
/// closed, and by the kernel.
#[test]
fn a_volume_grows_beside_writers() {
    require_root();
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options, before, after) in SHAPES {
        println!("{name}");
        make(&path, before << 20, options);
        let volume = Volume::open(&path).unwrap();
        let ended = AtomicBool::new(false);
        let files: Vec<Files> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3).map(|n| writer(scope, &volume, n, &ended)).collect();
            let ending = Ending(&ended);
            for size in [(before * 2 + after) / 3, *after] {
                lengthen(&path, size << 20);
                std::thread::sleep(std::time::Duration::from_millis(20));
                let grown = volume.grow(size << 20).unwrap();
                assert!(grown <= size << 20 && grown > (size - 10) << 20, "{name}: {grown}");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(ending);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let stat = volume.statfs();
        assert!(stat.blocks * u64::from(stat.block_size) > (after * 7 / 10) << 20, "{name}: {stat:?}");
        files.iter().for_each(|files| check_files(&volume, files));
        if *after < 400 {
            let inodes = volume.statfs().inodes_free;
            let all = fill_up(&volume);
            assert!(all > (after * 7 / 10 - before) << 20, "{name}: only {all} bytes");
            volume.remove_file("/all").unwrap();
            wait_for_inodes(&volume, inodes);
        }
        volume.sync().unwrap();
        let digest = volume_digest(&volume);
        let free = volume.statfs();
        volume.close().unwrap();
        judge(&path, digest, name);
        let head = head(&path);
        assert_eq!(head["Free blocks"], free.blocks_free.to_string(), "{name}");
        assert_eq!(head["Free inodes"], free.inodes_free.to_string(), "{name}");
        let mount = LoopMount::new(&path, "rw");
        for n in 0..1000 {
            std::fs::write(mount.path().join(format!("k{n}")), b"kernel").unwrap();
        }
        mount.unmount();
        e2fsck_clean(&path);
    }
}

/// The volume is as large, and has the same features, as one that was grown closed.
#[test]
fn an_open_volume_grows_as_a_closed_one() {
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let (path, closed) = (dir.path().join("open"), dir.path().join("closed"));
    for (name, options, before, after) in SHAPES {
        let digest = make(&path, before << 20, options);
        copy_file(&path, &closed);
        super::grow(&closed, after << 20);
        lengthen(&path, after << 20);
        let volume = Volume::open(&path).unwrap();
        volume.grow(after << 20).unwrap();
        volume.close().unwrap();
        judge(&path, digest, name);
        let (open, closed) = (head(&path), head(&closed));
        for field in [
            "Inode count",
            "Block count",
            "Free inodes",
            "Free blocks",
            "Filesystem features",
            "Reserved GDT blocks",
            "Reserved block count",
            "Overhead clusters",
            "Backup block groups",
        ] {
            assert_eq!(open.get(field), closed.get(field), "{name}: {field}");
        }
        let least = run("resize2fs", &["-P", path.to_str().unwrap()]);
        assert!(least.contains("Estimated minimum size"), "{least}");
    }
}

/// Many small growths of one open volume, with its groups loaded, full and in use.
#[test]
fn a_volume_grows_again_and_again() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(&path, 8 << 20, &["-t", "ext4", "-b", "1024", "-g", "2048", "-J", "size=1", "-N", "512"]);
    let volume = Volume::open(&path).unwrap();
    let mut files = Files::new();
    let mut size = 8 << 20;
    for n in 0..60 {
        let name = format!("/file{n}");
        assert!(fill_up(&volume) > 0);
        volume.remove_file("/all").unwrap();
        size += (n * 131 % 1500 + 300) << 10;
        lengthen(&path, size);
        volume.grow(size).unwrap();
        let content = vec![n as u8; 300_000];
        volume.write(&name, &content).unwrap();
        files.insert(name, content);
        if n % 10 == 0 {
            volume.set_label(format!("grown{n}").as_bytes()).unwrap();
        }
        let used = volume.create_file("/used").unwrap();
        let free = volume.statfs().blocks_free.saturating_sub(200) << 10;
        used.fallocate(FallocMode::Allocate, 0, free).unwrap();
        drop(used);
        volume.remove_file("/used").unwrap();
        volume.sync().unwrap();
    }
    check_files(&volume, &files);
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    judge(&path, digest, "grown 60 times");
    for backup in ["8193", "24577"] {
        let (code, said) = e2fsck(&path, &["-fn", "-b", backup, "-B", "1024"]);
        assert!(!said.contains("Superblock has an invalid"), "{backup}: {code} {said}");
    }
}

/// A label that is changed reaches the backups before and behind a growth.
#[test]
fn backups_have_the_new_size_and_the_label() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make(&path, 40 << 20, &["-t", "ext4", "-b", "1024"]);
    let volume = Volume::open(&path).unwrap();
    volume.set_label(b"before").unwrap();
    lengthen(&path, 100 << 20);
    volume.grow(100 << 20).unwrap();
    volume.set_label(b"behind").unwrap();
    volume.close().unwrap();
    for backup in ["8193", "24577", "40961", "57345", "73729"] {
        let head = lanefs_tests::dumpe2fs(
            &path,
            &["-h", "-o", &format!("superblock={backup}"), "-o", "blocksize=1024"],
        );
        assert!(head.contains("behind") && head.contains("102400"), "{backup}: {head}");
    }
    e2fsck_clean(&path);
}

#[test]
fn an_open_volume_does_not_get_any_size() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let digest = make(&path, 64 << 20, &["-t", "ext4", "-b", "4096"]);
    let refused = |volume: &Volume, size: u64| match volume.grow(size).map_err(Error::into_kind) {
        Err(Error::Resize(e)) => e,
        other => panic!("{other:?}"),
    };
    let volume = Volume::open(&path).unwrap();
    assert!(matches!(refused(&volume, 32 << 20), ResizeError::OnlyGrows { blocks: 8192, before: 16384 }));
    assert!(matches!(refused(&volume, 65 << 20), ResizeError::BeyondDevice { .. }));
    assert!(matches!(refused(&volume, 1 << 60), ResizeError::TooManyInodes { .. }));
    // The size of now, and a last group without room for its structures.
    assert_eq!(volume.grow(64 << 20).unwrap(), 64 << 20);
    lengthen(&path, 200 << 20);
    assert_eq!(volume.grow((128 << 20) + (200 << 10)).unwrap(), 128 << 20);
    volume.close().unwrap();
    judge(&path, digest, "refused");
    let volume = Volume::open_read_only(&path).unwrap();
    assert!(matches!(volume.grow(200 << 20).map_err(Error::into_kind), Err(Error::ReadOnly)));
    drop(volume);
    lanefs_tests::debugfs_write(&path, "ssv state 3");
    let volume = Volume::open(&path).unwrap();
    assert!(matches!(refused(&volume, 200 << 20), ResizeError::Unsound { .. }));
}

/// A device that fails at a write of the growth: nothing was changed, or recovery finds a sound
/// volume of the old size or the new one.
#[test]
fn a_growth_that_fails_leaves_a_sound_volume() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let (mut old, mut new) = (0, 0);
    for nth in 1.. {
        let digest = make(&path, 20 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        lengthen(&path, 60 << 20);
        let device = Arc::new(FailingDevice::new(FileOptions::new().open(&path).unwrap()));
        let options = OpenOptions::new().write(true).threads(false);
        let volume = options.open_device(device.clone() as Arc<dyn BlockDevice>).unwrap();
        let _ = volume.upkeep(Upkeep::Checkpoint);
        device.fail_once(Op::Write, nth, 5);
        let grown = volume.grow(60 << 20);
        device.heal();
        drop((volume, device));
        Volume::open(&path).unwrap().close().unwrap();
        // The abort of the journal is noted in the volume.
        let (code, said) = e2fsck(&path, &["-fy"]);
        assert!(code < 2, "write {nth}: e2fsck -fy: {code}\n{said}");
        let after = super::open(Arc::new(FileOptions::new().open(&path).unwrap())).size();
        assert!([20 << 20, 60 << 20].contains(&after), "write {nth}: {after} bytes");
        judge(&path, digest, &format!("write {nth} failed"));
        if grown.is_ok() {
            break;
        }
        match after == 20 << 20 {
            true => old += 1,
            false => new += 1,
        }
    }
    assert!(old > 3 && new > 0, "{old} with the old size, {new} with the new one");
}

/// A file of holes on a file system that is full: only so many blocks behind `old` can be written.
#[derive(Debug)]
struct FullHost {
    inner: MemDevice,
    old: u64,
    written: Mutex<BTreeSet<u64>>,
    left: usize,
}

impl BlockDevice for FullHost {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        let end = offset + data.len() as u64;
        let mut written = self.written.lock().unwrap();
        for block in offset.max(self.old) / 1024..end.max(self.old).div_ceil(1024) {
            if written.insert(block) && written.len() > self.left {
                written.remove(&block);
                let full = std::io::Error::from_raw_os_error(28);
                return Err(DeviceError::new(Op::Write, offset, data.len() as u64, full));
            }
        }
        self.inner.write_at(data, offset)
    }

    fn flush(&self) -> lanefs_device::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> lanefs_device::Result<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> lanefs_device::Result<()> {
        self.inner.write_zeroes(offset, len)
    }
}

/// A growth that finds no space on the host changes nothing, and the volume stays in use.
#[test]
fn a_full_host_fails_the_growth_alone() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let mut refused = 0;
    for left in 0.. {
        make(&path, 20 << 20, &["-t", "ext4", "-b", "1024"]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.resize(80 << 20, 0);
        let (inner, written) = (MemDevice::from_bytes(bytes), Mutex::default());
        let device = Arc::new(FullHost { inner, old: 20 << 20, written, left });
        let volume = OpenOptions::new().write(true).open_device(device.clone()).unwrap();
        let grown = volume.grow(80 << 20);
        volume.write("/after", b"after").unwrap_or_else(|e| panic!("{left} blocks: {grown:?}, {e}"));
        volume.sync().unwrap();
        let digest = volume_digest(&volume);
        volume.close().unwrap();
        std::fs::write(&path, device.inner.to_bytes()).unwrap();
        judge(&path, digest, &format!("{left} blocks"));
        if grown.is_ok() {
            break;
        }
        refused += 1;
    }
    assert!(refused > 5, "{refused} growths were refused");
}
