//! Operations that fail in the middle: no part of one is committed.

use super::*;
use crate::{NewAttr, RenameFlags, SetAttr, Volume};
use lanefs_device::{DeviceError, MemDevice, Op, forward_to};
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: usize = 1 << 20;

/// A device that fails reads of the byte `at`, from one of the next on.
#[derive(Debug)]
struct BadBlock {
    inner: MemDevice,
    at: AtomicU64,
    /// Reads of it until then.
    good: AtomicU64,
    failures: AtomicU64,
}

impl BadBlock {
    /// Returns a copy of `image`.
    fn of(image: &Image) -> Arc<Self> {
        let inner = MemDevice::from_bytes(std::fs::read(image.path()).unwrap());
        let (at, good, failures) = Default::default();
        let device = Self { inner, at, good, failures };
        device.heal();
        Arc::new(device)
    }

    /// Fails all but the next `good` reads of `block`.
    fn arm(&self, block: u64, good: u64) {
        self.at.store(block * 1024, Ordering::SeqCst);
        self.good.store(good, Ordering::SeqCst);
    }

    fn heal(&self) {
        self.good.store(u64::MAX, Ordering::SeqCst);
    }
}

impl BlockDevice for BadBlock {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        let hit = (offset..offset + buf.len() as u64).contains(&self.at.load(Ordering::SeqCst));
        let less = |good: u64| good.checked_sub(1);
        if hit && self.good.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            self.failures.fetch_add(1, Ordering::SeqCst);
            let eio = std::io::Error::from_raw_os_error(5);
            return Err(DeviceError::new(Op::Read, offset, buf.len() as u64, eio));
        }
        self.inner.read_at(buf, offset)
    }
}

/// Options for a volume with little memory.
fn small_options() -> OpenOptions {
    let options = OpenOptions::new().write(true).use_reserved(true).commit_interval(Duration::ZERO);
    options.cache_bytes(128 << 10)
}

fn small(device: &Arc<BadBlock>) -> Arc<Fs> {
    Fs::open(Arc::clone(device) as Arc<dyn BlockDevice>, small_options()).unwrap()
}

/// Has other metadata evict what is in the cache, while files are in use.
fn evict(fs: &Fs) {
    fs.journal.sync().unwrap();
    fs.journal.checkpoint().unwrap();
    for _ in 0..3 {
        for ino in 100..8192 {
            let _ = fs.read_inode(ino);
        }
    }
}

/// Returns the block of the inode table that holds `ino`.
fn table_block(image: &Image, ino: u32) -> u64 {
    let text = image.debugfs(&format!("imap <{ino}>"));
    let block = text.split("located at block ").nth(1).and_then(|s| s.split(',').next());
    block.unwrap().parse().unwrap()
}

/// A block would belong to two files if it were freed and the inode then could not be read.
#[test]
fn a_punch_whose_inode_cannot_be_read_frees_nothing() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192"]);
    let (ino, other) = (image.file("f"), image.file("g"));
    let device = BadBlock::of(&image);
    let fs = small(&device);
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &vec![1; 4 * MIB]).unwrap();
    node.sync_all().unwrap();
    evict(&fs);
    device.arm(table_block(&image, ino), 0);
    let before = node.state().clone();
    assert!(node.content().fallocate(FallocMode::PunchHole, 0, 4 * MIB as u64).is_err());
    assert!(device.failures.load(Ordering::SeqCst) > 0, "the block was still cached");
    device.heal();
    let after = node.state().clone();
    assert_eq!((after.blocks, after.i_block), (before.blocks, before.i_block));
    // Nothing was changed: the volume stays usable.
    assert!(!fs.journal.has_ended());
    drop(node);
    fs.journal.sync().unwrap();
    // Healed. Another file gets all the space that there is.
    let node = fs.inode(other).unwrap();
    let mut size = 0;
    while write(&node, size as u64, &vec![2; MIB]).is_ok() {
        size += MIB;
    }
    drop(node);
    fs.close().unwrap();
    drop(fs);
    std::fs::write(image.path(), device.inner.to_bytes()).unwrap();
    let fs = image.open();
    assert!(all(&fs.inode(ino).unwrap()).iter().all(|byte| *byte == 1), "bytes of another file");
    image.close(fs);
}

/// Makes a file of 200 extents, in three leaves of 84 entries at most, and returns it with the
/// blocks of its leaves.
pub(super) fn of_three_leaves(image: &Image) -> (u32, Vec<u64>) {
    let ino = image.file("f");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    (0..200).for_each(|n| write(&node, n * 2048, &[1; 1024]).unwrap());
    drop(node);
    image.close(fs);
    let leaves = leaves_of(image);
    assert_eq!(leaves.len(), 3);
    (ino, leaves)
}

/// Returns the blocks of the leaves in the map of the file "f", whose tree has one level.
pub(super) fn leaves_of(image: &Image) -> Vec<u64> {
    let text = image.debugfs("ex f");
    let of_leaf = |line: &&str| line.starts_with(" 0/ 1");
    let block = |line: &str| line.split_whitespace().nth(7).unwrap().parse().unwrap();
    text.lines().filter(of_leaf).map(block).collect()
}

/// One that is damaged, or marked as free, costs its file alone: not the journal, and with it the
/// right to write to the volume.
#[test]
fn a_bad_leaf_stops_no_other_file() {
    let cut = |node: &InodeRef| node.content().truncate(0);
    let collapse = |node: &InodeRef| node.content().fallocate(FallocMode::CollapseRange, 0, 1024);
    let insert = |node: &InodeRef| node.content().fallocate(FallocMode::InsertRange, 0, 1024);
    type Change = fn(&InodeRef) -> Result<()>;
    let cases: [(usize, bool, Change); 5] =
        [(0, true, cut), (0, false, cut), (2, false, cut), (2, true, collapse), (0, true, insert)];
    for (case, (leaf, is_damaged, change)) in cases.into_iter().enumerate() {
        let image = Image::new("16M", &["-t", "ext4", "-b", "1024"]);
        let (ino, leaves) = of_three_leaves(&image);
        let other = image.file("g");
        if is_damaged {
            let mut bytes = std::fs::read(image.path()).unwrap();
            bytes[leaves[leaf] as usize * 1024 + 20] ^= 1;
            std::fs::write(image.path(), bytes).unwrap();
        } else {
            image.debugfs(&format!("freeb {}", leaves[leaf]));
        }
        // The second time, what was cut is an orphan.
        for time in 0..2 {
            let fs = image.open();
            let node = fs.inode(ino).unwrap();
            assert!(change(&node).is_err(), "case {case}");
            assert!(!fs.journal.has_ended(), "case {case}, time {time}");
            write(&fs.inode(other).unwrap(), 0, b"written").unwrap();
            drop(node);
            fs.close().unwrap();
        }
    }
}

/// The end of a truncation writes the inode of a neighbour on the orphan list. If that cannot be
/// read, what was freed stays so, and the inode is an orphan still.
#[test]
fn a_truncation_whose_neighbour_cannot_be_read_stops_no_other_file() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192", "-O", "^orphan_file"]);
    let (ino, leaves) = of_three_leaves(&image);
    let device = BadBlock::of(&image);
    let fs = small(&device);
    let node = fs.inode(ino).unwrap();
    device.arm(leaves[0], 0);
    assert!(node.content().truncate(0).is_err(), "its leaf cannot be read");
    device.heal();
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    let beside: Vec<InodeRef> = (0..8).map(|_| fs.root().unwrap().create_nameless(attr).unwrap()).collect();
    fs.journal.sync().unwrap();
    std::fs::write(image.path(), device.inner.to_bytes()).unwrap();
    let newer = table_block(&image, beside[0].ino);
    assert_ne!(newer, table_block(&image, ino));
    evict(&fs);
    device.arm(newer, 0);
    assert!(node.content().truncate(0).is_err(), "the block was still cached");
    device.heal();
    assert!(!fs.journal.has_ended());
    node.content().truncate(0).unwrap();
    drop(beside);
    assert!(fs.orphans.is_empty());
    drop(node);
    fs.close().unwrap();
    drop(fs);
    std::fs::write(image.path(), device.inner.to_bytes()).unwrap();
    assert!(run("e2fsck", &["-fn", &image.path()]).0 == 0);
    assert!(image.dump("f").is_empty());
}

/// A file that has its hash tree leaves the orphan list, which writes the inode of a neighbour
/// there. If that cannot be read, the file has no tree.
#[test]
fn a_hash_tree_whose_neighbour_cannot_be_read_stops_no_other_file() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192", "-O", "^orphan_file"]);
    let ino = image.file("f");
    let device = BadBlock::of(&image);
    let fs = small(&device);
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &[1; 4096]).unwrap();
    // On the list before the others.
    fs.transact(20, |txn| node.update(txn, |txn, _| crate::store::orphan::add(txn, ino))).unwrap();
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    let beside: Vec<InodeRef> = (0..8).map(|_| fs.root().unwrap().create_nameless(attr).unwrap()).collect();
    fs.journal.sync().unwrap();
    std::fs::write(image.path(), device.inner.to_bytes()).unwrap();
    let newer = table_block(&image, beside[0].ino);
    assert_ne!(newer, table_block(&image, ino));
    evict(&fs);
    device.arm(newer, 0);
    let enable = || node.content().enable_verity(&Verity::default(), 0);
    assert!(enable().is_err(), "the block was still cached");
    device.heal();
    assert!(!fs.journal.has_ended());
    assert!(!node.content().is_verity());
    node.content().truncate(4096).unwrap();
    enable().unwrap();
    assert_eq!(all(&node), [1; 4096]);
    drop(beside);
    assert!(fs.orphans.is_empty());
    drop(node);
    fs.close().unwrap();
    drop(fs);
    std::fs::write(image.path(), device.inner.to_bytes()).unwrap();
    let (code, text) = run("e2fsck", &["-fn", &image.path()]);
    assert_eq!(code, 0, "{text}");
}

/// The map tells which claims the pages had that a truncation drops. If it cannot be read, the next
/// truncation releases them.
#[test]
fn claims_of_pages_under_a_bad_leaf_are_released_later() {
    for delalloc in [true, false] {
        let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192"]);
        let (ino, leaves) = of_three_leaves(&image);
        let device = BadBlock::of(&image);
        let options = small_options().delalloc(delalloc);
        let fs = Fs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
        let node = fs.inode(ino).unwrap();
        // In a hole between the extents of the last leaf.
        buffered::write(&node, 397 * 1024, &[2; 1024]).unwrap();
        assert!(fs.alloc.has_claims());
        evict(&fs);
        node.file().snapshot.forget();
        device.arm(leaves[2], 0);
        assert!(node.content().truncate(0).is_err());
        assert!(device.failures.load(Ordering::SeqCst) > 0, "the block was still cached");
        device.heal();
        node.content().truncate(0).unwrap();
        assert!(!fs.alloc.has_claims(), "delalloc {delalloc}");
        drop(node);
        fs.close().unwrap();
    }
}

/// Returns the block of the volume that holds the first block of a directory.
fn first_block(image: &Image, path: &str) -> u64 {
    let text = image.debugfs(&format!("bmap {path} 0"));
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// What a rename reads again after its first change would fail with the change half done.
#[test]
fn a_rename_reads_nothing_after_its_first_change() {
    // Without an index, a lookup in a large directory reads all of it, and evicts all else.
    let image = Image::new("32M", &["-t", "ext4", "-b", "1024", "-N", "8192", "-O", "^dir_index"]);
    {
        let volume = OpenOptions::new().write(true).open(image.path()).unwrap();
        for dir in ["/from", "/from/sub", "/to", "/to/inner"] {
            volume.create_dir(dir).unwrap();
        }
        volume.write("/from/file", b"file").unwrap();
        let file = volume.create_file("/to/first").unwrap();
        (0..2500).for_each(|i| volume.link_file(&file, format!("/to/{i:0>240}")).unwrap());
        drop(file);
        volume.close().unwrap();
    }
    let (from, sub) = (first_block(&image, "/from"), first_block(&image, "/from/sub"));
    let (to, inner) = (first_block(&image, "/to"), first_block(&image, "/to/inner"));
    use RenameFlags::{Exchange, Replace, Whiteout};
    let whiteout = Whiteout { replace: true, uid: 0, gid: 0 };
    for (bad, old, new, flags) in [
        (from, "/from/file", "/to/file", Replace),
        (from, "/from/file", "/to/file", whiteout),
        (from, "/from/file", "/to/first", Replace),
        (to, "/from/file", "/to/first", Replace),
        (to, "/to/first", "/to/file", Replace),
        (to, "/to/first", "/to/file", whiteout),
        (sub, "/from/sub", "/to/sub", Replace),
        (from, "/from/file", "/to/inner", Exchange),
        (inner, "/from/file", "/to/inner", Exchange),
    ] {
        for good in 0.. {
            let device = BadBlock::of(&image);
            let volume = small_options().open_device(Arc::clone(&device) as _).unwrap();
            device.arm(bad, good);
            let renamed = volume.rename_with(old, new, flags);
            let at = format!("{old} to {new} {flags:?}, {good} reads of block {bad}: {renamed:?}");
            assert!(volume.sync().is_ok(), "{at}");
            if device.failures.load(Ordering::SeqCst) == 0 {
                assert!(renamed.is_ok() && good > 0, "{at}");
                break;
            }
            assert!(renamed.is_err(), "{at}");
        }
    }
}

/// Returns an access ACL of a file whose owner and others have these permissions. User 1000 and the
/// group may read.
fn acl(owner: u16, other: u16) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries = [(1, owner, NO_ID), (2, 4, 1000), (4, 4, NO_ID), (16, 4, NO_ID), (32, other, NO_ID)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend([tag, permissions].map(u16::to_le_bytes).as_flattened());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// A new owner takes the capability away. A new mode then frees the block of attributes, because
/// another file has the same list.
#[test]
fn a_change_of_owner_and_mode_reads_nothing_after_its_first_change() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192"]);
    let device = BadBlock::of(&image);
    let volume: Volume = small_options().open_device(device.clone()).unwrap();
    let set = |path: &str, name: &str, value: &[u8]| {
        volume.set_xattr(path, name, value, crate::SetXattr::Any).unwrap();
    };
    for (path, acl) in [("/a", acl(7, 4)), ("/b", acl(6, 0))] {
        volume.write(path, b"").unwrap();
        // The room in the inode.
        set(path, "user.pad", &[7; 60]);
        set(path, "system.posix_acl_access", &acl);
    }
    set("/a", "security.capability", &[1; 20]);
    let (a, b) = (volume.open_file("/a").unwrap(), volume.open_file("/b").unwrap());
    let blocks = || [&a, &b].map(|file| file.inode().state().file_acl);
    let [own, other] = blocks();
    assert!(own != 0 && other != 0 && own != other, "{own}, {other}");
    let fs = &a.inode().fs;
    let (group, _) = fs.layout().group_of_block(own).unwrap();
    let bitmap = crate::store::alloc::read_desc(fs, group).unwrap().block_bitmap;
    evict(fs);
    device.arm(bitmap, 0);
    let new = SetAttr { uid: Some(1), permissions: Some(0o640), ..SetAttr::default() };
    let changed = a.set_attr(&new);
    assert!(changed.is_err() && device.failures.load(Ordering::SeqCst) > 0, "{changed:?}");
    device.heal();
    assert!(!fs.journal.has_ended());
    assert_eq!((a.metadata().uid(), blocks()), (0, [own, other]));
    a.set_attr(&new).unwrap();
    assert_eq!((a.metadata().uid(), blocks()), (1, [other, other]));
    drop((a, b));
    volume.close().unwrap();
    std::fs::write(image.path(), device.inner.to_bytes()).unwrap();
    image.close(image.open());
}

/// An inode that counts as many blocks as it can gets no more: neither its attributes nor the nodes
/// of its map.
#[test]
fn a_count_of_blocks_at_its_bound_stops_no_other_file() {
    let image = Image::new("16M", &["-t", "ext4", "-b", "1024"]);
    image.file("f");
    image.debugfs("set_inode_field f flags 0xC0000");
    image.debugfs("set_inode_field f blocks 0xFFFFFFFFFFFF");
    let text = image.debugfs("stat f");
    assert!(text.contains("Blockcount: 281474976710655"), "{text}");
    let volume = OpenOptions::new().write(true).open(image.path()).unwrap();
    let set = volume.set_xattr("/f", "user.x", &[0; 500], crate::SetXattr::Any);
    assert_eq!(set.unwrap_err().errno(), 27, "EFBIG");
    volume.write("/other", b"written").unwrap();
    volume.close().unwrap();
}

/// Without huge_file, i_blocks ends at 2^32 - 1 sectors. A write that could not be written out is
/// refused before its bytes are taken.
#[test]
fn a_delayed_write_beyond_the_count_of_blocks_is_refused() {
    let image = Image::new("16M", &["-t", "ext4", "-b", "1024", "-O", "^huge_file"]);
    let inos = [image.file("hole"), image.file("unwritten")];
    let fs = image.open();
    let node = fs.inode(inos[1]).unwrap();
    node.content().fallocate(FallocMode::Allocate, 0, MIB as u64).unwrap();
    drop(node);
    image.close(fs);
    for name in ["hole", "unwritten"] {
        image.debugfs(&format!("set_inode_field {name} blocks {}", u32::MAX - 2 * 75));
    }
    let fs = image.open();
    for ino in inos {
        let node = fs.inode(ino).unwrap();
        buffered::write(&node, 0, &[1; 4096]).unwrap();
        node.sync_all().unwrap();
        let refused = (1..200).find_map(|n| buffered::write(&node, n * 4096, &[1; 1024]).err());
        assert!(matches!(refused, Some(Error::FileTooBig)), "inode {ino}: {refused:?}");
        node.sync_all().unwrap();
    }
    assert!(!fs.journal.has_ended());
}

/// The smallest journal, and so the fewest credits; blocks of 1 KiB hold the fewest revokes.
const SMALL: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "64"];

/// The blocks of a file that was made with chattr +j count as metadata: each is revoked.
#[test]
fn a_large_journalled_file_is_deleted_within_its_credits() {
    for kind in [SMALL, &["-t", "ext3", "-b", "1024", "-J", "size=1", "-N", "64"]] {
        let image = Image::new("64M", kind);
        let ino = image.file("big");
        let fs = image.open();
        write(&fs.inode(ino).unwrap(), 0, &vec![7; 30 * MIB]).unwrap();
        image.close(fs);
        let flags = fs_flags(&image, ino) | InodeFlags::JOURNAL_DATA.bits();
        image.debugfs(&format!("set_inode_field big flags {flags:#x}"));
        let fs = image.open();
        fs.root().unwrap().unlink(b"big").unwrap();
        assert!(fs.orphans.is_empty());
        image.close(fs);
    }
}

fn fs_flags(image: &Image, ino: u32) -> u32 {
    let fs = image.open();
    fs.read_inode(ino).unwrap().flags.bits()
}

/// A directory that had many names, by public calls alone.
#[test]
fn a_large_directory_is_deleted_within_its_credits() {
    const NAMES: usize = 12_000;
    let image = Image::new("64M", SMALL);
    let name = |i: usize| format!("/d/{i:0>250}");
    {
        let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        let volume = options.open(image.path()).unwrap();
        volume.write("/f", b"x").unwrap();
        volume.create_dir("/d").unwrap();
        let file = volume.open_file("/f").unwrap();
        (0..NAMES).for_each(|i| volume.link_file(&file, name(i)).unwrap());
        (0..NAMES).for_each(|i| volume.remove_file(name(i)).unwrap());
        drop(file);
        volume.sync().unwrap();
        assert!(volume.metadata("/d").unwrap().len() > 3 * MIB as u64);
        volume.remove_dir("/d").unwrap();
        assert_eq!(volume.stats().journal.credits_overdrawn, 0);
        volume.close().unwrap();
    }
    let (code, text) = run("e2fsck", &["-fn", &image.path()]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(Volume::open(image.path()).unwrap().info().recovery.orphans, 0);
}

/// Files without a name are chained through i_dtime, each written behind its place on the list.
#[test]
fn nameless_files_are_all_found_after_a_crash() {
    let image = Image::new("16M", &["-t", "ext4", "-b", "1024", "-O", "^orphan_file"]);
    let device = Arc::new(MemDevice::from_bytes(std::fs::read(image.path()).unwrap()));
    let fs = image.open_on(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let root = fs.root().unwrap();
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    let files: Vec<InodeRef> = (0..3).map(|_| root.create_nameless(attr).unwrap()).collect();
    fs.journal.sync().unwrap();
    std::fs::write(image.path(), device.to_bytes()).unwrap();
    drop((files, root, fs));
    let fs = image.open();
    assert_eq!(fs.recovery.orphans, 3);
    assert!(fs.orphans.is_empty());
    image.close(fs);
}

/// What is left behind i_size after a truncation that failed goes at the recovery, also of a file
/// that has got its name since.
#[test]
fn a_file_that_gets_a_name_after_a_failed_truncation_stays_an_orphan() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192"]);
    let device = BadBlock::of(&image);
    let volume: Volume = small_options().open_device(device.clone()).unwrap();
    let root = volume.open_dir("/").unwrap();
    let file = root.create_nameless(NewAttr { permissions: 0o644, uid: 0, gid: 0 }).unwrap();
    (0..200).for_each(|n| file.write_at(&[1; 1024], n * 2048).unwrap());
    file.sync_all().unwrap();
    // ei_leaf_lo of the first entry behind the header.
    let leaf = u32::from_le_bytes(file.inode().state().i_block[16..20].try_into().unwrap());
    evict(&file.inode().fs);
    device.arm(leaf.into(), 0);
    file.set_len(0).unwrap_err();
    assert!(device.failures.load(Ordering::SeqCst) > 0, "the block was still cached");
    device.heal();
    root.link_file(&file, "f").unwrap();
    volume.sync().unwrap();

    // The power goes.
    let device = Arc::new(MemDevice::from_bytes(device.inner.to_bytes()));
    let after: Volume = small_options().open_device(device.clone()).unwrap();
    let file = after.open_options().read(true).write(true).open("/f").unwrap();
    file.set_len(400 << 10).unwrap();
    let mut bytes = vec![7; 400 << 10];
    file.read_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "bytes of before the truncation");
    drop(file);
    after.close().unwrap();
    std::fs::write(image.path(), device.to_bytes()).unwrap();
    image.close(image.open());
}
