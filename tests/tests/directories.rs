//! Large directories between lanefs and the kernel: what one makes and unmakes, the other finds.

use lanefs::{Error, Volume};
use lanefs_tests::{LoopMount, debugfs, debugfs_write, e2fsck_clean, mke2fs, open, writing};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Names short and long, in ASCII and with bytes that are negative as signed characters.
fn name(n: u32) -> Vec<u8> {
    match n % 7 {
        0 => format!("file-{n}").into_bytes(),
        1 => format!("ünï-{n}-çödé").into_bytes(),
        2 => [&n.to_be_bytes().map(|b| b | 0x80)[..], format!("{n}").as_bytes()].concat(),
        3 if n % 50 == 3 => format!("{n:x>255}").into_bytes(),
        _ => format!("{n:0w$}-{}", "a name ".repeat(n as usize % 5), w = n as usize % 12).into_bytes(),
    }
}

fn path(dir: &Path, n: u32) -> PathBuf {
    dir.join(OsStr::from_bytes(&name(n)))
}

fn listed_by_kernel(dir: &Path) -> BTreeSet<Vec<u8>> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_vec()).collect()
}

fn listed_by_us(volume: &Volume, dir: &str) -> BTreeSet<Vec<u8>> {
    let all = volume.read_dir(dir).unwrap();
    let names: Vec<_> = all.into_iter().map(|e| e.name.into_vec()).collect();
    let unique: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(unique.len(), names.len(), "a name was listed twice");
    unique
}

fn check(volume: &Volume, dir: &str, expected: &BTreeSet<Vec<u8>>) {
    let listed = listed_by_us(volume, dir);
    assert!(&listed == expected, "{} names listed, {} expected", listed.len(), expected.len());
    for name in expected {
        volume.symlink_metadata(Path::new(dir).join(OsStr::from_bytes(name))).unwrap();
    }
    for n in 0..100 {
        let absent = volume.symlink_metadata(format!("{dir}/not there {n}")).unwrap_err();
        assert!(matches!(absent.kind(), Error::NotFound), "{absent}");
    }
}

struct Case {
    options: &'static [&'static str],
    names: u32,
    /// Levels of the index below its root, once all names are there. debugfs reads no index without
    /// metadata_csum.
    levels: Option<u8>,
    unsigned: bool,
    mount: &'static str,
}

const CASES: &[Case] = &[
    Case { options: &["-b", "1024"], names: 15_000, levels: Some(1), unsigned: false, mount: "" },
    Case { options: &["-b", "4096"], names: 80_000, levels: Some(1), unsigned: true, mount: "" },
    Case {
        options: &["-b", "1024", "-O", "large_dir"],
        names: 10_000,
        levels: Some(1),
        unsigned: true,
        mount: "",
    },
    Case {
        options: &["-b", "4096", "-O", "^metadata_csum,^extents,^64bit"],
        names: 10_000,
        levels: None,
        unsigned: false,
        mount: "",
    },
    Case {
        options: &["-b", "1024", "-O", "^dir_index,^filetype"],
        names: 2000,
        levels: None,
        unsigned: false,
        mount: "",
    },
    Case {
        options: &["-b", "2048", "-O", "^metadata_csum"],
        names: 20_000,
        levels: None,
        unsigned: false,
        mount: "nodelalloc",
    },
];

/// Hard links, so that few inodes do for many names.
fn targets(names: u32) -> u32 {
    names / 50_000 + 1
}

#[test]
fn both_ways() {
    let temp = tempfile::tempdir().unwrap();
    for case in CASES {
        let image = temp.path().join("volume");
        mke2fs(&image, 64 << 20, &[&["-t", "ext4"], case.options].concat());
        debugfs_write(&image, &format!("set_super_value flags {}", if case.unsigned { 2 } else { 1 }));
        let mut expected: BTreeSet<Vec<u8>> = BTreeSet::new();

        // The kernel makes and unmakes.
        let mount = LoopMount::new(&image, case.mount);
        let dir = mount.path().join("dir");
        fs::create_dir(&dir).unwrap();
        for t in 0..targets(case.names) {
            fs::write(mount.path().join(format!("target{t}")), b"").unwrap();
        }
        let target = |n| format!("target{}", n % targets(case.names));
        for n in 0..case.names {
            fs::hard_link(mount.path().join(target(n)), path(&dir, n)).unwrap();
            expected.insert(name(n));
        }
        assert_eq!(expected.len(), case.names as usize);
        for n in (0..case.names).filter(|n| n % 3 == 0) {
            fs::remove_file(path(&dir, n)).unwrap();
            expected.remove(&name(n));
        }
        mount.unmount();

        // lanefs reads it, fills the gaps, makes gaps of its own, and new names.
        let volume = open(writing(), &image).unwrap();
        check(&volume, "/dir", &expected);
        let ours = Path::new("/dir");
        for n in 0..case.names {
            match n % 3 {
                0 => {
                    volume.hard_link(format!("/{}", target(n)), path(ours, n)).unwrap();
                    expected.insert(name(n));
                }
                1 if n % 2 == 0 => {
                    volume.remove_file(path(ours, n)).unwrap();
                    expected.remove(&name(n));
                }
                _ => {}
            }
        }
        for n in case.names..case.names + 1000 {
            volume.hard_link(format!("/{}", target(n)), path(ours, n)).unwrap();
            expected.insert(name(n));
        }
        check(&volume, "/dir", &expected);
        volume.close().unwrap();
        e2fsck_clean(&image);
        if let Some(levels) = case.levels {
            let index = debugfs(&image, "htree_dump /dir");
            assert!(index.contains(&format!("Indirect levels: {levels}")), "{:?}", case.options);
        }

        // The kernel finds every name, removes all, and has an empty directory.
        let mount = LoopMount::new(&image, case.mount);
        let dir = mount.path().join("dir");
        assert!(listed_by_kernel(&dir) == expected);
        for name in &expected {
            fs::remove_file(dir.join(OsStr::from_bytes(name))).unwrap();
        }
        fs::remove_dir(&dir).unwrap();
        mount.unmount();
        e2fsck_clean(&image);
    }
}

#[test]
fn the_kernel_reads_an_index_of_three_levels() {
    let temp = tempfile::tempdir().unwrap();
    let image = temp.path().join("volume");
    mke2fs(&image, 80 << 20, &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "large_dir"]);
    let volume = open(writing(), &image).unwrap();
    volume.create_dir("/dir").unwrap();
    volume.write("/target", b"").unwrap();
    let names: BTreeSet<_> = (0..45_000).map(|n| format!("{n:0>200}").into_bytes()).collect();
    for name in &names {
        volume.hard_link("/target", Path::new("/dir").join(OsStr::from_bytes(name))).unwrap();
    }
    volume.close().unwrap();
    assert!(debugfs(&image, "htree_dump /dir").contains("Indirect levels: 2"));
    e2fsck_clean(&image);

    let mount = LoopMount::new(&image, "");
    let dir = mount.path().join("dir");
    assert!(listed_by_kernel(&dir) == names);
    for name in &names {
        fs::symlink_metadata(dir.join(OsStr::from_bytes(name))).unwrap();
    }
    for name in names.iter().step_by(2) {
        fs::remove_file(dir.join(OsStr::from_bytes(name))).unwrap();
    }
    mount.unmount();
    let volume = open(writing(), &image).unwrap();
    check(&volume, "/dir", &names.iter().skip(1).step_by(2).cloned().collect());
}

#[test]
fn a_directory_below_itself_is_not_removed_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    mke2fs(&path, 8 << 20, &["-t", "ext4"]);
    for command in ["mkdir /top", "mkdir /top/a", "link /top /top/a/b"] {
        debugfs_write(&path, command);
    }
    let said = Volume::open(&path).unwrap().remove_dir_all("/top").unwrap_err().to_string();
    assert!(said.contains("lies below itself"), "{said}");
}
