//! Operations on a device that fails one read, and on a volume that is almost full: each is done
//! wholly or not at all, and nothing else changes. A run tries a third of the cases, by the day;
//! with `LANEFS_LONG=3` all of them.

use lanefs::{
    AtSymlink, DeviceNumber, Error, FallocMode, FileType, NewAttr, OpenOptions, RenameFlags, SetAttr,
    SetXattr, Volume,
};
use lanefs_device::Op;
use lanefs_sim::{FailingDevice, Image, OverlayDevice};
use lanefs_tests::{ClosedVolumes, memory_dir, mke2fs, slice, volume_lines};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Error>;
type Device = FailingDevice<OverlayDevice>;

const SIZE: u64 = 8 << 20;

const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
    &["-t", "ext4", "-b", "4096", "-O", "^orphan_file"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
];

const ATTR: NewAttr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
const FIFO: DeviceNumber = DeviceNumber { major: 0, minor: 0 };

/// A default ACL with as many users, which makes it long.
pub(crate) fn acl(users: u32) -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, perm: u16, id: u32| {
        acl.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    };
    entry(1, 7, u32::MAX);
    (1..=users).for_each(|user| entry(2, 5, user));
    entry(4, 5, u32::MAX);
    entry(16, 7, u32::MAX);
    entry(32, 5, u32::MAX);
    acl
}

/// A name that only four times fits into a block of 1 KiB.
fn long(name: &str) -> String {
    format!("{name:x<240}")
}

fn options() -> OpenOptions {
    OpenOptions::new().write(true).use_reserved(true).commit_interval(Duration::ZERO)
}

fn open(image: Image) -> (Arc<Device>, Volume) {
    let device = Arc::new(FailingDevice::new(OverlayDevice::new(image)));
    let volume = options().open_device(Arc::clone(&device) as _).unwrap();
    (device, volume)
}

/// The volume that every operation begins with.
fn prepare(kind: &[&str]) -> Image {
    let dir = memory_dir();
    let path = dir.path().join("volume");
    mke2fs(&path, SIZE, kind);
    let (device, volume) = open(Image::from_bytes(std::fs::read(path).unwrap()));
    let bytes = |len: usize| (0..len).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
    volume.write("/witness", &bytes(50_000)).unwrap();
    volume.write("/large", &bytes(200_000)).unwrap();
    // Of many extents, each with a hole behind it.
    let file = volume.create_file("/parted").unwrap().with_direct(true);
    (0..12).for_each(|i| file.write_at(&bytes(4096), i * 8192).unwrap());
    drop(file);
    for dir in ["/full", "/many", "/empty", "/tree", "/tree/sub", "/other", "/acl"] {
        volume.create_dir(dir).unwrap();
    }
    (0..4).for_each(|i| volume.write(format!("/full/{}", long(&i.to_string())), b"").unwrap());
    (0..40).for_each(|i| volume.write(format!("/many/{}", long(&i.to_string())), b"").unwrap());
    for name in ["/linked", "/small", "/attrs", "/same1", "/same2", "/other/file"] {
        volume.write(name, b"some bytes").unwrap();
    }
    volume.hard_link("/linked", "/linked2").unwrap();
    let set =
        |path: &str, name: &str, value: &[u8]| volume.set_xattr(path, name, value, SetXattr::Any).unwrap();
    set("/attrs", "user.large", &[1; 700]);
    set("/same1", "user.large", &[2; 700]);
    set("/same2", "user.large", &[2; 700]);
    set("/acl", "system.posix_acl_default", &acl(40));
    volume.symlink("t".repeat(300), "/symlink").unwrap();
    volume.close().unwrap();
    device.inner().image()
}

struct Operation {
    name: &'static str,
    run: fn(&Volume) -> Result<()>,
    /// All that it reads it reads before it changes anything, so that no read aborts the journal.
    gathers: bool,
}

fn file(volume: &Volume, path: &str) -> Result<lanefs::File> {
    volume.open_options().read(true).write(true).open(path)
}

fn allocate(volume: &Volume, path: &str, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
    file(volume, path)?.fallocate(mode, offset, len)
}

fn mode(mode: u16) -> SetAttr {
    SetAttr { permissions: Some(mode), ..SetAttr::default() }
}

const fn op(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run, gathers: true }
}

/// Returns an operation as [`op`] does, which reads more of a map while it changes it.
const fn reads(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run, gathers: false }
}

const OPERATIONS: &[Operation] = &[
    op("create", |v| v.at().open_options().write(true).create_new(true).open("/new").map(drop)),
    op("create with an ACL", |v| v.open_options().write(true).create_new(true).open("/acl/new").map(drop)),
    reads("create in a full block", |v| v.create_file(format!("/full/{}", long("new"))).map(drop)),
    reads("create among many", |v| v.create_file(format!("/many/{}", long("new"))).map(drop)),
    op("mkdir", |v| v.create_dir("/new")),
    op("mkdir with an ACL", |v| v.create_dir("/acl/new")),
    op("symlink", |v| v.symlink("target", "/new")),
    op("long symlink", |v| v.symlink("t".repeat(200), "/new")),
    op("mknod", |v| v.mknod("/new", FileType::Fifo, FIFO, ATTR)),
    op("link", |v| v.hard_link("/small", "/new")),
    reads("link into a full block", |v| v.hard_link("/small", format!("/full/{}", long("new")))),
    op("unlink", |v| v.remove_file("/small")),
    op("unlink of one name", |v| v.remove_file("/linked")),
    op("unlink of a large file", |v| v.remove_file("/large")),
    op("unlink of a parted file", |v| v.remove_file("/parted")),
    op("unlink of a symlink", |v| v.remove_file("/symlink")),
    op("unlink with attributes", |v| v.remove_file("/attrs")),
    op("unlink with shared attributes", |v| v.remove_file("/same1")),
    op("rmdir", |v| v.remove_dir("/empty")),
    op("rename", |v| v.rename("/small", "/renamed")),
    op("rename across", |v| v.rename("/small", "/other/renamed")),
    op("rename over", |v| v.rename("/small", "/linked")),
    op("rename over the last name", |v| v.rename("/small", "/other/file")),
    reads("rename into a full block", |v| v.rename("/small", format!("/full/{}", long("new")))),
    op("rename a directory", |v| v.rename("/tree/sub", "/other/sub")),
    op("rename over a directory", |v| v.rename("/tree", "/empty")),
    op("exchange", |v| v.rename_with("/small", "/other/file", RenameFlags::Exchange)),
    op("exchange with a directory", |v| v.rename_with("/tree/sub", "/other/file", RenameFlags::Exchange)),
    op("chmod", |v| v.set_attr("/small", &mode(0o600), AtSymlink::Follow)),
    op("chmod of an ACL", |v| v.set_attr("/acl", &mode(0o700), AtSymlink::Follow)),
    op("chown", |v| v.set_attr("/small", &SetAttr { uid: Some(5), ..mode(0o640) }, AtSymlink::Follow)),
    op("truncate", |v| file(v, "/large")?.set_len(100_001)),
    op("truncate to nothing", |v| file(v, "/parted")?.set_len(0)),
    op("extend", |v| file(v, "/large")?.set_len(300_001)),
    op("write over", |v| file(v, "/small")?.write_at(b"other", 0).and_then(|()| v.sync())),
    op("write a new file", |v| v.write("/new", &[7; 5000]).and_then(|()| v.sync())),
    reads("write into a hole", |v| {
        let file = file(v, "/parted")?;
        file.write_at(&[9; 4096], 3 * 8192 + 4096)?;
        file.sync_all()
    }),
    reads("write into a hole directly", |v| {
        file(v, "/parted")?.with_direct(true).write_at(&[9; 4096], 3 * 8192 + 4096)
    }),
    reads("allocate", |v| allocate(v, "/parted", FallocMode::Allocate, 5 * 8192, 8192)),
    reads("allocate behind the end", |v| allocate(v, "/large", FallocMode::Allocate, 200_704, 40_960)),
    reads("punch", |v| allocate(v, "/large", FallocMode::PunchHole, 40_960, 8192)),
    reads("zero", |v| allocate(v, "/large", FallocMode::ZeroRange, 40_960, 8192)),
    reads("collapse", |v| allocate(v, "/parted", FallocMode::CollapseRange, 3 * 8192, 8192)),
    reads("insert", |v| allocate(v, "/parted", FallocMode::InsertRange, 3 * 8192, 8192)),
    op("set an attribute", |v| v.set_xattr("/small", "user.name", b"value", SetXattr::Any)),
    op("set a large attribute", |v| v.set_xattr("/small", "user.name", &[3; 600], SetXattr::Any)),
    op("change an attribute", |v| v.set_xattr("/attrs", "user.large", &[3; 600], SetXattr::Any)),
    op("share an attribute", |v| v.set_xattr("/attrs", "user.large", &[2; 700], SetXattr::Any)),
    op("change a shared attribute", |v| v.set_xattr("/same1", "user.large", &[3; 600], SetXattr::Any)),
    op("remove an attribute", |v| v.remove_xattr("/attrs", "user.large")),
    op("remove a shared attribute", |v| v.remove_xattr("/same2", "user.large")),
    op("nameless file", |v| v.open_dir("/other")?.create_nameless(ATTR).map(drop)),
    op("nameless file that gets a name", |v| {
        let file = v.open_dir("/other")?.create_nameless(ATTR)?;
        v.link_file(&file, "/new")
    }),
];

/// The result of an operation.
struct Outcome {
    result: Result<()>,
    /// The journal was aborted.
    aborted: bool,
    /// The volume after it was opened again.
    lines: Vec<String>,
    /// Whether a read failed.
    failed: bool,
}

/// Runs `operation`, with an order to fail given to the device before, closes the volume, and opens
/// it again without fault. `closed` judges what is left.
fn run(
    image: &Image,
    operation: &Operation,
    closed: &mut ClosedVolumes,
    order: impl FnOnce(&Device),
) -> Outcome {
    let (device, volume) = open(image.clone());
    order(&device);
    let result = (operation.run)(&volume);
    device.heal();
    let aborted = volume.sync().is_err();
    let ended = volume.close();
    assert_eq!(ended.is_err(), aborted, "{}: {ended:?}", operation.name);
    let (again, volume) = open(device.inner().image());
    let lines = volume_lines(&volume);
    volume.close().unwrap();
    let judged = closed.judge(Arc::clone(&again) as _, || again.inner().image());
    judged.unwrap_or_else(|said| panic!("{}, {result:?}: {said}", operation.name));
    Outcome { result, aborted, lines, failed: device.failures() > 0 }
}

/// Says how `lines` differ from `expected`.
pub(crate) fn difference(lines: &[String], expected: &[String]) -> String {
    let mut said = String::new();
    for line in lines.iter().filter(|line| !expected.contains(line)) {
        writeln!(said, "+ {line}").unwrap();
    }
    for line in expected.iter().filter(|line| !lines.contains(line)) {
        writeln!(said, "- {line}").unwrap();
    }
    said
}

/// Every read of an operation fails once, with cold caches.
#[test]
fn a_read_that_fails_leaves_no_half() {
    for kind in KINDS {
        let image = prepare(kind);
        let mut closed = ClosedVolumes::like(&image);
        let before = volume_lines(&open(image.clone()).1);
        for operation in slice(OPERATIONS.iter(), 3) {
            let name = operation.name;
            let after = run(&image, operation, &mut closed, |_| {});
            match after.result.map_err(Error::into_kind) {
                // Only trees of extents can be changed so.
                Err(Error::NotSupported(_)) if kind.contains(&"ext3") => continue,
                result => result.unwrap_or_else(|e| panic!("{kind:?} {name}: {e}")),
            }
            let (mut nth, mut aborts) = (0, Vec::new());
            loop {
                nth += 1;
                let outcome = run(&image, operation, &mut closed, |d| d.fail_once(Op::Read, nth, 5));
                let at = format!("{kind:?} {name}, read {nth}: {:?}", outcome.result);
                let (lines, whole) = (&outcome.lines, *outcome.lines == after.lines);
                assert!(
                    whole || *lines == before,
                    "{at}: half done\nbefore:\n{}after:\n{}",
                    difference(lines, &before),
                    difference(lines, &after.lines)
                );
                assert!(whole || outcome.result.is_err(), "{at}: was said to be done");
                if outcome.aborted {
                    aborts.push(nth);
                }
                if !outcome.failed {
                    break;
                }
            }
            assert!(
                aborts.is_empty() || !operation.gathers,
                "{kind:?} {name}: reads {aborts:?} abort the journal"
            );
        }
    }
}

/// What a truncation has cut off is not in the file when that grows, whichever read failed; and it
/// can be truncated again.
#[test]
fn a_truncation_that_fails_brings_nothing_back() {
    for kind in KINDS {
        let image = prepare(kind);
        let mut refused = 0;
        for nth in 1.. {
            let (device, volume) = open(image.clone());
            device.fail_once(Op::Read, nth, 5);
            let at = format!("{kind:?}, read {nth}");
            let large = file(&volume, "/large").and_then(|file| file.set_len(10_000).map(|()| file));
            device.heal();
            if device.failures() == 0 {
                break;
            }
            let file = file(&volume, "/large").unwrap_or_else(|e| panic!("{at}: {e}"));
            let is_cut = file.metadata().len() == 10_000;
            if large.is_err() && is_cut {
                let grown = file.write_at(&[1], 150_000);
                assert!(matches!(grown, Err(Error::CutShort { .. })), "{at}: {grown:?}");
                refused += 1;
            } else {
                file.set_len(10_000).unwrap_or_else(|e| panic!("{at}, again: {e}"));
            }
            file.set_len(150_000).unwrap_or_else(|e| panic!("{at}, larger: {e}"));
            let content = volume.read("/large").unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(content[10_000..].iter().all(|byte| *byte == 0), "{at}: what was cut off is back");
            volume.close().unwrap_or_else(|e| panic!("{at}: {e}"));
        }
        assert!(refused > 0, "{kind:?}: no truncation failed behind its change of the size");
    }
}

/// Every operation on a volume with as many free blocks, from none on.
#[test]
fn a_full_volume_leaves_no_half() {
    for kind in KINDS {
        let image = prepare(kind);
        let mut closed = ClosedVolumes::like(&image);
        let before = volume_lines(&open(image.clone()).1);
        let mut whole = |op| difference(&run(&image, op, &mut closed, |_| {}).lines, &before);
        let whole: Vec<String> = OPERATIONS.iter().map(&mut whole).collect();
        for blocks in slice(0..=12, 3) {
            let image = with_free(&image, blocks);
            let before = volume_lines(&open(image.clone()).1);
            for (operation, whole) in OPERATIONS.iter().zip(&whole) {
                let outcome = run(&image, operation, &mut closed, |_| {});
                let at = format!("{kind:?} {}, {blocks} blocks: {:?}", operation.name, outcome.result);
                assert!(!outcome.aborted, "{at}: the journal was aborted");
                let change = difference(&outcome.lines, &before);
                match outcome.result.map_err(Error::into_kind) {
                    Ok(()) => assert_eq!(&change, whole, "{at}: not the whole"),
                    Err(Error::NotSupported(_)) if kind.contains(&"ext3") => {
                        assert!(change.is_empty(), "{at}: half done\n{change}");
                    }
                    Err(Error::NoSpace) => {
                        // A write stops where there is no space for more.
                        let may_stop = operation.name.starts_with("write");
                        assert!(change.is_empty() || may_stop, "{at}: half done\n{change}");
                    }
                    Err(e) => panic!("{at}: {e}"),
                }
            }
        }
    }
}

/// Fills the volume but for `blocks`.
pub(crate) fn with_free(image: &Image, blocks: u64) -> Image {
    let (device, volume) = open(image.clone());
    let filler = volume.create_file("/filler").unwrap();
    let block_size = u64::from(volume.metadata("/").unwrap().block_size());
    let mut size = 0;
    // In pieces, smaller and smaller, for the last blocks.
    for piece in [64, 1] {
        let bytes = vec![5; piece * block_size as usize];
        while filler.with_direct(true).write_at(&bytes, size).is_ok() {
            size += bytes.len() as u64;
        }
    }
    volume.sync().unwrap();
    let free = volume.statfs().blocks_free;
    let cut = blocks.saturating_sub(free) * block_size;
    filler.set_len(size - cut).unwrap();
    drop(filler);
    volume.close().unwrap();
    device.inner().image()
}
