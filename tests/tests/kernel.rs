//! The kernel as judge: the same operations by lanefs and by the kernel's ext4, on volumes with the
//! same features. Each then reads, and goes on changing, what the other wrote.

use lanefs::Volume;
use lanefs_device::FileDevice;
use lanefs_tests::{
    Host, Lane, LoopMount, Op, Target, TreeEntry, assert_same_tree, e2fsck_clean, edits, mke2fs, open,
    settled, specimen, tree_listing, volume_listing, writing,
};
use std::path::Path;

const SIZE: u64 = 96 << 20;

fn both(mke2fs_args: &[&str]) {
    both_on(|image| mke2fs(image, SIZE, mke2fs_args));
}

fn both_on(mkfs: impl Fn(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let (by_kernel, by_lanefs) = (dir.path().join("kernel"), dir.path().join("lanefs"));
    mkfs(&by_kernel);
    mkfs(&by_lanefs);
    let make = specimen();
    let expected = kernel_does(&by_kernel, &make);
    let lanefs_saw = lanefs_does(&by_lanefs, &make);
    assert_same_tree(&expected, &lanefs_saw);
    assert_same_tree(&expected, &kernel_does(&by_lanefs, &[]));
    assert_same_tree(&expected, &lanefs_reads(&by_kernel));

    // Each goes on with the volume of the other.
    let expected = kernel_does(&by_lanefs, &edits());
    let lanefs_saw = lanefs_does(&by_kernel, &edits());
    assert_same_tree(&expected, &lanefs_saw);
    assert_same_tree(&expected, &kernel_does(&by_kernel, &[]));
    assert_same_tree(&expected, &lanefs_reads(&by_lanefs));
}

/// The tree after `ops`, as the kernel sees it on a mount of its own.
fn kernel_does(image: &Path, ops: &[Op]) -> Vec<TreeEntry> {
    if !ops.is_empty() {
        let mount = LoopMount::new(image, "");
        Host::new(mount.path()).apply_all(ops);
        mount.unmount();
        e2fsck_clean(image);
    }
    let mount = LoopMount::new(image, "ro");
    let listing = settled(tree_listing(mount.path()));
    mount.unmount();
    listing
}

/// The tree after `ops`, as lanefs sees it in the open volume.
fn lanefs_does(image: &Path, ops: &[Op]) -> Vec<TreeEntry> {
    let lane = Lane(open(writing(), image).unwrap());
    lane.apply_all(ops);
    let listing = settled(volume_listing(&lane.0).unwrap());
    lane.0.close().unwrap();
    e2fsck_clean(image);
    assert_same_tree(&listing, &lanefs_reads(image));
    listing
}

fn lanefs_reads(image: &Path) -> Vec<TreeEntry> {
    let before = std::fs::read(image).unwrap();
    let volume = Volume::open_read_only(image).unwrap();
    let listing = settled(volume_listing(&volume).unwrap());
    drop(volume);
    assert!(before == std::fs::read(image).unwrap(), "a volume opened for reading was written");
    listing
}

#[test]
fn defaults() {
    both(&["-t", "ext4"]);
}

#[test]
fn defaults_of_today() {
    both(&["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed,metadata_csum,64bit"]);
}

#[test]
fn blocks_of_1k() {
    both(&["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed"]);
}

#[test]
fn blocks_of_2k_and_inodes_of_512_bytes() {
    both(&["-t", "ext4", "-b", "2048", "-I", "512"]);
}

#[test]
fn without_checksums() {
    both(&["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"]);
}

#[test]
fn uninit_bg() {
    both(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"]);
}

#[test]
fn without_extents() {
    both(&["-t", "ext4", "-b", "1024", "-O", "^extents,^64bit"]);
}

#[test]
fn ext3_with_inodes_of_128_bytes() {
    both(&["-t", "ext3", "-b", "4096", "-I", "128"]);
}

#[test]
fn inodes_of_128_bytes() {
    both(&["-t", "ext4", "-b", "1024", "-I", "128"]);
}

#[test]
fn without_a_journal() {
    both(&["-t", "ext4", "-b", "4096", "-O", "^has_journal"]);
}

#[test]
fn without_64bit() {
    both(&["-t", "ext4", "-b", "4096", "-O", "^64bit"]);
}

#[test]
fn without_flex_bg() {
    both(&["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]);
}

#[test]
fn volumes_made_by_lanefs() {
    for block_size in [None, Some(1024)] {
        both_on(|image| {
            let device = FileDevice::create(image, SIZE).unwrap();
            let options = lanefs::mkfs::Options { block_size, ..Default::default() };
            lanefs::mkfs::format(&device, &options).unwrap();
        });
    }
}
