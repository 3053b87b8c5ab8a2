//! Journals that were not closed, both ways: the kernel's recovered by lanefs, lanefs's recovered
//! by the kernel and by e2fsck. Each recovery (lanefs, the kernel, e2fsck) must give the same tree.

use lanefs::{AtSymlink, NewAttr, OpenOptions, SetXattr, Volume};
use lanefs_device::MemDevice;
use lanefs_format::extent::{At, NodeRef};
use lanefs_format::{GroupDesc, InodeFlags, RoCompat, Superblock};
use lanefs_sim::{Image, RecordingDevice, seed_from_env};
use lanefs_tests::{
    LoopMount, TreeEntry, assert_same_tree, debugfs_write, dumpe2fs, e2fsck, e2fsck_clean, mke2fs,
    require_root, tree_listing, volume_lines,
};
use rand::Rng;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What the kernel reads of a clean volume.
fn kernel_view(image: &Path) -> Vec<TreeEntry> {
    let mount = LoopMount::new(image, "ro");
    let listing = tree_listing(mount.path());
    mount.unmount();
    listing
}

fn copy(image: &Path, name: &str) -> PathBuf {
    let to = image.with_file_name(name);
    fs::copy(image, &to).unwrap();
    to
}

fn recover_by_e2fsck(image: &Path) -> PathBuf {
    let image = copy(image, "by-e2fsck.img");
    let (code, said) = e2fsck(&image, &["-fy"]);
    assert!(code <= 1, "e2fsck -fy: {code}\n{said}");
    e2fsck_clean(&image);
    image
}

fn recover_by_lanefs(image: &Path) -> PathBuf {
    let image = copy(image, "by-lanefs.img");
    Volume::open(&image).unwrap().close().unwrap();
    e2fsck_clean(&image);
    image
}

fn recover_by_kernel(image: &Path) -> PathBuf {
    let image = copy(image, "by-kernel.img");
    LoopMount::new(&image, "").unmount();
    e2fsck_clean(&image);
    image
}

/// Names and small files, made and removed through the kernel.
fn kernel_burst(root: &Path, rounds: usize) {
    for i in 0..rounds {
        let dir = root.join(format!("dir{i:03}"));
        fs::create_dir(&dir).unwrap();
        for j in 0..20 {
            let mut file = fs::File::create(dir.join(format!("file-{j}"))).unwrap();
            file.write_all(&vec![j as u8; j * 317]).unwrap();
        }
        fs::hard_link(dir.join("file-3"), dir.join("linked")).unwrap();
        std::os::unix::fs::symlink("x".repeat(i % 90 + 1), dir.join("symlink")).unwrap();
        fs::rename(dir.join("file-4"), dir.join("file-5")).unwrap();
        if i % 3 == 2 {
            fs::remove_dir_all(root.join(format!("dir{:03}", i - 1))).unwrap();
        }
        if i % 5 == 0 {
            fs::File::open(&dir).unwrap().sync_all().unwrap();
        }
    }
}

fn kernels_journal(args: &[&str]) {
    require_root();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("kernel.img");
    mke2fs(&image, 96 << 20, args);
    let mount = LoopMount::new(&image, "");
    kernel_burst(mount.path(), 40);
    mount.cut_power();
    let (_, said) = e2fsck(&image, &["-fn"]);
    assert!(said.contains("skipping journal recovery"), "the journal is not dirty: the test proves nothing");
    // Read-only, lanefs recovers in memory and leaves the volume as it is.
    let before = fs::read(&image).unwrap();
    let seen = Volume::open_read_only(&image).unwrap();
    assert!(!seen.read_dir("/").unwrap().is_empty());
    drop(seen);
    assert!(fs::read(&image).unwrap() == before, "a read-only open wrote to the volume");
    let theirs = kernel_view(&recover_by_e2fsck(&image));
    assert!(theirs.len() > 300, "{} entries survived", theirs.len());
    assert_same_tree(&theirs, &kernel_view(&recover_by_lanefs(&image)));
}

#[test]
fn the_kernels_recovered_by_lanefs() {
    kernels_journal(&["-t", "ext4"]);
}

#[test]
fn the_kernels_of_ext3_recovered_by_lanefs() {
    kernels_journal(&["-t", "ext3", "-b", "1024", "-I", "128"]);
}

#[test]
fn the_kernels_with_an_orphan_file_recovered_by_lanefs() {
    kernels_journal(&["-t", "ext4", "-O", "orphan_file,metadata_csum_seed"]);
}

#[test]
fn the_kernels_without_checksums_recovered_by_lanefs() {
    kernels_journal(&["-t", "ext4", "-O", "^metadata_csum,^64bit", "-b", "1024"]);
}

fn our_journal(args: &[&str]) {
    require_root();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("ours.img");
    mke2fs(&image, 32 << 20, args);
    let seed = seed_from_env("LANEFS_SEED");
    let mut rng = seed.rng(2);
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(fs::read(&image).unwrap())));
    let volume =
        OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(device.clone()).unwrap();
    let attr = NewAttr { permissions: 0o755, uid: 1, gid: 2 };
    for i in 0..30 {
        let dir = format!("/d{i}");
        volume.create_dir_with(&dir, attr).unwrap();
        for j in 0..rng.random_range(1..20) {
            let path = format!("{dir}/f{j}");
            volume.write(&path, &vec![b'a' + j as u8; rng.random_range(0..9000)]).unwrap();
            if j % 4 == 0 {
                volume
                    .set_xattr(&path, "user.k", &vec![b'v'; rng.random_range(1..400)], SetXattr::Any)
                    .unwrap();
            }
        }
        volume.symlink("s".repeat(i + 40), format!("{dir}/symlink")).unwrap();
        if i > 3 && i % 2 == 0 {
            volume.remove_dir_all(format!("/d{}", i - 3)).unwrap();
        }
        if i % 7 == 6 {
            volume.sync().unwrap();
        }
    }
    let log = device.log();
    drop(volume);
    let mut dirty = 0;
    // How many of them find the log empty is a matter of when the background checkpoints.
    let mut states = log.crash_states(seed.value(), 1).skip(3).step_by(7);
    for n in 0.. {
        let enough = n >= 6 && dirty >= 3;
        let Some(state) = states.next().filter(|_| !enough) else { break };
        state.image.save(&image).unwrap();
        let (_, said) = e2fsck(&image, &["-fn"]);
        dirty += usize::from(said.contains("skipping journal recovery"));
        let ours = kernel_view(&recover_by_lanefs(&image));
        assert_same_tree(&ours, &kernel_view(&recover_by_e2fsck(&image)));
        assert_same_tree(&ours, &kernel_view(&recover_by_kernel(&image)));
    }
    assert!(dirty >= 3, "only {dirty} of the states had a dirty journal");
}

#[test]
fn ours_recovered_by_the_kernel_and_e2fsck() {
    our_journal(&["-t", "ext4", "-b", "1024", "-J", "size=1"]);
}

#[test]
fn ours_of_ext3_recovered_by_the_kernel_and_e2fsck() {
    our_journal(&["-t", "ext3", "-b", "4096", "-J", "size=4"]);
}

#[test]
fn ours_with_an_orphan_file_recovered_by_the_kernel_and_e2fsck() {
    our_journal(&["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed", "-J", "size=4"]);
}

/// An orphan that cannot be finished must not keep its volume from being used: it stays an orphan,
/// and the volume says that it has errors.
#[test]
fn a_damaged_orphan_stays_one_and_the_volume_opens() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("live.img");
    mke2fs(&image, 16 << 20, &["-t", "ext4"]);
    let volume = Volume::open(&image).unwrap();
    let file = volume
        .open_dir("/")
        .unwrap()
        .create_nameless(NewAttr { permissions: 0o600, uid: 0, gid: 0 })
        .unwrap();
    file.write_at(&[7; 9000], 0).unwrap();
    let ino = file.metadata().ino();
    // Closed while the file is in use: it stays an orphan, with an empty log.
    volume.close().unwrap();
    drop(file);
    // The head of its extent tree: magic and number of entries.
    debugfs_write(&image, &format!("set_inode_field <{ino}> block[0] 0"));
    let volume = Volume::open(&image).unwrap();
    volume.write("/file", b"of use").unwrap();
    volume.close().unwrap();
    let about = dumpe2fs(&image, &["-h"]);
    assert!(about.contains(&format!("First orphan inode:       {ino}")), "{about}");
    assert!(about.contains("clean with errors"), "{about}");
    assert_eq!(Volume::open(&image).unwrap().read("/file").unwrap(), b"of use");
}

/// A volume whose log waits, with everything in it that leads to the log. Returns its bytes and its
/// tree.
fn waiting(args: Option<&[&str]>) -> (Vec<u8>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("waiting.img");
    match args {
        Some(args) => mke2fs(&image, 32 << 20, args),
        None => {
            let device = lanefs_device::FileDevice::create(&image, 32 << 20).unwrap();
            let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
            lanefs_mkfs::format(&device, &options).unwrap();
        }
    }
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(fs::read(&image).unwrap())));
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(device.clone()).unwrap();
    volume.create_dir("/dir").unwrap();
    volume.write("/dir/file", &[7; 10_000]).unwrap();
    // The inode of the root is in the same block of the table as that of the journal.
    let attr = lanefs::SetAttr { permissions: Some(0o711), ..Default::default() };
    volume.set_attr("/", &attr, AtSymlink::NoFollow).unwrap();
    volume.sync().unwrap();
    (device.image().to_bytes(), volume_lines(&volume))
}

/// The structures of group 0 on the way to the log, each as a range of bytes: the descriptor and
/// the inode of the root and of the journal.
fn way_to_log(bytes: &[u8]) -> [std::ops::Range<usize>; 3] {
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let (layout, block_size) = (sb.layout(), sb.block_size() as usize);
    let (block, offset) = layout.desc_location(0).unwrap();
    let desc = block as usize * block_size + offset as usize;
    let group = GroupDesc::parse(&bytes[desc..], 0, &layout, &sb.checksummer()).unwrap();
    let size = usize::from(layout.inode_size());
    let inode = |ino: usize| {
        let at = group.inode_table as usize * block_size + (ino - 1) * size;
        at..at + size
    };
    [desc..desc + usize::from(layout.desc_size()), inode(2), inode(8)]
}

/// Recovers `bytes`, and returns the tree, after the check has found nothing wrong before and
/// behind.
fn recovered(bytes: Vec<u8>, torn_super: bool) -> Vec<String> {
    let judge = |bytes| {
        let report = lanefs_check::check(Arc::new(MemDevice::from_bytes(bytes)), &Default::default());
        assert_eq!(report.unwrap().findings, []);
    };
    // The check does not mend a superblock, nor does e2fsck.
    if !torn_super {
        judge(bytes.clone());
    }
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let volume = Volume::open_device(device.clone()).unwrap();
    let lines = volume_lines(&volume);
    volume.close().unwrap();
    judge(device.to_bytes());
    lines
}

const WAITING: [Option<&[&str]>; 5] = [
    None,
    Some(&["-t", "ext4", "-b", "4096", "-J", "size=4"]),
    Some(&["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "^metadata_csum,uninit_bg"]),
    Some(&["-t", "ext3", "-b", "4096", "-J", "size=4", "-O", "uninit_bg"]),
    // Its map is indirect, its inodes have checksums.
    Some(&["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "^extents,^64bit"]),
];

/// Recovery needs the superblock and the log: what else a crash has torn, the log has whole.
#[test]
fn a_log_is_found_though_what_leads_to_it_is_torn() {
    for args in WAITING {
        let (good, tree) = waiting(args);
        let way = way_to_log(&good);
        for part in &way {
            let mut torn = good.clone();
            // Half of it of another time.
            torn[part.start + part.len() / 2..part.end].fill(0xA5);
            assert_eq!(recovered(torn.clone(), false), tree, "{args:?}, {part:?}");
            // And the superblock, which a checkpoint writes together with the descriptors: times.
            let csum = Superblock::parse(&good[1024..]).unwrap().has_ro(RoCompat::METADATA_CSUM);
            torn[1024 + 0x2C] ^= 1;
            assert_eq!(recovered(torn, csum), tree, "{args:?}, {part:?} and the superblock");
        }
    }
}

/// Tears the descriptor of group 0 of a volume that waits, and replaces words of the copy of the
/// journal's map.
fn with_copy(good: &[u8], words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    bytes[way_to_log(good)[0].start + 0x0C] ^= 1;
    for (word, value) in words {
        let at = 1024 + 0x10C + word * 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let sb = Superblock::parse_torn(&bytes[1024..]).unwrap();
    bytes[1024..2048].copy_from_slice(&sb.encode());
    bytes
}

fn assert_refused(bytes: Vec<u8>, what: &str) {
    let device = Arc::new(MemDevice::from_bytes(bytes.clone()));
    let Err(e) = Volume::open_device(device.clone()) else { panic!("{what}: it was opened") };
    assert_eq!(e.errno(), libc::EUCLEAN, "{what}: {e}");
    assert!(device.to_bytes() == bytes, "{what}: it was written");
    let report = lanefs_check::check(device, &Default::default()).unwrap();
    assert!(!report.is_clean(), "{what}");
}

/// The copy of the journal's map in the superblock is not trusted.
#[test]
fn a_copy_of_the_journals_map_that_lies_is_refused() {
    for args in WAITING {
        let (good, _) = waiting(args);
        let table = (way_to_log(&good)[2].start / 4096) as u32;
        let copy = Superblock::parse(&good[1024..]).unwrap().journal_backup().unwrap();
        let is_tree = copy.flags.contains(InodeFlags::EXTENTS);
        // The first extent or pointer.
        let first = if is_tree { 5 } else { 0 };
        for value in [0, table, 0x7fff_ffff] {
            assert_refused(with_copy(&good, &[(first, value)]), &format!("{args:?}, first {value:#x}"));
        }
        for size in [0, 4096, copy.size as u32 + 4096, 0xffff_f000] {
            assert_refused(with_copy(&good, &[(16, size)]), &format!("{args:?}, size {size:#x}"));
        }
        if is_tree {
            // A node that is its own child.
            let below = [(1, 4 | 3 << 16), (4, table), (5, 0)];
            assert_refused(with_copy(&good, &below), &format!("{args:?}, deep"));
            // A whole log, and not that of the inode.
            let root = NodeRef::new(&copy.i_block, At { ino: 8, block: 0 }).unwrap();
            let (mut bytes, free, mut len) = (good.clone(), 7168, 0);
            for run in root.entries.iter().map(|entry| entry.extent()) {
                let from = run.ee_start as usize * 4096;
                let end = from + run.len as usize * 4096;
                bytes.copy_within(from..end, (free + run.ee_block as usize) * 4096);
                len = run.end() as u32;
            }
            let elsewhere = [(0, 1 << 16 | 0xF30A), (1, 4), (3, 0), (4, len), (5, free as u32)];
            assert_refused(with_copy(&bytes, &elsewhere), &format!("{args:?}, elsewhere"));
        }
    }
}
