//! `lanefs check` and `e2fsck -fn` agree: on the folder of damaged images, on whole volumes of
//! every shape, and on volumes damaged here, past their checksums. A difference that has no
//! reason in docs/check.md is a failure, in both directions.
//!
//! `LANEFS_SEED` replays a run, `LANEFS_DAMAGED` is the number of damaged volumes of each shape
//! (50), `LANEFS_IMAGE` keeps those whose name contains it.

mod one_rule;

use lanefs_check::{Options, Rule, check};
use lanefs_device::MemDevice;
use lanefs_sim::seed_from_env;
use lanefs_tests::{
    DIFFERENCES, Opinions, RegionKind, Victim, corpus_images, debugfs, debugfs_write, large_victim,
    memory_dir, mke2fs, small_victim, unpacked, with_mmp,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Volumes on which both were asked.
struct Tally {
    dir: tempfile::TempDir,
    volumes: usize,
    clean: usize,
    /// How often each difference that is meant was met.
    meant: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn new() -> Self {
        let (meant, wrong) = (BTreeMap::new(), Vec::new());
        Self { dir: memory_dir(), volumes: 0, clean: 0, meant, wrong }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn ask(&mut self, name: &str, bytes: Vec<u8>) {
        self.volumes += 1;
        let opinions = Opinions::of(bytes, &self.path());
        self.clean += usize::from(opinions.clean());
        if opinions.agree() {
            return;
        }
        match opinions.difference() {
            Some(difference) => *self.meant.entry(difference.name).or_default() += 1,
            None => {
                let text = format!("{name}:\n{}", opinions.summary());
                println!("WRONG {text}");
                self.wrong.push(text);
            }
        }
    }

    fn judge(self) {
        let Self { volumes, clean, meant, wrong, .. } = self;
        println!("{volumes} volumes, {clean} clean; differences that are meant: {meant:?}");
        assert!(wrong.is_empty(), "{} of {volumes} volumes:\n{}", wrong.len(), wrong.join("\n"));
    }
}

#[test]
fn images_of_the_folder() {
    let Some(paths) = corpus_images() else { return };
    let mut tally = Tally::new();
    for path in paths {
        if let Some(bytes) = unpacked(&path) {
            tally.ask(&path.file_name().unwrap().to_string_lossy(), bytes);
        }
    }
    assert!(tally.volumes > 0, "no images in the folder");
    tally.judge();
}

/// Volumes without damage: what mke2fs makes, and after use by lanefs.
#[test]
fn whole_volumes_are_clean() {
    let mut tally = Tally::new();
    for args in SHAPES.iter().chain(MORE_SHAPES) {
        let path = tally.path();
        mke2fs(&path, 24 << 20, args);
        let bytes = std::fs::read(&path).unwrap();
        tally.ask(&format!("{args:?}, new"), bytes);
        if !READ_ONLY.iter().any(|feature| args.iter().any(|arg| arg.contains(feature))) {
            tally.ask(&format!("{args:?}, used"), large_victim(args, false).bytes().to_vec());
        }
    }
    assert_eq!(tally.clean, tally.volumes, "not all are clean");
    tally.judge();
}

/// A directory that was removed while it was in use waits for its deletion. Its ".." is no link.
#[test]
fn a_removed_directory_in_use_is_an_orphan() {
    let mut tally = Tally::new();
    let path = tally.path();
    for args in SHAPES {
        mke2fs(&path, 24 << 20, args);
        let device = Arc::new(MemDevice::from_bytes(std::fs::read(&path).unwrap()));
        let volume = lanefs::Volume::open_device(device.clone()).unwrap();
        volume.create_dir_all("/removed").unwrap();
        let dir = volume.open_dir("/removed").unwrap();
        volume.remove_dir("/removed").unwrap();
        volume.sync().unwrap();
        let bytes = device.to_bytes();
        drop(dir);
        let report = check(Arc::new(MemDevice::from_bytes(bytes.clone())), &Options::default()).unwrap();
        assert_eq!((report.findings, report.orphans), (vec![], 1), "{args:?}");
        tally.ask(&format!("{args:?}"), bytes);
    }
    tally.judge();
}

/// A power cut within the write of the superblock leaves one half of it new and one old.
#[test]
fn a_torn_superblock_hides_the_rest_until_an_open_mends_it() {
    let dir = memory_dir();
    let path = dir.path().join("volume");
    mke2fs(&path, 24 << 20, SHAPES[0]);
    let closed = std::fs::read(&path).unwrap();
    let device = Arc::new(MemDevice::from_bytes(closed.clone()));
    let volume = lanefs::Volume::open_device(device.clone()).unwrap();
    let mut torn = device.to_bytes();
    volume.close().unwrap();
    torn[1536..2048].copy_from_slice(&closed[1536..2048]);
    let device = Arc::new(MemDevice::from_bytes(torn));
    let checked = || check(device.clone(), &Options::default()).unwrap();
    let report = checked();
    assert!(report.cut_short && report.count == 1, "{report:?}");
    assert_eq!(report.findings[0].structure.kind(), "superblock");
    lanefs::Volume::open_device(device.clone()).unwrap().close().unwrap();
    let report = checked();
    assert!(report.is_clean() && !report.cut_short, "{report:?}");
}

/// A symlink is deleted in two transactions: the first gives its block back.
#[test]
fn a_symlink_that_is_half_deleted_is_an_orphan() {
    let mut tally = Tally::new();
    let path = tally.path();
    let mut found = None;
    let bytes = used(&path, &["-t", "ext4", "-b", "1024"], |volume| {
        volume.symlink("t".repeat(300), "/l").unwrap();
        found = Some(volume.symlink_metadata("/l").unwrap().ino());
    });
    std::fs::write(&path, bytes).unwrap();
    let ino = found.unwrap();
    let block = debugfs(&path, &format!("bmap <{ino}> 0")).trim().to_owned();
    for request in [
        "unlink /l".to_owned(),
        format!("freeb {block}"),
        // The header of an extent tree without extents.
        format!("set_inode_field <{ino}> block[0] 0xf30a"),
        format!("set_inode_field <{ino}> blocks 0"),
        format!("set_inode_field <{ino}> links_count 0"),
        format!("set_super_value last_orphan {ino}"),
    ] {
        debugfs_write(&path, &request);
    }
    let checked = || {
        let bytes = std::fs::read(&path).unwrap();
        check(Arc::new(MemDevice::from_bytes(bytes)), &Options::default()).unwrap()
    };
    // freeb leaves the counts of free blocks as they were.
    for finding in checked().findings {
        let request = match finding.rule {
            Rule::FreeBlocks { counted, .. } => format!("set_block_group 0 free_blocks_count {counted}"),
            Rule::FreeBlocksTotal { counted, .. } => format!("set_super_value free_blocks_count {counted}"),
            rule => panic!("{rule}"),
        };
        debugfs_write(&path, &request);
    }
    debugfs_write(&path, "set_block_group 0 checksum calc");
    let report = checked();
    assert_eq!((report.findings, report.orphans), (vec![], 1));
    tally.ask("half deleted", std::fs::read(&path).unwrap());
    tally.judge();
}

/// Makes a volume, uses it, and returns its bytes.
fn used(path: &Path, args: &[&str], work: impl FnOnce(&lanefs::Volume)) -> Vec<u8> {
    mke2fs(path, 24 << 20, args);
    let device = Arc::new(MemDevice::from_bytes(std::fs::read(path).unwrap()));
    let volume = lanefs::Volume::open_device(device.clone()).unwrap();
    work(&volume);
    volume.close().unwrap();
    device.to_bytes()
}

/// Makes `/d`, which has blocks of an index.
fn make_indexed(volume: &lanefs::Volume) {
    volume.create_dir("/d").unwrap();
    for i in 0..200 {
        volume.write(format!("/d/a name of some length {i}"), b"").unwrap();
    }
}

/// The first transaction with revokes makes a log of version 1 one of version 2.
#[test]
fn a_log_of_version_1_takes_revokes() {
    let mut tally = Tally::new();
    let args = ["-t", "ext3", "-b", "1024", "-J", "size=1,v1_superblock"];
    let bytes = used(&tally.path(), &args, |volume| {
        make_indexed(volume);
        volume.sync().unwrap();
        volume.remove_dir_all("/d").unwrap();
        volume.sync().unwrap();
    });
    tally.ask("revokes", bytes);
    assert_eq!(tally.clean, 1);
    tally.judge();
}

/// A kernel sets these in the primary superblock only, when it first needs them.
#[test]
fn features_that_a_kernel_sets_in_use_are_not_in_the_copies() {
    const REV_LEVEL: usize = 1024 + 0x4C;
    const FIRST_INO: usize = 1024 + 0x54;
    const INODE_SIZE: usize = 1024 + 0x58;
    const COMPAT: usize = 1024 + 0x5C;
    const INCOMPAT: usize = 1024 + 0x60;
    const RO_COMPAT: usize = 1024 + 0x64;
    let mut tally = Tally::new();
    let path = tally.path();
    let mut bytes = used(&path, &["-t", "ext3", "-b", "1024", "-O", "^ext_attr"], |_| ());
    bytes[COMPAT] |= 0x8;
    bytes[INCOMPAT] |= 0x40;
    bytes[RO_COMPAT] |= 0x20;
    tally.ask("ext_attr, extents and dir_nlink", bytes);
    // Revision 0 becomes 1, with the same values in fields of their own.
    mke2fs(&path, 24 << 20, &["-t", "ext2", "-r", "0", "-b", "1024"]);
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[REV_LEVEL], 0);
    (bytes[REV_LEVEL], bytes[FIRST_INO], bytes[INODE_SIZE]) = (1, 11, 128);
    tally.ask("revision 1", bytes);
    assert_eq!(tally.clean, 2);
    tally.judge();
}

/// A directory that has had too many subdirectories to count keeps its count of 1.
#[test]
fn a_directory_that_had_too_many_links_is_sound() {
    let mut tally = Tally::new();
    let path = tally.path();
    let bytes = used(&path, &["-t", "ext4", "-b", "1024"], |volume| {
        make_indexed(volume);
        (0..3).for_each(|i| volume.create_dir(format!("/d/{i}")).unwrap());
    });
    std::fs::write(&path, bytes).unwrap();
    debugfs_write(&path, "set_inode_field /d links_count 1");
    let bytes = std::fs::read(&path).unwrap();
    assert!(debugfs(&path, "stat /d").contains("Links: 1 "));
    tally.ask("a count of 1", bytes.clone());
    assert_eq!(tally.clean, 1);
    std::fs::write(&path, bytes).unwrap();
    debugfs_write(&path, "set_inode_field /d links_count 2");
    tally.ask("another count", std::fs::read(&path).unwrap());
    assert_eq!(tally.clean, 1, "2 is no count of too many");
    tally.judge();
}

/// Damage is drawn from a seed: structures of one kind after the other, checksums made anew.
#[test]
fn volumes_damaged_here() {
    let seed = seed_from_env("LANEFS_SEED");
    let count = std::env::var("LANEFS_DAMAGED").map_or(50, |n| n.parse().expect("a number"));
    let only = std::env::var("LANEFS_IMAGE").unwrap_or_default();
    let mut tally = Tally::new();
    for (shape, victim) in victims().iter().enumerate() {
        let mut kinds: Vec<RegionKind> = victim.regions().iter().map(|r| r.kind).collect();
        kinds.sort();
        kinds.dedup();
        for i in 0..count {
            let mut rng = seed.rng(shape as u64 * 1_000_000 + i);
            let kind = kinds[i as usize % kinds.len()];
            let script = victim.draw(&mut rng, &[kind], 1 + i as usize % 7 / 6);
            let name = format!("shape {shape}, number {i}, {kind:?}");
            if name.contains(&only) {
                tally.ask(&name, victim.damaged(&script, i % 16 != 15));
            }
        }
    }
    tally.judge();
}

fn victims() -> Vec<Victim> {
    let mut victims: Vec<Victim> = SHAPES.iter().map(|args| large_victim(args, false)).collect();
    victims.push(small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum"], false));
    victims.push(small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file"], false));
    victims.push(small_victim(
        3 << 20,
        &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,uninit_bg"],
        false,
    ));
    victims
}

/// Each difference that is meant has its line in the document, and none is there without a test.
#[test]
fn differences_are_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/check.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|row| row.0));
    let rows: Vec<&str> = rows.collect();
    let names: Vec<&str> = DIFFERENCES.iter().map(|difference| difference.name).collect();
    assert_eq!(rows, names, "the table of docs/check.md");
}

/// No bytes make the check panic, and none make it take long: all kinds of damage at once.
#[test]
fn any_damage_is_survived() {
    let seed = seed_from_env("LANEFS_SEED");
    let mut victims = victims().split_off(SHAPES.len());
    victims.push(with_mmp(&victims[0]));
    for (shape, victim) in (SHAPES.len()..).zip(&victims) {
        for i in 0..300 {
            let mut rng = seed.rng(0xBAD_0000 + shape as u64 * 10_000 + i);
            let script = victim.draw(&mut rng, &[], 1 + i as usize % 40);
            let device = MemDevice::from_bytes(victim.damaged(&script, i % 2 == 0));
            let _ = check(Arc::new(device), &Options::default());
        }
    }
}

const SHAPES: &[&[&str]] = &[
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed", "-J", "size=1"],
    &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "1024", "-I", "128", "-J", "size=1"],
];

const MORE_SHAPES: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext4", "-b", "2048", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-O", "^sparse_super,^resize_inode", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg", "-J", "size=1"],
    &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,uninit_bg"],
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384", "-J", "size=1"],
    &["-t", "ext4", "-b", "4096", "-O", "inline_data,ea_inode,encrypt,casefold,verity,quota,project,mmp"],
];

/// Features that lanefs reads and does not write.
const READ_ONLY: &[&str] = &["bigalloc", "inline_data"];
