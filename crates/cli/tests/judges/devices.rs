//! Devices that fail under a mount: programs get an errno, no call hangs, the unmount ends, and
//! data that was synced before is there.
//!
//! A block device that fails is a loop device on a file whose own file system dies. (device-mapper
//! could make one fail in part; not every kernel has it, and the judges need none that may be
//! missing.) `tests/tests/failing_load.rs` has devices that fail at every single call, below the
//! library.

use crate::support::{LIMIT, bounded, judged, must, options};
use lanefs_tests::{LoopDevice, Mounted, Server, e2fsck, unmount_soon};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

/// Asserts that an error is one that a program may get from a device that fails.
#[track_caller]
fn is_told(e: &std::io::Error) {
    let told = [Errno::IO, Errno::NOSPC, Errno::ROFS].map(|e| Some(e.raw_os_error()));
    assert!(told.contains(&e.raw_os_error()), "{e}");
}

/// From one moment on, every sector fails, to read and to write.
#[test]
fn a_block_device_that_dies() {
    let host = tempfile::tempdir().unwrap();
    let below = host.path().join("below.img");
    lanefs_tests::mke2fs(&below, 512 << 20, &["-t", "ext4"]);
    let lanefs = Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into());
    let outer = Mounted::new(&lanefs, &below, "", LIMIT);
    let image = outer.path().join("volume.img");
    lanefs_tests::mke2fs(&image, 256 << 20, &["-t", "ext4"]);
    let attach = |image: &Path| {
        let device = LoopDevice::direct(image);
        let name = host.path().join("device");
        let _ = fs::remove_file(&name);
        symlink(device.path(), &name).unwrap();
        (device, name)
    };
    let (device, name) = attach(&image);
    let server = judged();
    let inner = Mounted::new(&server, &name, options(&server), LIMIT);
    fs::write(inner.path().join("cold"), vec![6; 4 << 20]).unwrap();
    inner.unmount();
    // So that the page cache of the device does not have the file.
    must(bounded(20, "blockdev").arg("--flushbufs").arg(device.path()));

    let mut inner = Mounted::new(&server, &name, options(&server), LIMIT);
    let root = inner.path().to_owned();
    let file = File::create(root.join("kept")).unwrap();
    file.write_all_at(b"synced before", 0).unwrap();
    file.sync_all().unwrap();
    outer.kill(|| {
        let synced = file.write_all_at(&[1; 1 << 20], 4096).and_then(|()| file.sync_all());
        is_told(&synced.unwrap_err());
        // It stays told, and nothing is durable that was not.
        is_told(&file.write_all_at(&[2; 4096], 4096).and_then(|()| file.sync_all()).unwrap_err());
        is_told(&fs::read(root.join("cold")).unwrap_err());
        let made = File::create(root.join("new")).and_then(|file| file.sync_all());
        is_told(&made.unwrap_err());
        drop(file);
        unmount_soon(&root);
        if inner.pid().is_some() {
            // It may end with a failure, but it ends.
            inner.wait();
        }
        drop(inner);
        drop(device);
    });

    let outer = Mounted::new(&lanefs, &below, "", LIMIT);
    let (device, name) = attach(&outer.path().join("volume.img"));
    let inner = Mounted::new(&server, &name, options(&server), LIMIT);
    assert!(fs::read(inner.path().join("kept")).unwrap().starts_with(b"synced before"));
    assert!(fs::read(inner.path().join("cold")).unwrap() == vec![6; 4 << 20]);
    inner.unmount_only();
    // The volume has its failure on record. e2fsck clears the record, and a second run is silent.
    let (code, text) = e2fsck(&name, &["-fy"]);
    assert!(code == 0 || code == 1, "{code}\n{text}");
    lanefs_tests::e2fsck_clean(&name);
    drop(device);
    outer.unmount();
}

/// The image is a sparse file on a file system that gets full, which fails its writes. fsync
/// reports the failure, no call hangs, and data that was synced before is there.
#[test]
fn a_device_that_is_full() {
    let host = tempfile::tempdir().unwrap();
    let small = host.path().join("small");
    fs::create_dir(&small).unwrap();
    must(bounded(10, "mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&small));
    let unmount = Unmount(&small);
    let path = small.join("volume.img");
    lanefs_tests::mke2fs(
        &path,
        256 << 20,
        &["-t", "ext4", "-J", "size=4", "-E", "lazy_itable_init=1,lazy_journal_init=1"],
    );
    let server = judged();
    let mut mounted = Mounted::new(&server, &path, options(&server), LIMIT);
    let root = mounted.path().to_owned();
    fs::write(root.join("kept"), "synced before").unwrap();
    File::open(root.join("kept")).unwrap().sync_all().unwrap();
    let file = File::create(root.join("large")).unwrap();
    let block = vec![1; 1 << 20];
    let failed =
        (0..100).find_map(|n| file.write_all_at(&block, n << 20).and_then(|()| file.sync_all()).err());
    let failed = failed.expect("a device with 24 MiB took 100");
    is_told(&failed);
    // It stays told, or the volume is read-only; it is never forgotten and then durable. Of a peer
    // this is printed.
    let synced = file.write_all_at(&block, 0).and_then(|()| file.sync_all());
    println!("{failed}, then {synced:?}");
    if let Server::Lanefs(_) = server {
        is_told(&synced.unwrap_err());
    }
    assert_eq!(fs::read_to_string(root.join("kept")).unwrap(), "synced before");
    drop(file);
    unmount_soon(&root);
    if mounted.pid().is_some() {
        // It may end with a failure, but it ends.
        mounted.wait();
    }
    let copy = host.path().join("copy.img");
    must(bounded(60, "cp").arg("--sparse=always").arg(&path).arg(&copy));
    drop(mounted);
    let (code, text) = e2fsck(&copy, &["-fy"]);
    assert!(code == 0 || code == 1, "{code}\n{text}");
    assert_eq!(lanefs_tests::debugfs(&copy, "cat /kept"), "synced before");
    drop(unmount);
}

struct Unmount<'p>(&'p Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = bounded(20, "umount").arg("--lazy").arg(self.0).status();
    }
}
