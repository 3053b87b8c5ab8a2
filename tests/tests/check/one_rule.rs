//! Volumes that debugfs made break one rule each, and whole ones that come close to it.

use super::{Tally, make_indexed, used};
use lanefs_check::{Options, check};
use lanefs_device::MemDevice;
use lanefs_tests::{debugfs, debugfs_write, mke2fs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PLAIN: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
const BIGALLOC: &[&str] =
    &["-t", "ext4", "-b", "1024", "-I", "128", "-J", "size=1", "-O", "bigalloc", "-C", "16384"];

/// Makes a volume, has debugfs change it, and returns its bytes.
fn made(path: &Path, args: &[&str], requests: &[&str]) -> Vec<u8> {
    mke2fs(path, 24 << 20, args);
    for request in requests {
        debugfs_write(path, request);
    }
    std::fs::read(path).unwrap()
}

/// Has debugfs change a volume, and returns its bytes.
fn changed(path: &Path, whole: &[u8], request: &str) -> Vec<u8> {
    std::fs::write(path, whole).unwrap();
    debugfs_write(path, request);
    std::fs::read(path).unwrap()
}

/// Returns the names of the rules that a volume breaks.
fn broken(bytes: &[u8]) -> Vec<&'static str> {
    let report = check(Arc::new(MemDevice::from_bytes(bytes.to_vec())), &Options::default()).unwrap();
    report.findings.iter().map(|finding| finding.rule.name()).collect()
}

/// Writes the content of a file that debugfs is to copy, beside the volume.
fn content(tally: &Tally, bytes: &[u8]) -> PathBuf {
    let path = tally.dir.path().join("content");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Content of blocks that are written and holes in turn.
fn every_second(blocks: usize) -> Vec<u8> {
    (0..blocks).flat_map(|n| [u8::from(n % 2 == 0); 1024]).collect()
}

/// The root of an extent tree holds four extents, and a leaf of 1024 bytes 84 at most.
#[test]
fn a_cluster_across_two_leaves_is_claimed_once() {
    let mut tally = Tally::new();
    let file = content(&tally, &every_second(400));
    let bytes = made(&tally.path(), BIGALLOC, &[&format!("write {} f", file.display())]);
    let extents = debugfs(tally.path(), "dump_extents /f");
    assert!(extents.contains(" 1/ 1 "), "leaves below the root: {extents}");
    tally.ask("two leaves", bytes);
    assert_eq!(tally.clean, 1);
    tally.judge();
}

#[test]
fn a_block_has_the_same_place_in_both_clusters() {
    let mut tally = Tally::new();
    let path = tally.path();
    let file = content(&tally, &every_second(4));
    let whole = made(&path, BIGALLOC, &[&format!("write {} f", file.display())]);
    let place = |lblk| debugfs(&path, &format!("bmap /f {lblk}")).trim().parse::<u64>().unwrap();
    let (first, third) = (place(0), place(2));
    // The places of the first and of the second extent.
    for (name, word, block) in [("shifted", 5, first + 1), ("in another cluster", 8, third + 160)] {
        let bytes = changed(&path, &whole, &format!("set_inode_field /f block[{word}] {block}"));
        assert!(broken(&bytes).contains(&"ClusterPlace"), "{name}: {:?}", broken(&bytes));
        tally.ask(name, bytes);
    }
    tally.ask("whole", whole);
    assert_eq!(tally.clean, 1);
    tally.judge();
}

/// The kernel allocates no cluster for a block map. A symlink never grows.
#[test]
fn files_of_clusters_have_extents() {
    let mut tally = Tally::new();
    let path = tally.path();
    let file = content(&tally, &[b'c'; 1000]);
    let empty = tally.dir.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    let target = "t".repeat(300);
    let requests = [
        format!("write {} f", file.display()),
        format!("write {} e", empty.display()),
        format!("write {} a", empty.display()),
        "mkdir d".to_owned(),
        format!("symlink l {target}"),
        "ea_set /a user.x value".to_owned(),
    ];
    let whole = made(&path, BIGALLOC, &requests.each_ref().map(String::as_str));
    // The root of an extent tree becomes twelve numbers, of which the first is in use.
    let block_mapped = |name: &str| {
        std::fs::write(&path, &whole).unwrap();
        let block = debugfs(&path, &format!("bmap /{name} 0")).trim().to_owned();
        debugfs_write(&path, &format!("set_inode_field /{name} flags 0"));
        for (word, value) in [(0, &*block), (1, "0"), (4, "0"), (5, "0")] {
            debugfs_write(&path, &format!("set_inode_field /{name} block[{word}] {value}"));
        }
        std::fs::read(&path).unwrap()
    };
    for name in ["f", "d"] {
        let bytes = block_mapped(name);
        assert_eq!(broken(&bytes), ["BlockMapped"], "{name}");
        tally.ask(name, bytes);
    }
    tally.ask("attributes alone", block_mapped("a"));
    tally.ask("a symlink", block_mapped("l"));
    assert_eq!(tally.clean, 2, "attributes alone, and a symlink");
    tally.ask("no block", block_mapped("e"));
    tally.ask("whole", whole.clone());
    assert_eq!(tally.clean, 4);
    tally.judge();
}

/// The attribute block takes a whole cluster, and `i_blocks` counts the inodes of values too.
#[test]
fn blocks_of_attributes_hold_no_target() {
    let mut tally = Tally::new();
    let path = tally.path();
    let bytes = made(&path, BIGALLOC, &["symlink l target", "ea_set /l user.x value"]);
    tally.ask("bigalloc", bytes);
    let file = content(&tally, &[b'v'; 3000]);
    let value = format!("ea_set -f {} /l user.x", file.display());
    let args = ["-t", "ext4", "-b", "1024", "-I", "128", "-O", "ea_inode", "-J", "size=1"];
    // debugfs leaves out the block of the value's inode.
    let bytes = made(&path, &args, &["symlink l target", &value, "set_inode_field /l blocks 4"]);
    assert!(debugfs(&path, "stat <13>").contains("Flags: 0x280000"), "an inode for the value");
    tally.ask("ea_inode", bytes);
    assert_eq!(tally.clean, 2);
    tally.judge();
}

/// The last of the attributes that have a value takes it along.
#[test]
fn a_value_counts_its_users() {
    let mut tally = Tally::new();
    let path = tally.path();
    let file = content(&tally, &[b'v'; 3000]);
    let value = format!("ea_set -f {} /l user.x", file.display());
    let args = ["-t", "ext4", "-b", "1024", "-I", "128", "-O", "ea_inode", "-J", "size=1"];
    let whole = made(&path, &args, &["symlink l target", &value, "set_inode_field /l blocks 4"]);
    let stat = debugfs(&path, "stat <13>");
    tally.ask("one user", whole.clone());
    assert_eq!(tally.clean, 1);
    // The halves of the count.
    for change in ["version 2", "version 0", "ctime @1"] {
        let bytes = changed(&path, &whole, &format!("set_inode_field <13> {change}"));
        assert_eq!(broken(&bytes), ["XattrValueRefcount"], "{change}");
        tally.ask(change, bytes);
    }
    assert_eq!(tally.clean, 1);
    // A value of Lustre has no count.
    let atime = stat.split("atime: 0x").nth(1).unwrap();
    let atime = u32::from_str_radix(&atime[..8], 16).unwrap().cast_signed();
    let bytes = changed(&path, &whole, &format!("set_inode_field <13> ctime @{atime}"));
    assert_ne!(bytes, whole);
    tally.ask("two times that are the same", bytes);
    assert_eq!(tally.clean, 2);
    tally.judge();
}

#[test]
fn only_directories_are_case_folded() {
    let mut tally = Tally::new();
    let path = tally.path();
    let file = content(&tally, b"content");
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "casefold"];
    let write = format!("write {} f", file.display());
    let whole = made(&path, &args, &[&write, "symlink l target", "mknod p p", "mkdir d"]);
    for (name, flags) in [("f", "0x40080000"), ("l", "0x40000000"), ("p", "0x40000000")] {
        let bytes = changed(&path, &whole, &format!("set_inode_field /{name} flags {flags}"));
        assert_eq!(broken(&bytes), ["FlagsNotOfType"], "{name}");
        tally.ask(name, bytes);
    }
    tally.ask("whole", whole.clone());
    tally.ask("a directory", changed(&path, &whole, "set_inode_field /d flags 0x40080000"));
    assert_eq!(tally.clean, 2);
    tally.judge();
}

/// Names that are both encrypted and case-folded are sorted by SipHash, and no others. What else is
/// said of names that are neither does not count.
#[test]
fn siphash_is_for_encrypted_and_folded_names() {
    let tally = Tally::new();
    let path = tally.path();
    let bytes = used(&path, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], make_indexed);
    std::fs::write(&path, bytes).unwrap();
    let root: usize = debugfs(&path, "bmap /d 0").trim().parse().unwrap();
    debugfs_write(&path, "feature encrypt casefold");
    let broken_by = |flags: &str, version: u8| {
        debugfs_write(&path, &format!("set_inode_field /d flags {flags}"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[root * 1024 + 28] = version;
        broken(&bytes)
    };
    let found = broken_by("0x40081800", 6);
    assert!(!found.iter().any(|rule| ["Htree", "HashRange", "HtreeNotNamed"].contains(rule)), "{found:?}");
    for (flags, version) in [("0x40081800", 1), ("0x40081000", 6), ("0x00081800", 6)] {
        let found = broken_by(flags, version);
        assert!(found.contains(&"Htree"), "{flags}, {version}: {found:?}");
    }
}

#[test]
fn only_regular_files_have_a_high_half_of_their_size() {
    let mut tally = Tally::new();
    let path = tally.path();
    let whole = made(&path, PLAIN, &["symlink l target", "mkdir d", "mknod p p"]);
    for (name, size) in [("l", 6_u64), ("d", 1024), ("p", 0)] {
        let request = format!("set_inode_field /{name} size {}", size + (1 << 32));
        let bytes = changed(&path, &whole, &request);
        assert!(broken(&bytes).contains(&"SizeHigh"), "{name}: {:?}", broken(&bytes));
        tally.ask(name, bytes);
    }
    tally.ask("whole", whole);
    assert_eq!(tally.clean, 1);
    tally.judge();
}

/// What e2fsck says of reserved inodes that nothing uses.
#[test]
fn reserved_inodes_without_a_use_are_clear() {
    let mut tally = Tally::new();
    let path = tally.path();
    let whole = made(&path, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], &[]);
    let not_clear = |ino: u32| {
        ["block[0] 500", "blocks 2", "links_count 1"].map(|change| (ino, change, "ReservedNotClear"))
    };
    let bad_blocks = ["links_count 1", "mode 0100644", "uid 5", "gid 5", "file_acl 500"];
    let cases = [3, 4, 8].into_iter().flat_map(not_clear);
    let cases = cases.chain(bad_blocks.map(|change| (1, change, "BadBlocksInode")));
    let cases = cases.chain([5, 6, 9, 10].map(|ino| (ino, "blocks 2", "Blocks")));
    for (ino, change, rule) in cases {
        let bytes = changed(&path, &whole, &format!("set_inode_field <{ino}> {change}"));
        assert!(broken(&bytes).contains(&rule), "{ino}, {change}: {:?}", broken(&bytes));
        tally.ask(&format!("inode {ino}, {change}"), bytes);
    }
    assert_eq!(tally.clean, 0);
    // Without a type there is no map.
    for ino in [5, 6, 9, 10] {
        let bytes = changed(&path, &whole, &format!("set_inode_field <{ino}> block[0] 20000"));
        tally.ask(&format!("inode {ino}, block[0]"), bytes);
    }
    // One of the quota inodes has a use.
    let args = ["-t", "ext4", "-b", "1024", "-O", "quota", "-E", "quotatype=usrquota"];
    tally.ask("quota of users", made(&path, &args, &[]));
    assert_eq!(tally.clean, 5);
    tally.judge();
}

/// The kernel takes a symlink with one of the flags for damaged.
#[test]
fn symlinks_and_special_files_are_not_immutable() {
    let mut tally = Tally::new();
    let path = tally.path();
    let whole = made(&path, PLAIN, &["symlink l target", "mknod p p"]);
    for (name, flags) in [("l", "0x10"), ("l", "0x20"), ("p", "0x10"), ("p", "0x20")] {
        let bytes = changed(&path, &whole, &format!("set_inode_field /{name} flags {flags}"));
        assert_eq!(broken(&bytes), ["FlagsNotOfType"], "{name}, {flags}");
        tally.ask(&format!("{name}, {flags}"), bytes);
    }
    assert_eq!(tally.meant.get("immutable"), Some(&4));
    tally.judge();
}

/// With blocks of 4096 bytes its `i_size` is more than 4 GiB.
#[test]
fn the_resize_inode_is_a_large_file() {
    let mut tally = Tally::new();
    let args = ["-t", "ext4", "-b", "4096", "-J", "size=4"];
    let bytes = made(&tally.path(), &args, &["feature -large_file"]);
    assert_eq!(broken(&bytes), ["NeedsFeature"]);
    tally.ask("no large_file", bytes);
    tally.judge();
}
