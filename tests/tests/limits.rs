//! Bounds of the format that a volume can reach, links of a directory and of a file, and of memory.

use lanefs::{Error, NewAttr, OpenOptions, Volume};
use lanefs_device::MemDevice;
use lanefs_tests::{debugfs, debugfs_write, e2fsck_clean, mke2fs, open, writing};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const ATTR: NewAttr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
const LINK_MAX: u32 = 65_000;

#[test]
fn a_directory_of_more_than_65000_directories() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume.img");
    mke2fs(&image, 200 << 20, &["-t", "ext4", "-b", "1024", "-N", "70000"]);
    let volume = open(writing(), &image).unwrap();
    volume.create_dir("/many").unwrap();
    let many = volume.open_dir("/many").unwrap();
    for i in 0..LINK_MAX - 2 {
        many.create_dir(format!("{i}"), ATTR).unwrap();
    }
    assert_eq!(u32::from(many.metadata().nlink()), LINK_MAX);
    for i in 0..8 {
        many.create_dir(format!("more{i}"), ATTR).unwrap();
        assert_eq!(many.metadata().nlink(), 1, "too many to count");
    }
    many.remove_dir("more0").unwrap();
    assert_eq!(many.metadata().nlink(), 1);
    drop(many);
    volume.close().unwrap();
    e2fsck_clean(&image);
    assert!(debugfs(&image, "stat /many").contains("Links: 1 "));
    // Not under `LANEFS_POWER`: a directory that lost all but some of 65,000 keeps its count of 1,
    // as the kernel's does, which checkers take for a wrong one.
    let volume = Volume::open(&image).unwrap();
    assert_eq!(volume.read_dir("/many").unwrap().len() as u32, LINK_MAX - 2 + 7);
    volume.remove_dir_all("/many").unwrap();
    volume.close().unwrap();
    e2fsck_clean(&image);
}

#[test]
fn without_dir_nlink_the_bound_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume.img");
    mke2fs(&image, 16 << 20, &["-t", "ext4", "-O", "^dir_nlink", "-b", "1024"]);
    // 64,999 links without making them: the count alone decides.
    debugfs_write(&image, "mkdir /d");
    debugfs_write(&image, "set_inode_field /d links_count 64999");
    let volume = open(writing(), &image).unwrap();
    volume.create_dir("/d/last").unwrap();
    assert!(matches!(volume.create_dir("/d/beyond").unwrap_err().kind(), Error::TooManyLinks));
    assert!(matches!(volume.rename("/lost+found", "/d/beyond").unwrap_err().kind(), Error::TooManyLinks));
    assert_eq!(volume.metadata("/d").unwrap().nlink(), 65_000);
}

#[test]
fn a_file_of_65000_names() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume.img");
    mke2fs(&image, 32 << 20, &["-t", "ext4", "-b", "1024"]);
    let volume = open(writing(), &image).unwrap();
    volume.write("/file", b"one").unwrap();
    volume.create_dir("/names").unwrap();
    let (root, names) = (volume.open_dir("/").unwrap(), volume.open_dir("/names").unwrap());
    for i in 1..LINK_MAX {
        root.hard_link("file", &names, format!("{i}")).unwrap();
    }
    assert!(matches!(root.hard_link("file", &names, "beyond").unwrap_err().kind(), Error::TooManyLinks));
    assert_eq!(u32::from(volume.metadata("/file").unwrap().nlink()), LINK_MAX);
    drop((root, names));
    volume.close().unwrap();
    e2fsck_clean(&image);
}

/// Set in a process of this test that has little memory.
const LIMITED: &str = "LANEFS_LIMITED";

/// A sparse file takes no blocks of the volume, but reading all of it takes all memory.
#[test]
fn a_file_larger_than_memory_is_an_error() {
    if std::env::var_os(LIMITED).is_none() {
        let name = "limits::a_file_larger_than_memory_is_an_error";
        let this = std::env::current_exe().unwrap();
        // KiB of addresses.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "ulimit -v 600000 && exec \"$0\" --exact \"$1\""]).arg(this).arg(name);
        let out = shell.env(LIMITED, "1").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("1 passed"), "{}: {said}", out.status);
        return;
    }
    let device = MemDevice::new(16 << 20);
    lanefs::mkfs::format(&device, &lanefs::mkfs::Options::default()).unwrap();
    let volume = OpenOptions::new().write(true).cache_bytes(1 << 20).open_device(Arc::new(device)).unwrap();
    volume.create_file("/sparse").unwrap().set_len(1 << 40).unwrap();
    let e = volume.read("/sparse").unwrap_err();
    assert!(matches!(e.kind(), Error::NoMemory { .. }) && e.errno() == libc::ENOMEM, "{e}");
    volume.close().unwrap();
}

/// A few blocks of a hostile image may map a log in as many pieces as the volume has blocks: that
/// is refused before memory is taken for them.
#[test]
fn a_log_in_a_million_pieces_is_refused() {
    const TWICE: u32 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, 8 << 30, &["-t", "ext3", "-b", "4096", "-N", "1024", "-J", "size=4"]);
    let pointers = |to: u32| to.to_le_bytes().repeat(1024);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&pointers(TWICE + 1), u64::from(TWICE) * 4096).unwrap();
    file.write_all_at(&pointers(900_000), u64::from(TWICE + 1) * 4096).unwrap();
    drop(file);
    let size = 1_100_000_u64 * 4096;
    for field in [format!("block[IND] {}", TWICE + 1), format!("block[DIND] {TWICE}"), format!("size {size}")]
    {
        debugfs_write(&path, &format!("set_inode_field <8> {field}"));
    }
    let refused = Volume::open(&path).unwrap_err().to_string();
    assert!(refused.contains("pieces"), "{refused}");
}
