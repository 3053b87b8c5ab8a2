//! The time of the last read, through a mount: which reads move it.

use crate::support::{mount::Mount, tool};
use lanefs::device::AlignedBuf;
use lanefs_tests::{LoopMount, mke2fs};
use rustix::fs::{
    AtFlags, CWD, IFlags, Mode, OFlags, RawDir, Timespec, Timestamps, ioctl_getflags, ioctl_setflags, openat,
    readlinkat, utimensat,
};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// Sets the time of the last read to `sec`.
fn set_atime(path: &Path, sec: i64) {
    let time = Timespec { tv_sec: sec, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Reads a file, directory or link by a descriptor with `flags`. The kernel answers no direct read
/// and no listing from its cache, and of a link all but the first read.
fn read(path: &Path, flags: OFlags) {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    if kind.is_symlink() {
        readlinkat(CWD, path, Vec::new()).unwrap();
        return;
    }
    let flags = flags | OFlags::RDONLY | if kind.is_file() { OFlags::DIRECT } else { OFlags::DIRECTORY };
    let file = openat(CWD, path, flags, Mode::empty()).unwrap();
    if kind.is_file() {
        let mut buf = AlignedBuf::zeroed(4096);
        assert_eq!(rustix::io::pread(&file, &mut *buf, 0).unwrap(), 4);
    } else {
        RawDir::new(file, &mut [MaybeUninit::uninit(); 4096]).next().unwrap().unwrap();
    }
}

fn is_moved(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().atime() != 1
}

#[test]
fn noatime_of_a_descriptor_is_kept() {
    let m = Mount::new("strictatime");
    fs::write(m.path("f"), "text").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    for path in [m.path("f"), m.path("d")] {
        for (flags, moves) in [(OFlags::NOATIME, false), (OFlags::empty(), true)] {
            set_atime(&path, 1);
            read(&path, flags);
            assert_eq!(is_moved(&path), moves, "{path:?} {flags:?}");
        }
    }
    m.umount();
}

/// On a mount, and on the kernel's ext4.
#[test]
fn an_immutable_file_has_its_time_moved() {
    let m = Mount::new("strictatime");
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("by-kernel");
    mke2fs(&image, 16 << 20, &["-t", "ext4"]);
    let kernel = LoopMount::new(&image, "strictatime");
    for path in [m.path("f"), kernel.path().join("f")] {
        fs::write(&path, "text").unwrap();
        let file = fs::File::open(&path).unwrap();
        let plain = ioctl_getflags(&file).unwrap();
        for (flag, moves) in [(IFlags::IMMUTABLE, true), (IFlags::NOATIME, false)] {
            set_atime(&path, 1);
            ioctl_setflags(&file, plain | flag).unwrap();
            read(&path, OFlags::empty());
            ioctl_setflags(&file, plain).unwrap();
            assert_eq!(is_moved(&path), moves, "{path:?} {flag:?}");
        }
    }
    kernel.unmount();
    m.umount();
}

#[test]
fn a_mount_that_became_read_only_moves_no_time() {
    let m = Mount::new("strictatime");
    fs::write(m.path("f"), "text").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    for (round, (words, moves)) in
        [("ro", false), ("rw", true), ("bind,ro", false), ("bind,rw", true)].into_iter().enumerate()
    {
        let link = m.path(&format!("link{round}"));
        symlink("f", &link).unwrap();
        let paths = [m.path("f"), m.path("d"), link];
        paths.iter().for_each(|path| set_atime(path, 1));
        remount(&m, words);
        for path in paths {
            read(&path, OFlags::empty());
            assert_eq!(is_moved(&path), moves, "{words} {path:?}");
        }
        if !moves {
            remount(&m, &words.replace("ro", "rw"));
        }
    }
    m.umount();
}

/// By mount(2) itself, which tells the server nothing.
fn remount(m: &Mount, words: &str) {
    let done = tool("mount").args(["-i", "-o", &format!("remount,{words}")]).arg(&m.at).status();
    assert!(done.unwrap().success(), "{words}");
}
