//! The judge is mke2fs: with the same UUID, hash seed and clock, both make the same volume, byte
//! for byte, but for the count of what the tool itself has written (`s_kbytes_written`).
//! e2fsck finds every one clean, and the kernel mounts it.

mod common;

use common::{Pair, dumpe2fs, e2fsck, is_root, run};
use lanefs_mkfs::{Options, format};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// What is compared of two volumes.
#[derive(Clone, Copy)]
enum Compared {
    /// What dumpe2fs prints.
    Text,
    /// That, and each byte.
    Bytes,
    /// Each byte outside of the journal's map, that map, and the superblock. Of many groups
    /// dumpe2fs prints 50 MB.
    BytesButTree,
}

/// Makes both volumes of each size and options, compares them, and has e2fsck check ours.
fn compare(compared: Compared, cases: &[(&str, &str)]) {
    for &(size, args) in cases {
        let pair = Pair::make(size, args);
        let (dumpe2fs, bytes) = match compared {
            Compared::Text => (pair.dumpe2fs_difference(&[]), None),
            Compared::Bytes => (pair.dumpe2fs_difference(&[]), pair.first_difference()),
            Compared::BytesButTree => (pair.dumpe2fs_difference(&["-h"]), pair.first_difference_but_tree()),
        };
        let differ = dumpe2fs.or(bytes);
        assert!(differ.is_none(), "{size} {args}: {}", differ.unwrap_or_default());
        e2fsck(&pair.ours);
    }
}

#[test]
fn sizes() {
    compare(
        Compared::Bytes,
        &[
            ("200K", ""),
            ("1M", ""),
            ("3M", ""),
            ("8M", ""),
            ("8300K", "-b 1024"),
            ("64M", ""),
            ("10243K", ""),
            ("10243K", "-b 2048"),
            ("131400K", "-b 4096"),
            ("511M", ""),
            ("512M", ""),
            ("1G", ""),
            ("5G", ""),
            ("100G", ""),
        ],
    );
}

#[test]
fn blocks_and_inodes() {
    compare(
        Compared::Bytes,
        &[
            ("64M", "-I 128"),
            ("64M", "-I 512 -b 2048"),
            ("300M", "-b 8192"),
            ("300M", "-b 65536"),
            ("4G", "-b 65536"),
            ("3G", "-I 4096"),
            ("300M", "-N 3"),
            ("300M", "-N 1000000"),
            ("1M", "-b 1024 -N 16"),
            ("300M", "-i 1024 -b 4096"),
            ("3G", "-i 4096 -m 0.5"),
            ("3G", "-T largefile4"),
            ("300M", "-T news -L hello"),
        ],
    );
}

#[test]
fn features() {
    compare(
        Compared::Bytes,
        &[
            ("64M", "-t ext3"),
            ("64M", "-t ext2"),
            ("64M", "-O ^extents,^64bit"),
            ("300M", "-O ^metadata_csum"),
            ("300M", "-O ^metadata_csum,uninit_bg"),
            ("300M", "-O ^has_journal"),
            ("300M", "-O ^64bit"),
            ("300M", "-O ^flex_bg"),
            ("3G", "-O ^flex_bg -b 4096"),
            ("300M", "-O ^resize_inode"),
            ("300M", "-O ^resize_inode,meta_bg"),
            ("5G", "-O ^resize_inode,meta_bg"),
            ("300M", "-O sparse_super2"),
            ("3G", "-O sparse_super2,^sparse_super,^resize_inode"),
            ("300M", "-O ^sparse_super,^resize_inode"),
            ("300M", "-O orphan_file,metadata_csum_seed"),
            ("3G", "-O orphan_file"),
            ("300M", "-O ^filetype,^dir_index,^ext_attr,^large_file"),
            ("300M", "-O large_dir,stable_inodes"),
            ("300M", "-O none,filetype"),
        ],
    );
}

/// The last has a journal of triple indirect blocks.
#[test]
fn journals() {
    compare(Compared::Bytes, &[("300M", "-J size=30"), ("700M", "-t ext3 -b 1024 -J size=100")]);
}

#[test]
fn journals_with_a_tree() {
    let large = [("4G", "-b 1024 -J size=256"), ("20G", "-O ^flex_bg -b 4096 -J size=2000"), ("2T", "")];
    compare(Compared::BytesButTree, &large);
}

/// The MMP block of mke2fs names the host, so that only dumpe2fs can compare.
#[test]
fn multiple_mount_protection() {
    let cases = [
        "-O mmp,orphan_file",
        "-O mmp,^metadata_csum",
        "-O mmp,^has_journal",
        "-b 1024 -O mmp,meta_bg,^resize_inode",
    ];
    compare(Compared::Text, &cases.map(|args| ("64M", args)));
}

#[test]
fn the_largest() {
    compare(Compared::BytesButTree, &[("15T", "")]);
}

/// Descriptors and those reserved would fill a group: none is reserved. Of so many groups the
/// superblocks alone are compared.
#[test]
fn descriptors_are_spread_where_they_would_fill_a_group() {
    let pair = Pair::make("800G", "-b 1024 -N 2000000 -O ^has_journal");
    let lines = |path| {
        let head = common::dumpe2fs_with(&["-h"], path);
        head.lines()
            .filter(|line| !line.starts_with("Lifetime writes:"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (ours, theirs) = (lines(&pair.ours), lines(&pair.theirs));
    assert!(ours.iter().any(|line| line.starts_with("Filesystem features:") && line.contains("meta_bg")));
    let other = |line: &&String| !line.starts_with("Checksum:  ");
    assert!(ours.iter().filter(other).eq(theirs.iter().filter(other)), "{ours:?} {theirs:?}");
}

/// With UUIDs, clocks and seeds of their own, the two differ in these and in checksums only.
#[test]
fn nothing_else_differs_when_left_alone() {
    for size in ["64M", "1G"] {
        let pair = Pair::make_with(size, "", false);
        assert_eq!(common::normal(&dumpe2fs(&pair.ours)), common::normal(&dumpe2fs(&pair.theirs)));
    }
}

/// What mke2fs refuses we refuse, and write nothing.
#[test]
fn refusals() {
    for (size, args) in [
        ("50K", ""),
        ("200K", "-b 4096"),
        ("64M", "-O ^extents"),
        ("64M", "-O ^sparse_super"),
        ("64M", "-O meta_bg"),
        ("64M", "-O orphan_file,^has_journal"),
        ("64M", "-O metadata_csum_seed,^metadata_csum"),
        ("64M", "-I 4096 -b 1024"),
        ("64M", "-I 100"),
        ("64M", "-i 512"),
        ("64M", "-m 60"),
        ("64M", "-N 4000000"),
        ("64M", "-J size=40"),
        ("64M", "-J size=1 -b 4096"),
    ] {
        assert!(!common::mke2fs_takes(size, args), "{size} {args}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = lanefs_mkfs::parse_size(size).unwrap();
        let device = lanefs_device::FileDevice::create(file.path(), bytes).unwrap();
        assert!(format(&device, &common::options(args)).is_err(), "{size} {args}");
        assert_eq!(common::allocated(file.path()), 0, "{size} {args}");
    }
}

/// Old bytes on the device do not shine through.
#[test]
fn a_used_device_is_made_clean() {
    let options = Options { keep: true, ..common::options("-b 1024") };
    let device = lanefs_device::MemDevice::from_bytes(vec![0xA5; 24 << 20]);
    format(&device, &options).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), device.to_bytes()).unwrap();
    e2fsck(file.path());
}

#[test]
fn the_same_options_make_the_same_bytes() {
    let make = || {
        let device = lanefs_device::MemDevice::new(24 << 20);
        format(&device, &common::options("-O orphan_file")).unwrap();
        device.to_bytes()
    };
    assert!(make() == make());
}

/// The kernel mounts what was made and writes to it, and e2fsck is content with the result.
#[test]
fn the_kernel_mounts_it() {
    if !is_root() {
        assert!(std::env::var_os("CI").is_none(), "mounting needs root");
        eprintln!("not root: the kernel was not asked");
        return;
    }
    for (size, args) in [
        ("64M", ""),
        ("1G", ""),
        ("100G", ""),
        ("64M", "-O ^extents,^64bit"),
        ("64M", "-t ext3"),
        ("300M", "-O ^metadata_csum"),
        ("300M", "-O ^metadata_csum,uninit_bg"),
        ("300M", "-O orphan_file,metadata_csum_seed"),
        ("300M", "-O sparse_super2 -I 128"),
        ("300M", "-O ^has_journal,^flex_bg"),
    ] {
        let pair = Pair::make(size, args);
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        common::private_mounts();
        run("mount", &["-o", "loop", "-t", common::fs_type(args), pair.ours.to_str().unwrap(), at]);
        let written = std::fs::create_dir(dir.path().join("d"))
            .and_then(|()| std::fs::write(dir.path().join("d/file"), vec![7; 3_000_000]));
        // A child of another thread that has not come to its exec still has what files this one had
        // open.
        let unmounts = || Command::new("umount").arg(at).status().unwrap().success();
        let done = (0..1200).any(|_| {
            unmounts() || {
                sleep(Duration::from_millis(50));
                false
            }
        });
        assert!(done, "{at} stays mounted");
        written.unwrap();
        e2fsck(&pair.ours);
    }
}
