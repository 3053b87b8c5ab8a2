//! Another size: against resize2fs, e2fsck, the kernel, and power loss at every write.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod moves;
mod online;
mod power;
mod power_online;
mod retry;

use lanefs::{Error, FallocMode, OpenOptions, Resize, ResizeError, SetXattr, Volume};
use lanefs_check::check;
use lanefs_device::{BlockDevice, FileOptions, Op};
use lanefs_sim::FailingDevice;
use lanefs_tests::{
    LoopMount, copy_file, debugfs_write, dumpe2fs, e2fsck, e2fsck_clean, memory_dir, mke2fs, require_root,
    require_tools, run, volume_digest,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Shapes of volumes: options of mke2fs, MiB before and after.
const SHAPES: &[(&str, &[&str], u64, u64)] = &[
    ("within the last group", &["-t", "ext4", "-b", "4096"], 40, 90),
    ("default", &["-t", "ext4", "-b", "4096"], 64, 700),
    ("1k", &["-t", "ext4", "-b", "1024"], 20, 333),
    ("into the reserve", &["-t", "ext4", "-b", "1024"], 20, 1100),
    ("to a short last group", &["-t", "ext4", "-b", "1024"], 16, 409),
    ("of short groups", &["-t", "ext4", "-b", "1024", "-g", "2048"], 16, 300),
    ("many inodes", &["-t", "ext4", "-b", "1024", "-i", "1024"], 20, 150),
    ("without flex_bg", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"], 20, 333),
    ("without checksums", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"], 20, 333),
    ("uninit_bg", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"], 20, 333),
    ("32-bit", &["-t", "ext4", "-b", "1024", "-O", "^64bit"], 20, 333),
    ("without a journal", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 20, 333),
    ("ext3", &["-t", "ext3", "-b", "1024"], 20, 333),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"], 20, 333),
    ("to meta_bg", &["-t", "ext4", "-b", "1024", "-O", "^resize_inode"], 20, 700),
    ("past the reserve", &["-t", "ext4", "-b", "1024", "-E", "resize=300000"], 20, 700),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2"], 40, 333),
    ("all backups", &["-t", "ext4", "-b", "1024", "-O", "^sparse_super,^resize_inode"], 20, 100),
    ("orphan_file", &["-t", "ext4", "-b", "4096", "-O", "orphan_file"], 64, 700),
];

fn open(device: Arc<dyn BlockDevice>) -> Resize {
    Resize::open(device, OpenOptions::new()).unwrap()
}

/// Puts files into a volume.
fn fill(volume: &Volume) {
    for n in 0..40 {
        let name = format!("/dir{}", n % 5);
        volume.create_dir_all(&name).unwrap();
        volume.write(format!("{name}/file{n}"), &vec![n as u8; 1000 * n]).unwrap();
    }
    for n in 0..20 {
        volume.remove_file(format!("/dir{}/file{n}", n % 5)).unwrap();
    }
}

/// Makes a volume of `size` bytes with files in it. Returns what it holds.
fn make(path: &Path, size: u64, options: &[&str]) -> u64 {
    mke2fs(path, size, options);
    let volume = Volume::open(path).unwrap();
    fill(&volume);
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    digest
}

/// Grows the volume in a file, as the command does.
fn grow(path: &Path, size: u64) -> Resize {
    let before = path.metadata().unwrap().len();
    File::options().write(true).open(path).unwrap().set_len(size).unwrap();
    let mut resize = open(Arc::new(FileOptions::new().open(path).unwrap()));
    resize.grow(size, Some(before)).unwrap();
    resize
}

/// Holds a closed volume against both checks, its content, and the allocators.
fn judge(path: &Path, digest: u64, name: &str) {
    e2fsck_clean(path);
    let device = Arc::new(FileOptions::new().open(path).unwrap());
    let report = check(device.clone(), &lanefs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{name}: {:?}", report.findings);
    drop(device);
    let volume = Volume::open(path).unwrap();
    assert_eq!(volume_digest(&volume), digest, "{name}");
    volume.close().unwrap();
}

/// The head of dumpe2fs, by field.
fn head(path: &Path) -> BTreeMap<String, String> {
    let lines = dumpe2fs(path, &["-h"]);
    let fields = lines.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

#[test]
fn grown_volumes_are_sound_and_like_those_of_resize2fs() {
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let (path, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for (name, options, before, after) in SHAPES {
        let digest = make(&path, before << 20, options);
        copy_file(&path, &theirs);
        let resize = grow(&path, after << 20);
        println!("{name}: {} groups", resize.groups());
        drop(resize);
        judge(&path, digest, name);

        run("resize2fs", &["-f", theirs.to_str().unwrap(), &format!("{after}M")]);
        let (ours, theirs) = (head(&path), head(&theirs));
        // resize2fs moves files to make room for descriptors, where the kernel changes to meta_bg.
        let meta_bg =
            ours["Filesystem features"].contains("meta_bg") && !options.contains(&"meta_bg,^resize_inode");
        let mut fields =
            vec!["Inode count", "Block count", "Blocks per group", "Inodes per group", "Free inodes"];
        if !meta_bg {
            fields.extend([
                "Filesystem features",
                "Reserved GDT blocks",
                "Free blocks",
                "Reserved block count",
            ]);
        }
        for field in fields {
            assert_eq!(ours.get(field), theirs.get(field), "{name}: {field}");
        }
    }
}

/// Has one file take all blocks, without their content where it has extents. Returns its size.
fn fill_up(volume: &Volume) -> u64 {
    let file = volume.create_file("/all").unwrap();
    let (mut at, mut len, mut allocates) = (0, 1 << 20, true);
    while len > 0 {
        let done = match allocates {
            true => file.fallocate(FallocMode::Allocate, at, len),
            false => file.write_at(&vec![7; len as usize], at),
        };
        match done {
            Ok(()) => at += len,
            Err(Error::NotSupported(_)) if allocates => allocates = false,
            Err(Error::NoSpace) => len /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    at
}

/// What was grown is used to the last block and inode, by lanefs and by the kernel.
#[test]
fn grown_volumes_are_full_volumes() {
    require_root();
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options, before, after) in SHAPES.iter().filter(|shape| shape.3 < 400) {
        make(&path, before << 20, options);
        grow(&path, after << 20);
        let volume = Volume::open(&path).unwrap();
        let at = fill_up(&volume);
        assert!(at > (after - before - 20) << 20, "{name}: only {at} bytes");
        volume.close().unwrap();
        e2fsck_clean(&path);
        let mount = LoopMount::new(&path, "rw");
        std::fs::remove_file(mount.path().join("all")).unwrap();
        for n in 0..2000 {
            std::fs::write(mount.path().join(format!("k{n}")), b"kernel").unwrap();
        }
        mount.unmount();
        e2fsck_clean(&path);
    }
}

/// The kernel goes on where lanefs stopped, and the other way round.
#[test]
fn growth_goes_on_with_resize2fs() {
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options, before, after) in SHAPES {
        let digest = make(&path, before << 20, options);
        grow(&path, (before + (after - before) / 3) << 20);
        let middle = (before + (after - before) * 2 / 3) << 10;
        run("resize2fs", &["-f", path.to_str().unwrap(), &format!("{middle}K")]);
        grow(&path, after << 20);
        judge(&path, digest, name);
    }
}

/// Shrinks the volume in a file, as the command does.
fn shrink(path: &Path, size: u64) {
    let mut resize = open(Arc::new(FileOptions::new().open(path).unwrap()));
    resize.shrink(size).unwrap();
    let size = resize.size();
    drop(resize);
    File::options().write(true).open(path).unwrap().set_len(size).unwrap();
}

/// What was grown is cut again: nothing has to move.
#[test]
fn grown_volumes_shrink_again() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options, before, after) in SHAPES {
        let digest = make(&path, before << 20, options);
        let size = open(Arc::new(FileOptions::new().open(&path).unwrap())).size();
        grow(&path, after << 20);
        shrink(&path, size);
        assert_eq!(path.metadata().unwrap().len(), size, "{name}");
        judge(&path, digest, name);
        grow(&path, after << 20);
        judge(&path, digest, name);
    }
}

/// Fills all blocks with small files, puts files of all kinds where those behind byte `least` were,
/// and removes the others. All inodes are in the first groups.
fn fill_far(volume: &Volume, least: u64) {
    let piece = vec![3; 256 << 10];
    let names = (0..).map(|n| format!("/piece{n}"));
    let full =
        |name: &String| matches!(volume.write(name, &piece).map_err(Error::into_kind), Err(Error::NoSpace));
    let pieces: Vec<String> = names.take_while(|name| !full(name)).collect();
    volume.remove_file(format!("/piece{}", pieces.len())).unwrap();
    volume.sync().unwrap();
    let is_far = |name: &String| {
        let extents = volume.open_file(name).unwrap().fiemap(0..u64::MAX, 1).unwrap();
        extents[0].physical >= least
    };
    let (far, near): (Vec<_>, Vec<_>) = pieces.iter().partition(|name| is_far(name));
    assert!(!far.is_empty() && !near.is_empty(), "{} far, {} near", far.len(), near.len());
    far.iter().for_each(|name| volume.remove_file(name).unwrap());
    volume.sync().unwrap();
    for n in 0..30 {
        let name = format!("/file{n}");
        volume.write(&name, &vec![n as u8; 5000 * n + 1]).unwrap();
        // Two share a block of attributes.
        let note = vec![b'a' + n as u8 / 2; 600];
        volume.set_xattr(&name, "user.note", &note, SetXattr::Any).unwrap();
    }
    // An extent tree of more than one level: every second block is a hole.
    let holes = volume.create_file("/holes").unwrap();
    for n in 0..900 {
        holes.write_at(&[n as u8; 1024], n * 8192).unwrap();
    }
    volume.symlink("t".repeat(300), "/link").unwrap();
    let reserved = volume.create_file("/reserved").unwrap();
    match reserved.fallocate(FallocMode::Allocate, 0, 300_000) {
        // A file without extents.
        Ok(()) | Err(Error::NotSupported(_)) => {}
        Err(e) => panic!("{e}"),
    }
    drop((holes, reserved));
    for n in 0..500 {
        volume.write(format!("/a-long-name-to-fill-blocks-of-the-directory-{n}"), b"").unwrap();
    }
    volume.sync().unwrap();
    near.iter().for_each(|name| volume.remove_file(name).unwrap());
}

/// A volume of `size` MiB whose files lie far behind. Returns what it holds.
fn make_far(path: &Path, size: u64, options: &[&str]) -> u64 {
    mke2fs(path, size << 20, options);
    let volume = Volume::open(path).unwrap();
    fill_far(&volume, (size * 3 / 4) << 20);
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    e2fsck_clean(path);
    digest
}

const FAR: &[(&str, &[&str], u64)] = &[
    ("default", &["-t", "ext4", "-b", "1024", "-N", "1000"], 80),
    ("4k", &["-t", "ext4", "-b", "4096", "-g", "2048", "-N", "1000"], 120),
    ("ext3", &["-t", "ext3", "-b", "1024", "-N", "1000"], 80),
    ("no journal", &["-t", "ext4", "-b", "1024", "-N", "1000", "-O", "^has_journal"], 80),
    ("no checksums", &["-t", "ext4", "-b", "1024", "-N", "1000", "-O", "^metadata_csum,^uninit_bg"], 80),
    ("no flex_bg", &["-t", "ext4", "-b", "1024", "-N", "1000", "-O", "^flex_bg"], 80),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-N", "1000", "-O", "meta_bg,^resize_inode"], 80),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-N", "1000", "-O", "sparse_super2"], 80),
];

#[test]
fn what_lies_far_behind_moves() {
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options, size) in FAR {
        let digest = make_far(&path, *size, options);
        let least = open(Arc::new(FileOptions::new().open(&path).unwrap())).minimum().unwrap();
        println!(
            "{name}: {least} bytes of {}; {}",
            size << 20,
            run("resize2fs", &["-P", path.to_str().unwrap()])
        );
        assert!(least < (size * 3 / 4) << 20, "{name}: {least} bytes");
        // Not all the way first.
        shrink(&path, (least + (size << 20)) / 2);
        judge(&path, digest, name);
        shrink(&path, least);
        judge(&path, digest, name);
        grow(&path, size << 20);
        judge(&path, digest, name);
    }
}

/// What does not move is refused by name, and nothing is written.
#[test]
fn a_size_that_is_too_small_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make(&path, 100 << 20, &["-t", "ext4", "-b", "1024"]);
    let mut resize = open(Arc::new(FileOptions::new().open(&path).unwrap()));
    let before = std::fs::read(&path).unwrap();
    let least = resize.minimum().unwrap();
    let e = resize.shrink(least - (1 << 20)).unwrap_err();
    assert!(matches!(e, Error::Resize(_)), "{e}");
    let e = resize.shrink(5 << 20).unwrap_err();
    assert!(matches!(e, Error::Resize(ResizeError::Immovable { .. })), "{e}");
    let e = resize.shrink(8 << 20).unwrap_err();
    assert!(matches!(e, Error::Resize(ResizeError::NoRoomForLog { .. })), "{e}");
    for size in [0, 1024, 2048, 64 << 10] {
        let e = resize.shrink(size).unwrap_err();
        assert!(matches!(e, Error::Resize(ResizeError::Immovable { .. })), "{size}: {e}");
    }
    assert!(std::fs::read(&path).unwrap() == before);
}

/// A volume of 1k blocks and three groups whose inodes are nearly all in use, closed.
fn make_damaged(path: &Path, options: &[&str], commands: &[&str]) -> Vec<u8> {
    mke2fs(path, 24 << 20, &[&["-b", "1024", "-N", "216", "-J", "size=1"], options].concat());
    let volume = Volume::open(path).unwrap();
    for n in 0..20 {
        volume.write(format!("/file{n}"), &vec![n as u8; 20_000]).unwrap();
    }
    volume.close().unwrap();
    for command in commands {
        debugfs_write(path, command);
    }
    std::fs::read(path).unwrap()
}

/// Returns the failure of `change`, which must not have changed the volume.
fn refused(path: &Path, change: impl FnOnce(&mut Resize) -> lanefs::Result<()>) -> Error {
    let mut resize = open(Arc::new(FileOptions::new().open(path).unwrap()));
    let before = std::fs::read(path).unwrap();
    let e = change(&mut resize).unwrap_err();
    drop(resize);
    assert!(std::fs::read(path).unwrap() == before, "{e}: changed");
    e
}

/// Counts of free inodes are not trusted: bitmaps say which ones are in use.
#[test]
fn an_inode_in_use_is_not_cut_off() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(&path, 24 << 20, &["-t", "ext4", "-b", "1024", "-N", "216", "-O", "^has_journal"]);
    let volume = Volume::open(&path).unwrap();
    for n in 0..190 {
        volume.write(format!("/file{n}"), b"").unwrap();
    }
    volume.close().unwrap();
    for command in ["set_bg 2 free_inodes_count 72", "set_bg 2 checksum calc"] {
        debugfs_write(&path, command);
    }
    let e = refused(&path, |resize| resize.shrink(16 << 20));
    assert!(matches!(e, Error::Resize(ResizeError::TooFewInodes { .. })), "{e}");
}

/// The block that holds an inode, and the byte of the inode there.
fn slot_of(path: &Path, ino: u32) -> (u64, u64) {
    let place = lanefs_tests::debugfs(path, &format!("imap <{ino}>"));
    let (_, place) = place.split_once("located at block ").unwrap();
    let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
    (block.parse().unwrap(), u64::from_str_radix(offset, 16).unwrap())
}

/// The first block of a file.
fn block_of(path: &Path, file: &str) -> u64 {
    lanefs_tests::debugfs(path, &format!("bmap {file} 0")).trim().parse().unwrap()
}

/// Runs of files that the block bitmap has as free could be given to others.
#[test]
fn a_file_in_free_blocks_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make_damaged(&path, &["-t", "ext4"], &[]);
    let block = block_of(&path, "/file3") + 2;
    debugfs_write(&path, &format!("freeb {block}"));
    let e = refused(&path, |resize| resize.shrink(20 << 20));
    assert!(e.to_string().contains(&format!("block {block} ")) && e.to_string().contains("as free"), "{e}");
}

/// Files could move to where a bitmap has fixed metadata as free.
#[test]
fn fixed_metadata_in_free_blocks_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let digest = make_far(&path, 80, &["-t", "ext4", "-b", "1024", "-N", "1000"]);
    let changes: [fn(&mut Resize) -> lanefs::Result<()>; 2] =
        [|resize| resize.shrink(50 << 20), |resize| resize.minimum().map(drop)];
    let (table, log) = (slot_of(&path, 2).0 + 2, block_of(&path, "<8>") + 3);
    // The last is the copy of the superblock in group 1.
    for (block, what) in [(table, "the inode table"), (log, "the journal"), (8193, "the superblock")] {
        debugfs_write(&path, &format!("freeb {block}"));
        for change in changes {
            let e = refused(&path, change).to_string();
            assert!(e.contains(&format!("has block {block} as free, which belongs to {what}")), "{e}");
        }
        debugfs_write(&path, &format!("setb {block}"));
    }
    shrink(&path, 50 << 20);
    judge(&path, digest, "mended");
}

/// A map that shows more blocks than are in use names some of them more than once.
#[test]
fn a_block_of_two_files_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make_damaged(&path, &["-t", "ext3"], &[]);
    let block = block_of(&path, "/file3");
    let file = File::options().write(true).open(&path).unwrap();
    let itself = (block as u32).to_le_bytes().repeat(256);
    std::os::unix::fs::FileExt::write_all_at(&file, &itself, block * 1024).unwrap();
    drop(file);
    for n in ["IND", "DIND"] {
        debugfs_write(&path, &format!("sif /file3 block[{n}] {block}"));
    }
    let e = refused(&path, |resize| resize.shrink(20 << 20));
    assert!(e.to_string().contains("more blocks than are in use"), "{e}");
}

#[test]
fn a_file_in_fixed_structures_or_the_log_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make_damaged(&path, &["-t", "ext3"], &[]);
    let (table, log) = (slot_of(&path, 2).0, block_of(&path, "<8>") + 3);
    for (block, what) in [(table, "fixed metadata"), (log, "belongs to the journal")] {
        debugfs_write(&path, &format!("sif /file5 block[2] {block}"));
        let e = refused(&path, |resize| resize.shrink(20 << 20));
        assert!(e.to_string().contains(what), "{e}");
    }
}

/// The double indirect block of the resize inode is written at its place.
#[test]
fn a_resize_inode_in_the_log_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let mut bytes = make_damaged(&path, &["-t", "ext4"], &[]);
    let dind = lanefs_tests::debugfs(&path, "stat <7>");
    let dind = dind.split("(DIND):").nth(1).unwrap().split([',', '\n']).next().unwrap();
    let dind: usize = dind.trim().parse().unwrap();
    let log = block_of(&path, "<8>") as usize + 9;
    bytes.copy_within(dind * 1024..(dind + 1) * 1024, log * 1024);
    std::fs::write(&path, bytes).unwrap();
    debugfs_write(&path, &format!("sif <7> block[DIND] {log}"));
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(400 << 20).unwrap();
    let e = refused(&path, |resize| resize.grow(400 << 20, None));
    assert!(e.to_string().contains("belongs to the journal"), "{e}");
    let e = refused(&path, |resize| resize.shrink(20 << 20));
    assert!(e.to_string().contains("belongs to the journal"), "{e}");
}

/// Bad blocks, and blocks that no file owns, keep a volume from being cut before anything moves.
#[test]
fn a_block_without_a_file_is_refused_before_files_move() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let list = dir.path().join("bad");
    std::fs::write(&list, "60000\n").unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-N", "1000", "-l", list.to_str().unwrap()];
    let digest = make_far(&path, 80, &options);
    let e = refused(&path, |resize| resize.shrink(50 << 20));
    assert!(matches!(e, Error::Resize(ResizeError::Immovable { block: 60_000, .. })), "{e}");
    let least = open(Arc::new(FileOptions::new().open(&path).unwrap())).minimum().unwrap();
    assert!((60_001 << 10..70_000 << 10).contains(&least), "{least}");
    shrink(&path, least);
    judge(&path, digest, "bad blocks");
}

/// A write that fails before any transaction leaves a volume that is closed, without a journal too.
#[test]
fn a_growth_that_fails_early_leaves_a_closed_volume() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]] {
        let digest = make(&path, 20 << 20, options);
        File::options().write(true).open(&path).unwrap().set_len(100 << 20).unwrap();
        let device = Arc::new(FailingDevice::new(FileOptions::new().open(&path).unwrap()));
        let mut resize = open(device.clone());
        // The first write is that of the superblock, the next one lies behind the old end.
        device.fail_once(Op::Write, 2, 28);
        resize.grow(100 << 20, None).unwrap_err();
        drop((resize, device));
        assert_eq!(head(&path)["Filesystem state"], "clean", "{options:?}");
        judge(&path, digest, "not grown");
        assert_eq!(open(Arc::new(FileOptions::new().open(&path).unwrap())).size(), 20 << 20);
        grow(&path, 100 << 20);
        judge(&path, digest, "grown");
    }
}

/// Descriptors that lie in groups of their own are a feature, and revision 0 has none.
#[test]
fn a_volume_of_revision_0_becomes_one_of_revision_1() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(&path, 200 << 20, &["-t", "ext2", "-r", "0", "-b", "1024"]);
    assert!(head(&path)["Filesystem revision #"].starts_with('0'));
    drop(grow(&path, 300 << 20));
    let fields = head(&path);
    assert!(fields["Filesystem features"].contains("meta_bg"), "{fields:?}");
    assert_eq!((&*fields["First inode"], &*fields["Inode size"]), ("11", "128"));
    let (code, said) = e2fsck(&path, &["-fp"]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn sparse_terabyte() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "^flex_bg"]] {
        let digest = make(&path, 1 << 30, options);
        let at = std::time::Instant::now();
        let resize = grow(&path, 1 << 40);
        println!("1 GiB to 1 TiB: {:?}", at.elapsed());
        assert_eq!((resize.size(), resize.groups()), (1 << 40, 8192));
        drop(resize);
        let volume = Volume::open(&path).unwrap();
        assert_eq!(volume_digest(&volume), digest);
        volume.close().unwrap();
        e2fsck_clean(&path);
    }
}

/// Beyond 16 TiB block numbers do not fit into the resize inode, or need 64bit.
#[test]
fn beyond_32_bits() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make(&path, 64 << 20, &["-t", "ext4", "-b", "4096", "-O", "^64bit"]);
    let resize = open(Arc::new(FileOptions::new().open(&path).unwrap()));
    let e = resize.fit(17 << 40).unwrap_err();
    assert!(matches!(e, Error::Resize(ResizeError::Needs64Bit { max: 0xFFFF_FFFF, .. })), "{e}");
    assert_eq!(e.errno(), 22);
}

#[test]
fn refusals_change_nothing() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make(&path, 64 << 20, &["-t", "ext4", "-b", "4096"]);
    let mut resize = open(Arc::new(FileOptions::new().open(&path).unwrap()));
    let before = std::fs::read(&path).unwrap();
    let e = resize.grow(1 << 30, None).unwrap_err();
    assert!(matches!(e, Error::Resize(ResizeError::BeyondDevice { blocks: 262_144, .. })), "{e}");
    // Inodes of 2^32 and more.
    assert!(matches!(resize.fit(1 << 60), Err(Error::Resize(ResizeError::TooManyInodes { .. }))));
    // One group more, too short for its tables.
    assert_eq!(resize.fit((128 << 20) + (200 << 10)).unwrap(), 128 << 20);
    resize.grow(64 << 20, None).unwrap();
    drop(resize);
    assert!(std::fs::read(&path).unwrap() == before);
    debugfs_write(&path, "ssv state 2");
    let e = Resize::open(Arc::new(FileOptions::new().open(&path).unwrap()), OpenOptions::new()).unwrap_err();
    assert!(matches!(e, Error::Resize(ResizeError::Unsound { .. })), "{e}");
}
