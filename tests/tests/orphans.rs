//! Files that lose their last name while they are open, a power cut, and what recovery leaves of
//! them.
//!
//! Whatever is done to such a file, it is an orphan until it is deleted: after the cut recovery
//! frees its inode and its blocks. On volumes with an orphan list, with an orphan file, and with an
//! orphan file that is full, so that both are used.

use lanefs::{FallocMode, File, NewAttr, OpenOptions, Volume};
use lanefs_device::{BlockDevice, MemDevice, Op};
use lanefs_sim::{CrashState, DumpFile, FailingDevice, Image, RecordingDevice};
use lanefs_tests::{debugfs_write, dumpe2fs, e2fsck, mke2fs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Features, and how many orphans there are before.
const KINDS: [(&[&str], usize); 3] = [
    (&["-b", "1024", "-O", "^orphan_file"], 0),
    (&["-b", "1024", "-O", "orphan_file"], 0),
    (&["-b", "1024", "-O", "orphan_file", "-E", "orphan_file_size=1"], 260),
];

const LEN: u64 = 100_000;

/// A step of a file's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Unlink,
    Shorten,
    Empty,
    Lengthen,
    Write,
    Punch,
    Link,
    Replace,
    Sync,
}

use Step::*;

const PATTERNS: [&[Step]; 16] = [
    &[Unlink],
    &[Unlink, Shorten],
    &[Unlink, Empty],
    &[Unlink, Lengthen],
    &[Unlink, Write],
    &[Unlink, Punch],
    &[Unlink, Sync, Shorten],
    &[Unlink, Shorten, Sync, Shorten],
    &[Unlink, Empty, Write],
    &[Unlink, Empty, Lengthen, Shorten],
    &[Shorten, Unlink],
    &[Shorten, Unlink, Shorten],
    &[Link, Unlink, Shorten, Unlink],
    &[Link, Unlink, Unlink, Shorten],
    &[Replace, Shorten],
    &[Replace, Sync, Empty, Write],
];

/// Carries out the steps; the file, which has no name then.
fn run(volume: &Volume, pattern: usize) -> File {
    let mut names = vec![format!("/file{pattern}")];
    let file = volume.create_file(&names[0]).unwrap();
    file.write_at(&vec![7; LEN as usize], 0).unwrap();
    file.sync_all().unwrap();
    for step in PATTERNS[pattern] {
        match step {
            Unlink => volume.remove_file(names.pop().unwrap()).unwrap(),
            Shorten => file.set_len(file.metadata().len() / 2).unwrap(),
            Empty => file.set_len(0).unwrap(),
            Lengthen => file.set_len(2 * LEN).unwrap(),
            Write => file.write_at(&[8; 5000], LEN / 3).unwrap(),
            Punch => file.fallocate(FallocMode::PunchHole, 3000, LEN / 2).unwrap(),
            Link => {
                names.push(format!("/link{pattern}"));
                volume.hard_link(&names[0], &names[1]).unwrap();
            }
            Replace => {
                let new = format!("/new{pattern}");
                volume.write(&new, b"new").unwrap();
                volume.rename(new, names.pop().unwrap()).unwrap();
            }
            Sync => file.sync_all().unwrap(),
        }
    }
    assert!(names.is_empty());
    file
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(device).unwrap()
}

/// Recovers, and has e2fsck judge; the inodes and blocks that are free then.
fn recovered(state: &CrashState, dump: &mut DumpFile) -> (u64, u64) {
    let device = Arc::new(state.device());
    let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    // What recovery has freed is free when that is committed.
    volume.sync().unwrap();
    let free = volume.statfs();
    volume.close().unwrap();
    dump.set(&device.image()).unwrap();
    let (code, said) = e2fsck(dump.path(), &["-fn"]);
    assert_eq!(code, 0, "{state}: {said}");
    (free.inodes_free, free.blocks_free)
}

#[test]
fn a_file_without_a_name_is_deleted_after_a_cut_whatever_was_done_to_it() {
    let dir = tempfile::tempdir().unwrap();
    for (args, others) in KINDS {
        let path = dir.path().join("image");
        mke2fs(&path, 16 << 20, &[&["-t", "ext4"], args].concat());
        let base = Image::from_bytes(std::fs::read(&path).unwrap());
        let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
        for (pattern, steps) in PATTERNS.iter().enumerate() {
            let device = Arc::new(RecordingDevice::new(base.clone()));
            let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
            let attr = NewAttr { permissions: 0o600, uid: 0, gid: 0 };
            let root = volume.open_dir("/").unwrap();
            let orphans: Vec<File> = (0..others).map(|_| root.create_nameless(attr).unwrap()).collect();
            volume.sync().unwrap();
            let (inodes, blocks) = (volume.statfs().inodes_free, volume.statfs().blocks_free);
            let file = run(&volume, pattern);
            // Of a file that was replaced the new one stays.
            let stays = u64::from(steps.contains(&Replace));
            let start = device.mark("done");
            // Another's fsync commits it.
            let other = volume.create_file("/other").unwrap();
            other.sync_all().unwrap();
            device.mark("synced");
            let log = device.log();
            for state in log.crash_states(pattern as u64, 3).filter(|state| state.cut > start) {
                let (inodes_now, blocks_now) = recovered(&state, &mut dump);
                if state.marks(&log).any(|(_, mark)| mark == "synced") {
                    let expected = (inodes + others as u64 - 1 - stays, blocks - stays);
                    assert_eq!((inodes_now, blocks_now), expected, "{args:?} {steps:?} {state}");
                }
            }
            drop((file, other, orphans));
            volume.close().unwrap();
        }
    }
}

#[test]
fn a_file_that_is_given_its_first_name_is_no_orphan_any_more() {
    let dir = tempfile::tempdir().unwrap();
    for (args, others) in KINDS {
        let path = dir.path().join("image");
        mke2fs(&path, 16 << 20, &[&["-t", "ext4"], args].concat());
        let base = Image::from_bytes(std::fs::read(&path).unwrap());
        let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
        let device = Arc::new(RecordingDevice::new(base));
        let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let attr = NewAttr { permissions: 0o600, uid: 0, gid: 0 };
        let root = volume.open_dir("/").unwrap();
        let orphans: Vec<File> = (0..others).map(|_| root.create_nameless(attr).unwrap()).collect();
        let file = root.create_nameless(attr).unwrap();
        file.write_at(&[7; 9000], 0).unwrap();
        file.sync_all().unwrap();
        volume.link_file(&file, "/named").unwrap();
        let start = device.mark("linked");
        volume.sync().unwrap();
        device.mark("synced");
        drop((file, orphans));
        volume.close().unwrap();
        let log = device.log();
        for state in log.crash_states(1, 3).filter(|state| state.cut > start) {
            recovered(&state, &mut dump);
            let volume = open(Arc::new(state.device()));
            match volume.read("/named") {
                Ok(content) => assert_eq!(content, [7; 9000], "{state}"),
                Err(_) => assert!(!state.marks(&log).any(|(_, mark)| mark == "synced"), "{state}"),
            }
        }
        dump.set(&device.image()).unwrap();
        let (code, said) = e2fsck(dump.path(), &["-fn"]);
        assert_eq!(code, 0, "{args:?}: {said}");
    }
}

/// Entries of an orphan file stand for themselves: one whose inode is damaged stays, and the others
/// are deleted. The volume says that it needs a check.
#[test]
fn a_damaged_inode_in_the_orphan_file_keeps_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, 16 << 20, &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]);
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(std::fs::read(&path).unwrap())));
    let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let names = ["/one", "/two", "/three"];
    let files = names.map(|name| volume.create_file(name).unwrap());
    let inos = files.each_ref().map(|file| file.metadata().ino());
    names.iter().for_each(|name| volume.remove_file(name).unwrap());
    volume.sync().unwrap();
    device.image().save(&path).unwrap();
    drop(files);
    volume.close().unwrap();

    // Replays the log, and leaves the orphans.
    debugfs_write(&path, "journal_run");
    debugfs_write(&path, &format!("set_inode_field <{}> extra_isize 60000", inos[1]));
    let volume = OpenOptions::new().write(true).open(&path).unwrap();
    volume.write("/new", b"new").unwrap();
    volume.close().unwrap();
    let damaged = Volume::open(&path).unwrap();
    assert!(damaged.node_at(inos[1]).is_err());
    assert_eq!(damaged.read("/new").unwrap(), b"new");
    drop(damaged);
    let (code, said) = e2fsck(&path, &["-fy"]);
    assert!(code == 1 && !said.contains(&format!("Inode {} ", inos[0])), "{code}: {said}");
    let (code, said) = e2fsck(&path, &["-fn"]);
    assert_eq!(code, 0, "{said}");
}

/// Makes three files with `content` that are removed while they are in use, and returns their
/// inodes. The volume is left as a crash leaves it.
fn three_orphans(path: &Path, features: &str, content: &[u8]) -> [u32; 3] {
    mke2fs(path, 8 << 20, &["-t", "ext4", "-b", "1024", "-O", features]);
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(std::fs::read(path).unwrap())));
    let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let names = ["/one", "/two", "/three"];
    let files = names.map(|name| volume.create_file(name).unwrap());
    files.iter().for_each(|file| file.write_at(content, 0).unwrap());
    let inos = files.each_ref().map(|file| file.metadata().ino());
    names.iter().for_each(|name| volume.remove_file(name).unwrap());
    volume.sync().unwrap();
    device.image().save(path).unwrap();
    drop(files);
    volume.close().unwrap();
    inos
}

/// Returns the names of the rules that the orphan list breaks.
fn broken_list(path: &Path) -> Vec<&'static str> {
    let device = Arc::new(MemDevice::from_bytes(std::fs::read(path).unwrap()));
    let findings = lanefs_check::check(device, &lanefs_check::Options::default()).unwrap().findings;
    let of_list = findings.iter().filter(|finding| finding.structure == lanefs_check::Structure::OrphanList);
    of_list.map(|finding| finding.rule.name()).collect()
}

/// A list that breaks off, at a damaged inode or at a number that is none of an orphan: the orphans
/// before are deleted, those behind stay allocated, and the volume says that it needs a check.
#[test]
fn a_list_that_breaks_off_keeps_the_volume_usable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let [_, two, three] = three_orphans(&path, "^orphan_file", b"");
    // Replays the log, and leaves the orphans: the newest is the first of the list.
    debugfs_write(&path, "journal_run");
    let whole = std::fs::read(&path).unwrap();
    assert!(broken_list(&path).is_empty());
    for (request, rule, found) in [
        (format!("set_inode_field <{two}> extra_isize 60000"), "OrphanDamaged", 2),
        (format!("set_inode_field <{three}> dtime @{three}"), "OrphanTwice", 1),
        (format!("set_inode_field <{three}> dtime @5"), "OrphanRange", 1),
        ("set_super_value last_orphan 4000000".to_owned(), "OrphanRange", 0),
    ] {
        std::fs::write(&path, &whole).unwrap();
        debugfs_write(&path, &request);
        assert_eq!(broken_list(&path), [rule], "{request}");
        // Until e2fsck has mended it, each time.
        for name in ["/new", "/newer"] {
            let volume = OpenOptions::new().write(true).open(&path).unwrap();
            let orphans = volume.info().recovery.orphans;
            assert!(orphans == found || name == "/newer", "{request}: {orphans} orphans");
            volume.write(name, b"new").unwrap();
            let file = volume.create_file("/removed").unwrap();
            volume.remove_file("/removed").unwrap();
            volume.sync().unwrap();
            drop(file);
            volume.close().unwrap();
        }
        assert!(dumpe2fs(&path, &["-h"]).contains("with errors"), "{request}");
        let (code, said) = e2fsck(&path, &["-fy"]);
        let deleted = !said.contains(&format!("node {three} "));
        assert!(code == 1 && (deleted || found == 0), "{request}: {code}: {said}");
        let (code, said) = e2fsck(&path, &["-fn"]);
        assert_eq!(code, 0, "{request}: {said}");
        let volume = Volume::open(&path).unwrap();
        ["/new", "/newer"].iter().for_each(|name| assert_eq!(volume.read(name).unwrap(), b"new"));
    }
}

/// An open that cannot read what it needs to delete the orphans fails, and the next finishes them.
#[test]
fn an_open_that_cannot_delete_an_orphan_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for features in ["^orphan_file", "orphan_file"] {
        three_orphans(&path, features, &[7; LEN as usize]);
        let bytes = std::fs::read(&path).unwrap();
        let mut failed = 0;
        for nth in 1.. {
            let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(bytes.clone())));
            let attempt = || OpenOptions::new().write(true).open_device(Arc::clone(&device) as _);
            device.fail_once(Op::Read, nth, 5);
            let opened = attempt();
            let is_whole = device.failures() == 0;
            device.heal();
            failed += u32::from(opened.is_err());
            assert!(opened.is_ok() || !is_whole, "{features}, read {nth}: {opened:?}");
            opened.or_else(|_| attempt()).unwrap().close().unwrap();
            let left = Arc::new(MemDevice::from_bytes(device.inner().to_bytes()));
            let report = lanefs_check::check(left, &lanefs_check::Options::default()).unwrap();
            assert_eq!((report.findings, report.orphans), (vec![], 0), "{features}, read {nth}");
            if is_whole {
                break;
            }
        }
        assert!(failed > 10, "{features}: {failed} opens failed");
    }
}
