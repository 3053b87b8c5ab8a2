//! What fails, fails as the kernel says it, loses nothing, and leaves a volume that is clean: full
//! volumes, names and paths that cannot be, and devices that fail on any one of their calls. A run
//! fails one call in nine, by the day; with `LANEFS_LONG=9` all of them.

use lanefs::{Error, OpenOptions, SetXattr, Volume};
use lanefs_device::{BlockDevice, MemDevice, Op as DeviceOp};
use lanefs_sim::{FailingDevice, Image, OverlayDevice};
use lanefs_tests::{
    ClosedVolumes, Host, Kind, Lane, LoopMount, Op, OpenHow, Outcome, RenameHow, Target, e2fsck_clean,
    mke2fs, open, slice, writing,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn volume(size: u64, args: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    mke2fs(&path, size, args);
    (dir, path)
}

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed"];

fn make(path: &str) -> Op {
    let how = OpenHow { create: true, write: true, ..OpenHow::default() };
    Op::Open { path: path.into(), how, mode: 0o644 }
}

fn link(target: &str, path: &str) -> Op {
    Op::Symlink { target: target.into(), path: path.into() }
}

fn mkdir(path: &str) -> Op {
    Op::Mkdir { path: path.into(), mode: 0o755 }
}

/// The same on both sides, and what it is.
#[test]
fn paths_that_cannot_be() {
    let (_one, by_kernel) = volume(16 << 20, EXT4);
    let (_two, by_lanefs) = volume(16 << 20, EXT4);
    let mount = LoopMount::new(&by_kernel, "");
    let host = Host::new(mount.path());
    let lane = Lane(open(writing(), &by_lanefs).unwrap());
    let prepare = [
        make("file"),
        mkdir("dir"),
        make("dir/inside"),
        make(&"n".repeat(255)),
        link("loop b", "loop a"),
        link("loop a", "loop b"),
        link("itself", "itself"),
        link("file", "link to file"),
        link("nowhere", "dangling"),
    ];
    host.apply_all(&prepare);
    lane.apply_all(&prepare);
    // 40 links are followed, 41 are not.
    for i in 0..45 {
        let op =
            link(&if i == 0 { "file".into() } else { format!("chain {}", i - 1) }, &format!("chain {i}"));
        assert_eq!((host.apply(&op).is_ok(), lane.apply(&op).is_ok()), (true, true));
    }
    for (op, expected) in operations_on_such_paths() {
        let (kernel, lanefs) = (host.apply(&op), lane.apply(&op));
        assert_eq!(kernel, lanefs, "{op:?}");
        assert_eq!(lanefs.map(|_| ()), expected, "{op:?}");
    }
    lane.0.close().unwrap();
    e2fsck_clean(&by_lanefs);
}

/// Operations in the volumes of [`paths_that_cannot_be`], and how each ends.
fn operations_on_such_paths() -> Vec<(Op, Result<(), i32>)> {
    let (long, too_long) = ("n".repeat(255), "n".repeat(256));
    let stat = |path: &str| Op::Stat { path: path.into(), follow: true };
    let unlink = |path: &str| Op::Unlink { path: path.into() };
    let rmdir = |path: &str| Op::Rmdir { path: path.into() };
    let rename =
        |from: &str, to: &str| Op::Rename { from: from.into(), to: to.into(), how: RenameHow::Replace };
    let fail = |op, errno| (op, Err(errno));
    vec![
        (stat(&long), Ok(())),
        fail(stat(&too_long), libc::ENAMETOOLONG),
        fail(make(&too_long), libc::ENAMETOOLONG),
        fail(mkdir(&format!("dir/{too_long}")), libc::ENAMETOOLONG),
        fail(link("x", &too_long), libc::ENAMETOOLONG),
        fail(unlink(&too_long), libc::ENAMETOOLONG),
        fail(rename("file", &too_long), libc::ENAMETOOLONG),
        fail(rename(&too_long, "file"), libc::ENAMETOOLONG),
        fail(Op::Link { from: "file".into(), to: too_long.clone().into() }, libc::ENAMETOOLONG),
        fail(stat(&format!("{too_long}/x")), libc::ENAMETOOLONG),
        fail(link(&"t".repeat(1024), "new"), libc::ENAMETOOLONG),
        (link(&"t".repeat(1023), "new"), Ok(())),
        fail(stat("file/x"), libc::ENOTDIR),
        fail(make("file/x"), libc::ENOTDIR),
        fail(mkdir("file/x"), libc::ENOTDIR),
        fail(rmdir("file"), libc::ENOTDIR),
        fail(stat("file/"), libc::ENOTDIR),
        fail(stat("link to file/."), libc::ENOTDIR),
        fail(rename("dir", "file"), libc::ENOTDIR),
        fail(rename("file", "dir"), libc::EISDIR),
        fail(unlink("dir"), libc::EISDIR),
        fail(make("dir"), libc::EISDIR),
        fail(rmdir("dir"), libc::ENOTEMPTY),
        fail(rename("dir", "dir/inside/x"), libc::ENOTDIR),
        fail(rename("dir", "dir/x"), libc::EINVAL),
        fail(rmdir("/"), libc::EBUSY),
        fail(mkdir("/"), libc::EEXIST),
        fail(stat("loop a"), libc::ELOOP),
        fail(stat("loop a/x"), libc::ELOOP),
        fail(make("itself"), libc::ELOOP),
        (stat("chain 39"), Ok(())),
        fail(stat("chain 40"), libc::ELOOP),
        fail(stat("dangling"), libc::ENOENT),
        fail(stat("nothing/x"), libc::ENOENT),
        fail(stat(""), libc::ENOENT),
        fail(Op::ReadLink { path: "file".into() }, libc::EINVAL),
        fail(Op::Link { from: "dir".into(), to: "dir2".into() }, libc::EPERM),
        fail(mkdir("file"), libc::EEXIST),
        fail(Op::List { path: "file".into() }, libc::ENOTDIR),
        fail(Op::Truncate { path: "file".into(), len: 1 << 60 }, libc::EFBIG),
        fail(Op::Mknod { path: "file".into(), kind: Kind::Fifo, device: (0, 0), mode: 0 }, libc::EEXIST),
    ]
}

/// Fills the volume by `op` until it says that there is no room; how many fitted.
fn fill(target: &impl Target, op: impl Fn(usize) -> Vec<Op>) -> usize {
    for i in 0..100_000 {
        for op in op(i) {
            match target.apply(&op) {
                Ok(_) => {}
                Err(errno) => {
                    assert_eq!(errno, libc::ENOSPC, "{op:?}");
                    return i;
                }
            }
        }
    }
    panic!("it never gets full");
}

fn create(path: String) -> Op {
    let how = OpenHow { create: true, write: true, excl: true, ..OpenHow::default() };
    Op::Open { path: path.into(), how, mode: 0o644 }
}

#[test]
fn no_blocks_left() {
    for args in [EXT4, &["-t", "ext3", "-b", "1024"], &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]] {
        let (_dir, image) = volume(12 << 20, args);
        let lane = Lane(open(writing(), &image).unwrap());
        let before = "before it was full".repeat(1000).into_bytes();
        lane.0.write("/kept", &before).unwrap();
        lane.0.create_dir("/dir").unwrap();
        let files = fill(&lane, |i| {
            let path = format!("file {i}");
            vec![create(path.clone()), Op::Write { path: path.into(), offset: 0, len: 50_000, fill: 1 }]
        });
        assert!(files > 50, "only {files} files of 50 kB");
        // To the last block: what takes any fails and changes nothing.
        fill(&lane, |_| vec![Op::Append { path: "kept".into(), len: 100, fill: 2 }]);
        // A write leaves what its map might need; a directory takes that too.
        fill(&lane, |i| vec![Op::Mkdir { path: format!("last {i}").into(), mode: 0o755 }]);
        let names = lane.0.read_dir("/").unwrap().len();
        for (what, result) in [
            ("mkdir", lane.0.create_dir("/more")),
            ("symlink", lane.0.symlink("s".repeat(500), "/more")),
            ("xattr", lane.0.set_xattr("/kept", "user.large", &[1; 700], SetXattr::Any)),
        ] {
            let e = result.unwrap_err();
            assert!(matches!(e.kind(), Error::NoSpace), "{what}: {e}");
        }
        assert_eq!(lane.0.read_dir("/").unwrap().len(), names);
        assert_eq!(&lane.0.read("/kept").unwrap()[..before.len()], before);
        lane.0.sync().unwrap();
        // There is room again once something goes.
        lane.0.remove_file("/file 0").unwrap();
        lane.0.remove_file("/file 1").unwrap();
        lane.0.sync().unwrap();
        lane.0.write("/dir/after", &before).unwrap();
        assert_eq!(lane.0.read("/dir/after").unwrap(), before);
        lane.0.close().unwrap();
        e2fsck_clean(&image);
        let mount = LoopMount::new(&image, "ro");
        assert_eq!(std::fs::read(mount.path().join("dir/after")).unwrap(), before);
        assert_eq!(&std::fs::read(mount.path().join("kept")).unwrap()[..before.len()], before);
    }
}

/// As many files as the kernel makes, and then the same error.
#[test]
fn no_inodes_left() {
    let args = ["-t", "ext4", "-b", "1024", "-N", "128"];
    let made = |target: &dyn Target| {
        let outcome = |i| -> Outcome { target.apply(&create(format!("file {i}"))) };
        (0..1000).map(|i| (i, outcome(i))).find(|(_, o)| o.is_err()).unwrap()
    };
    let (_one, by_kernel) = volume(8 << 20, &args);
    let (_two, by_lanefs) = volume(8 << 20, &args);
    let mount = LoopMount::new(&by_kernel, "");
    let lane = Lane(open(writing(), &by_lanefs).unwrap());
    let (kernel, lanefs) = (made(&Host::new(mount.path())), made(&lane));
    assert_eq!(lanefs, kernel);
    assert_eq!(lanefs.1, Err(libc::ENOSPC));
    lane.0.remove_file("/file 3").unwrap();
    lane.0.create_dir("/in its place").unwrap();
    lane.0.close().unwrap();
    e2fsck_clean(&by_lanefs);
}

/// Content that was written and then made durable, so that it must be there for ever.
type Promises = Vec<(PathBuf, Vec<u8>)>;

/// A program that goes on whatever fails. Everything that it was promised, and the errors it met.
fn workload(volume: &Volume) -> (Promises, Vec<Error>) {
    let (mut promised, mut errors) = (Promises::new(), Vec::new());
    let mut written = Promises::new();
    for round in 0..5_u8 {
        let dir = PathBuf::from(format!("/round {round}"));
        let mut note = |result: lanefs::Result<()>| result.map_err(|e| errors.push(e)).is_ok();
        note(volume.create_dir(&dir));
        for i in 0..4_u8 {
            let (path, content) =
                (dir.join(format!("file {i}")), vec![round * 16 + i + 1; 700 * usize::from(i + 1)]);
            let named = dir.join(format!("named {i}"));
            if note(volume.write(&path, &content)) && note(volume.rename(&path, &named)) {
                written.push((named.clone(), content));
            }
            note(volume.set_xattr(&named, "user.round", &[round; 300], SetXattr::Any));
        }
        // What goes before it was promised.
        note(volume.write(dir.join("gone"), &[9; 9000]));
        note(volume.remove_file(dir.join("gone")));
        let before = format!("/round {}/temporary", round.saturating_sub(1));
        note(volume.write(&before, &[8; 3000]));
        note(volume.remove_file(&before));
        if note(volume.sync()) {
            promised.append(&mut written);
        }
    }
    (promised, errors)
}

fn options() -> OpenOptions {
    // A small cache, so that blocks are read again in the middle of operations.
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).metadata_cache_bytes(16 << 10)
}

/// Runs the workload on a device whose `nth` call of `op` fails, and those behind it if `for_ever`;
/// then looks at what a healed device holds. Whether the device failed at all.
fn run_failing(good: &Image, op: DeviceOp, nth: u64, for_ever: bool, closed: &mut ClosedVolumes) -> bool {
    let what = format!("{op:?} {nth}{}", if for_ever { " and all that follow" } else { "" });
    let device = Arc::new(FailingDevice::new(OverlayDevice::new(good.clone())));
    if for_ever {
        device.fail_from(op, nth, libc::EIO);
    } else {
        device.fail_once(op, nth, libc::EIO);
    }
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let mut promised = Promises::new();
    match options().open_device(shared) {
        Err(e) => assert_eq!(e.errno(), libc::EIO, "{what}: open: {e}"),
        Ok(volume) => {
            let (kept, errors) = workload(&volume);
            promised = kept;
            for e in errors {
                // A name whose making failed is not there later.
                let follows = matches!(e.kind(), Error::NotFound) && device.failures() > 0;
                assert!(follows || [libc::EIO, libc::EROFS].contains(&e.errno()), "{what}: {e}");
            }
            if let Err(e) = volume.close() {
                assert!([libc::EIO, libc::EROFS].contains(&e.errno()), "{what}: close: {e}");
            }
        }
    }
    let failed = device.failures() > 0;
    device.heal();
    let healed = Arc::new(OverlayDevice::new(device.inner().image()));
    let shared: Arc<dyn BlockDevice> = Arc::clone(&healed) as _;
    let volume = options().open_device(shared).unwrap_or_else(|e| panic!("{what}: open again: {e}"));
    for (path, content) in &promised {
        let found =
            volume.read(path).unwrap_or_else(|e| panic!("{what}: {} was promised: {e}", path.display()));
        assert!(found == *content, "{what}: {} was promised", path.display());
    }
    volume.close().unwrap_or_else(|e| panic!("{what}: close again: {e}"));
    let judged = closed.judge(Arc::clone(&healed) as _, || healed.image());
    judged.unwrap_or_else(|said| panic!("{what}: {said}"));
    failed
}

fn every_call_fails(op: DeviceOp, args: &[&str]) {
    let (_dir, path) = volume(8 << 20, args);
    let good = Image::from_bytes(std::fs::read(&path).unwrap());
    let mut closed = ClosedVolumes::like(&good);
    // More than there are: the workload runs whole, and every promise is made.
    assert!(!run_failing(&good, op, 1 << 40, false, &mut closed));
    let mut calls = 0;
    for nth in slice(1.., 9) {
        let failed = run_failing(&good, op, nth, false, &mut closed);
        if nth % 2 == 1 {
            run_failing(&good, op, nth, true, &mut closed);
        }
        if !failed {
            break;
        }
        calls = nth;
    }
    println!("{op:?}: {calls} calls failed in turn");
    assert!(calls > 0, "no call failed");
}

#[test]
fn every_write_fails() {
    every_call_fails(DeviceOp::Write, EXT4);
}

#[test]
fn every_read_fails() {
    every_call_fails(DeviceOp::Read, EXT4);
}

#[test]
fn every_flush_fails() {
    every_call_fails(DeviceOp::Flush, EXT4);
}

#[test]
fn every_write_fails_with_indirect_blocks() {
    every_call_fails(DeviceOp::Write, &["-t", "ext3", "-b", "1024", "-I", "128"]);
}

/// A volume on a device that takes no writes at all is told so, and is left alone.
#[test]
fn a_device_for_reading() {
    let (_dir, path) = volume(8 << 20, EXT4);
    let before = std::fs::read(&path).unwrap();
    let volume = Volume::open_read_only(&path).unwrap();
    let errno = |r: lanefs::Result<()>| r.unwrap_err().errno();
    assert_eq!(errno(volume.write("/x", b"x")), libc::EROFS);
    assert_eq!(errno(volume.create_dir("/x")), libc::EROFS);
    assert_eq!(errno(volume.remove_dir(Path::new("/lost+found"))), libc::EROFS);
    drop(volume);
    assert!(before == std::fs::read(&path).unwrap());
}

/// Inodes of the Hurd have other fields where lanefs writes its own.
#[test]
fn a_volume_of_the_hurd_is_for_reading() {
    let (_dir, path) = volume(16 << 20, &["-t", "ext2", "-o", "hurd"]);
    let before = std::fs::read(&path).unwrap();
    let refused = Volume::open(&path).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{refused}");
    assert!(refused.to_string().contains("inodes of the Hurd"), "{refused}");
    let volume = Volume::open_read_only(&path).unwrap();
    assert_eq!(volume.read_dir("/lost+found").unwrap().len(), 0);
    volume.close().unwrap();
    assert!(before == std::fs::read(&path).unwrap());
}

/// That a journal was aborted stands in its superblock; the next open notes it in that of the
/// volume.
#[test]
fn an_aborted_journal_is_noted_in_the_volume() {
    let (_dir, path) = volume(16 << 20, EXT4);
    let good = Image::from_bytes(std::fs::read(&path).unwrap());
    let device = Arc::new(FailingDevice::new(OverlayDevice::new(good)));
    let volume = options().open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
    volume.create_dir("/d").unwrap();
    device.fail_once(DeviceOp::Flush, 1, libc::EIO);
    assert!(volume.sync().is_err());
    let after = Arc::new(OverlayDevice::new(device.inner().image()));
    drop(volume);
    for _ in 0..2 {
        let volume = options().open_device(Arc::clone(&after) as Arc<dyn BlockDevice>).unwrap();
        let state = volume.info().superblock.state();
        assert!(state.contains(lanefs_format::State::ERROR_FS), "{state:?}");
        volume.close().unwrap();
    }
}

/// Each way to a block of a file, where one bit of it is flipped: an error each time that it is
/// used, not the first time only.
#[test]
fn a_flipped_bit_is_an_error_each_time() {
    let (_dir, path) = volume(8 << 20, EXT4);
    let volume = open(writing(), &path).unwrap();
    volume.create_dir("/d").unwrap();
    volume.write("/d/the-needle", b"").unwrap();
    volume.write("/a", b"").unwrap();
    volume.set_xattr("/a", "user.note", &[b'n'; 600], SetXattr::Any).unwrap();
    let holes = volume.create_file("/holes").unwrap();
    (0..40).for_each(|n| holes.write_at(b"data", n * 4096).unwrap());
    drop(holes);
    volume.close().unwrap();
    let good = std::fs::read(&path).unwrap();
    // What a block is told by, the byte of it that is changed, and a use of it.
    type Told = fn(&[u8]) -> bool;
    type Use = fn(&Volume) -> lanefs::Result<()>;
    let cases: [(&str, Told, usize, Use); 3] = [
        ("names", |block| block.windows(10).any(|w| w == b"the-needle"), 8, |v| v.read_dir("/d").map(drop)),
        (
            "attributes",
            |block| block.starts_with(&0xEA02_0000u32.to_le_bytes()),
            1000,
            |v| v.xattr("/a", "user.note").map(drop),
        ),
        (
            "extents",
            |block| block.starts_with(&0xF30Au16.to_le_bytes()),
            20,
            |v| v.open_file("/holes")?.read_at(&mut [0; 4], 39 * 4096).map(drop),
        ),
    ];
    for (what, is_it, byte, used) in cases {
        let mut image = good.clone();
        // Copies in the log too.
        let blocks = image.chunks_exact_mut(1024).filter(|block| is_it(block));
        assert!(blocks.map(|block| block[byte] ^= 1).count() > 0, "{what}");
        let volume = OpenOptions::new().open_device(Arc::new(MemDevice::from_bytes(image))).unwrap();
        for n in 0..3 {
            let told = used(&volume).map_err(|e| e.to_string());
            assert!(matches!(&told, Err(e) if e.contains("checksum")), "{what}, use {n}: {told:?}");
        }
    }
}
