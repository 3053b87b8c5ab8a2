//! What moves when a volume becomes smaller: the log, inodes, and extents that are split.

use super::{grow, head, judge, make, open, refused, shrink, slot_of};
use lanefs::{Error, Resize, ResizeError, SetXattr, Volume};
use lanefs_device::FileOptions;
use lanefs_tests::{
    LoopMount, TreeEntry, copy_file, debugfs, debugfs_write, e2fsck_clean, memory_dir, mke2fs,
    mke2fs_command, require_root, require_tools, run, tree_listing, volume_digest,
};
use std::path::Path;
use std::sync::Arc;

fn resize(path: &Path) -> Resize {
    open(Arc::new(FileOptions::new().open(path).unwrap()))
}

/// Shrinks a volume to its minimum, as often as that has one, like the command.
fn shrink_to_minimum(path: &Path) -> u64 {
    loop {
        let volume = resize(path);
        let (least, size) = (volume.minimum().unwrap(), volume.size());
        drop(volume);
        if least >= size {
            return size;
        }
        shrink(path, least);
    }
}

/// Returns the bytes of the volume that `resize2fs -M` makes of a copy.
fn least_of_resize2fs(path: &Path) -> u64 {
    let theirs = path.with_extension("theirs");
    copy_file(path, &theirs);
    run("resize2fs", &["-f", "-M", theirs.to_str().unwrap()]);
    resize(&theirs).size()
}

/// What the kernel sees of the volume: all names with their content.
fn seen_by_kernel(path: &Path) -> Vec<TreeEntry> {
    let mount = LoopMount::new(path, "ro");
    let seen = tree_listing(mount.path());
    mount.unmount();
    seen
}

/// Shrinks a volume to its minimum, before the eyes of all judges.
fn judge_minimum(path: &Path, digest: u64, name: &str) -> u64 {
    let (theirs, before) = (least_of_resize2fs(path), seen_by_kernel(path));
    let ours = shrink_to_minimum(path);
    println!("{name}: {ours} bytes, resize2fs -M {theirs}: {:.3}", ours as f64 / theirs as f64);
    judge(path, digest, name);
    assert_eq!(seen_by_kernel(path), before, "{name}");
    assert!(ours <= theirs + theirs / 20, "{name}: {ours} bytes, resize2fs reaches {theirs}");
    ours
}

/// A volume of `size` MiB with a log of indirect blocks in its middle, where mke2fs puts none.
/// Returns what it holds.
pub(super) fn make_with_far_log(path: &Path, size: u64, options: &[&str]) -> u64 {
    let at = options.iter().position(|option| *option == "-J").unwrap();
    let (options, log) = options.split_at(at);
    make(path, size << 19, &[options, &["-O", "^has_journal"]].concat());
    let volume = Volume::open(path).unwrap();
    let big = volume.create_file("/big").unwrap();
    let mut at = 0;
    while big.write_at(&[1; 1 << 16], at).is_ok() {
        at += 1 << 16;
    }
    drop(big);
    volume.close().unwrap();
    grow(path, size << 20);
    run("tune2fs", &["-O", "has_journal", "-J", log[1], path.to_str().unwrap()]);
    let volume = Volume::open(path).unwrap();
    volume.remove_file("/big").unwrap();
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    digest
}

#[test]
fn the_log_moves() {
    require_root();
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options, size) in [
        ("default", &["-t", "ext4", "-b", "4096"][..], 1024_u64),
        ("1k", &["-t", "ext4", "-b", "1024"], 200),
        ("a log of several extents", &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^flex_bg"], 100),
        ("ext3", &["-t", "ext3", "-b", "1024", "-J", "size=4"], 100),
        ("ext3, double indirect", &["-t", "ext3", "-b", "1024", "-J", "size=80"], 400),
        ("no checksums", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"], 200),
    ] {
        let digest = match options.contains(&"ext3") {
            true => make_with_far_log(&path, size, options),
            false => make(&path, size << 20, options),
        };
        let (log, before) = (head(&path)["Total journal blocks"].clone(), debugfs(&path, "bmap <8> 0"));
        let least = judge_minimum(&path, digest, name);
        assert!(least < (size / 2) << 20, "{name}: the log is in the middle of {size} MiB, {least} bytes");
        assert_ne!(debugfs(&path, "bmap <8> 0"), before, "{name}");
        assert_eq!(head(&path)["Total journal blocks"], log, "{name}");
        // The log works where it is.
        let volume = Volume::open(&path).unwrap();
        volume.rename("/dir4/file39", "/dir0/renamed").unwrap();
        volume.sync().unwrap();
        let digest = volume_digest(&volume);
        volume.close().unwrap();
        grow(&path, size << 20);
        judge(&path, digest, name);
    }
}

/// The copy of the log's map in the superblock, and in its backups, leads to where the log is.
#[test]
fn the_copies_of_the_map_follow_the_log() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make(&path, 200 << 20, &["-t", "ext4", "-b", "1024"]);
    shrink(&path, 60 << 20);
    let map = debugfs(&path, "bmap <8> 0");
    let bytes = std::fs::read(&path).unwrap();
    for at in [1024, 1024 * 8193] {
        // s_jnl_blocks is the journal's i_block: the first extent has its first block at byte 20.
        let start = at + 0x10C + 20;
        let first = u32::from_le_bytes(bytes[start..start + 4].try_into().unwrap());
        assert_eq!(first.to_string(), map.trim(), "superblock at byte {at}");
    }
    e2fsck_clean(&path);
}

/// Files of all kinds whose inodes have numbers above `low`.
pub(super) fn fill_groups(volume: &Volume, low: usize, dirs: usize) {
    volume.create_dir("/low").unwrap();
    for n in 0..low {
        volume.write(format!("/low/{n}"), b"").unwrap();
    }
    for n in 0..dirs {
        let dir = format!("/dir{n}");
        volume.create_dir_all(format!("{dir}/below/deeper")).unwrap();
        volume.write(format!("{dir}/file"), &vec![n as u8; 3000]).unwrap();
        volume.hard_link(format!("{dir}/file"), format!("/dir{}/link{n}", n / 2)).unwrap();
        volume.symlink("target", format!("{dir}/below/short")).unwrap();
        volume.set_xattr(format!("{dir}/file"), "user.note", &vec![b'n'; 300], SetXattr::Any).unwrap();
        // An extent tree with a block of its own.
        let holes = volume.create_file(format!("{dir}/holes")).unwrap();
        for at in 0..6 {
            holes.write_at(&[n as u8; 1024], at * 4096).unwrap();
        }
    }
    volume.remove_dir_all("/low").unwrap();
    // A directory with an index, of a number that goes away.
    let large = format!("/dir{}/below", dirs - 1);
    for n in 0..100 {
        volume.write(format!("{large}/a-long-name-that-fills-the-blocks-of-a-directory-{n}"), b"").unwrap();
    }
}

#[test]
fn inodes_move() {
    require_root();
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let path = dir.path().join("v");
    for (name, options) in [
        ("ext4", &["-t", "ext4"][..]),
        ("ext3", &["-t", "ext3"]),
        ("no checksums", &["-t", "ext4", "-O", "^metadata_csum,^uninit_bg"]),
        ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]),
        ("no journal", &["-t", "ext4", "-O", "^has_journal"]),
        ("no flex_bg, long inodes", &["-t", "ext4", "-O", "^flex_bg", "-I", "512"]),
    ] {
        mke2fs(&path, 64 << 20, &[options, &["-b", "1024", "-g", "4096", "-N", "4096"]].concat());
        let volume = Volume::open(&path).unwrap();
        fill_groups(&volume, 3000, 60);
        let digest = volume_digest(&volume);
        volume.close().unwrap();
        let highest = |path: &Path| {
            let volume = Volume::open(path).unwrap();
            let inos = (0..60).map(|n| volume.metadata(format!("/dir{n}")).unwrap().ino());
            let highest = inos.max().unwrap();
            volume.close().unwrap();
            highest
        };
        let before = highest(&path);
        judge_minimum(&path, digest, name);
        let inodes: u32 = head(&path)["Inode count"].parse().unwrap();
        assert!(before > inodes && highest(&path) <= inodes, "{name}: {before}, {inodes} inodes");
    }
}

/// A reserved inode keeps its number, and there have to be enough for all others.
#[test]
fn too_few_inodes_are_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(&path, 32 << 20, &["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "256", "-O", "^has_journal"]);
    let volume = Volume::open(&path).unwrap();
    for n in 0..60 {
        volume.write(format!("/file{n}"), b"").unwrap();
    }
    volume.close().unwrap();
    let e = refused(&path, |resize| resize.shrink(5 << 20));
    assert!(matches!(e, Error::Resize(ResizeError::TooFewInodes { .. })), "{e}");
    let e = refused(&path, |resize| resize.shrink(1 << 20));
    assert!(matches!(e, Error::Resize(ResizeError::InodeInUse { ino: 10, .. })), "{e}");
}

/// An inode in use that its bitmap has as free is neither overwritten nor cut off.
#[test]
fn an_inode_that_its_bitmap_has_as_free_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(&path, 64 << 20, &["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "4096"]);
    let volume = Volume::open(&path).unwrap();
    // All inodes of group 0, and some of group 1.
    for n in 0..300 {
        volume.write(format!("/first{n}"), b"").unwrap();
    }
    fill_groups(&volume, 3000, 60);
    let digest = volume_digest(&volume);
    let last = volume.symlink_metadata("/dir59/below/short").unwrap().ino();
    volume.close().unwrap();
    let to_minimum = |resize: &mut Resize| {
        let least = resize.minimum()?;
        resize.shrink(least)
    };
    for ino in [12, last] {
        debugfs_write(&path, &format!("freei <{ino}>"));
        let e = refused(&path, to_minimum).to_string();
        assert!(e.contains(&format!("has inode {ino} as free")), "{e}");
        debugfs_write(&path, &format!("seti <{ino}>"));
    }
    let whole = std::fs::read(&path).unwrap();
    // INODE_UNINIT.
    for request in ["set_bg 1 flags 0x1", "set_bg 1 checksum calc"] {
        debugfs_write(&path, request);
    }
    let e = refused(&path, to_minimum).to_string();
    assert!(e.contains("group 1 has 256 inodes that were never in use"), "{e}");
    std::fs::write(&path, whole).unwrap();
    shrink_to_minimum(&path);
    let inodes: u32 = head(&path)["Inode count"].parse().unwrap();
    assert!(last > inodes, "inode {last} has its number still");
    judge(&path, digest, "mended");
}

/// A block of a table in which no inode ever was has any content on the device.
#[test]
fn a_block_without_an_inode_starts_as_zeros() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    std::fs::write(&path, vec![0xFF_u8; 64 << 20]).unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "4096", "-O", "^flex_bg,^has_journal"];
    let unwritten = ["-E", "nodiscard,lazy_itable_init=1"];
    let made = mke2fs_command(&[&options[..], &unwritten].concat()).arg(&path).status().unwrap();
    assert!(made.success());
    let volume = Volume::open(&path).unwrap();
    // Directories of the root lie in different groups.
    let files = |dir| (0..5).map(move |n| format!("/dir{dir}/file{n}"));
    for dir in 0..16 {
        volume.create_dir(format!("/dir{dir}")).unwrap();
        files(dir).for_each(|file| volume.write(file, b"").unwrap());
    }
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    shrink_to_minimum(&path);
    let volume = Volume::open(&path).unwrap();
    let inos = (0..16).flat_map(files).map(|file| volume.metadata(file).unwrap().ino());
    // Group 0 has 256 inodes, and had those of one directory.
    let last = inos.filter(|&ino| ino <= 256).max().unwrap();
    assert!(last > 60, "no inodes came to group 0: {last}");
    volume.close().unwrap();
    let (block, at) = slot_of(&path, last);
    let bytes = std::fs::read(&path).unwrap();
    let behind = &bytes[(block * 1024 + at + 256) as usize..(block as usize + 1) * 1024];
    assert!(!behind.is_empty(), "inode {last} is the last of its block");
    assert!(behind.iter().all(|byte| *byte == 0), "behind inode {last}");
    judge(&path, digest, "a table of zeros");
}

/// `stable_inodes` promises that numbers stay: file encryption may depend on them.
#[test]
fn stable_inodes_keep_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    mke2fs(&path, 64 << 20, &["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "4096"]);
    debugfs_write(&path, "feature stable_inodes");
    let volume = Volume::open(&path).unwrap();
    fill_groups(&volume, 3000, 5);
    let ino = volume.metadata("/dir4").unwrap().ino();
    volume.close().unwrap();
    let e = refused(&path, |resize| resize.shrink(32 << 20));
    assert!(matches!(e, Error::Resize(ResizeError::InodeInUse { .. })), "{e}");
    assert!(shrink_to_minimum(&path) < 64 << 20);
    assert_eq!(Volume::open(&path).unwrap().metadata("/dir4").unwrap().ino(), ino);
    e2fsck_clean(&path);
}

/// A directory of more blocks than a transaction has, whose number goes away.
#[test]
fn a_log_too_small_for_a_directory_is_told_before_anything_moves() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(
        &path,
        32 << 20,
        &["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "8192", "-J", "size=1", "-O", "^flex_bg"],
    );
    let volume = Volume::open(&path).unwrap();
    for n in 0..16 {
        volume.create_dir(format!("/dir{n}")).unwrap();
    }
    let dirs = (0..16).map(|n| format!("/dir{n}"));
    let far = dirs.max_by_key(|dir| volume.metadata(dir).unwrap().ino()).unwrap();
    for n in 0..1500 {
        volume.write(format!("{far}/{}-{n}", "n".repeat(200)), b"").unwrap();
    }
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    let e = refused(&path, |resize| resize.shrink(12 << 20));
    assert!(matches!(e, Error::Resize(ResizeError::LogTooSmall { .. })), "{e}");
    // The minimum is a size for which the log is large enough.
    let least = resize(&path).minimum().unwrap();
    assert!(least > 12 << 20, "{least}");
    shrink(&path, least);
    assert_eq!(resize(&path).size(), least);
    judge(&path, digest, "a small log");
}

/// A volume with a large file behind free blocks that do not follow each other. Returns what it
/// holds.
pub(super) fn make_spread(path: &Path, options: &[&str]) -> u64 {
    mke2fs(path, 24 << 20, &[options, &["-b", "1024", "-N", "1600"]].concat());
    let volume = Volume::open(path).unwrap();
    for n in 0..1300 {
        volume.write(format!("/small{n}"), &vec![n as u8; 6000]).unwrap();
        if n % 100 == 99 {
            volume.sync().unwrap();
        }
    }
    volume.write("/large", &vec![9; 5 << 20]).unwrap();
    volume.sync().unwrap();
    for n in (0..1300).step_by(2) {
        volume.remove_file(format!("/small{n}")).unwrap();
    }
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    e2fsck_clean(path);
    digest
}

#[test]
fn extents_are_split() {
    require_root();
    require_tools(&["resize2fs"]);
    let dir = memory_dir();
    let path = dir.path().join("v");
    for options in [&["-t", "ext4", "-J", "size=1"][..], &["-t", "ext4", "-O", "^has_journal,^metadata_csum"]]
    {
        let digest = make_spread(&path, options);
        let extents = |path: &Path| debugfs(path, "dump_extents /large").lines().count();
        let before = extents(&path);
        judge_minimum(&path, digest, "small files removed");
        assert!(extents(&path) > before + 20, "{before} lines, then {}", extents(&path));
    }
}
