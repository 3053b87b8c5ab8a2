//! Operations that fail in the middle: no part of one is committed.

use super::*;
use crate::Volume;
use lanefs_device::{DeviceError, MemDevice, Op, forward_to};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: usize = 1 << 20;

/// A device that fails the next read of the byte `at`, once it is `armed`.
#[derive(Debug)]
struct BadBlock {
    inner: MemDevice,
    at: u64,
    armed: AtomicBool,
    failures: AtomicU64,
}

impl BlockDevice for BadBlock {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        let hit = (offset..offset + buf.len() as u64).contains(&self.at);
        if hit && self.armed.swap(false, Ordering::SeqCst) {
            self.failures.fetch_add(1, Ordering::SeqCst);
            let eio = std::io::Error::from_raw_os_error(5);
            return Err(DeviceError::new(Op::Read, offset, buf.len() as u64, eio));
        }
        self.inner.read_at(buf, offset)
    }
}

/// A block would belong to two files if it were freed and the inode then could not be read.
#[test]
fn a_punch_whose_inode_cannot_be_read_frees_nothing() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-N", "8192"]);
    let (ino, other) = (image.file("f"), image.file("g"));
    let text = image.debugfs(&format!("imap <{ino}>"));
    let block = text.split("located at block ").nth(1).and_then(|s| s.split(',').next()).unwrap();
    let device = Arc::new(BadBlock {
        inner: MemDevice::from_bytes(std::fs::read(image.path()).unwrap()),
        at: block.parse::<u64>().unwrap() * 1024,
        armed: AtomicBool::new(false),
        failures: AtomicU64::new(0),
    });
    let options = OpenOptions::new().write(true).use_reserved(true).commit_interval(Duration::ZERO);
    let options = options.cache_bytes(128 << 10);
    let fs = Fs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &vec![1; 4 * MIB]).unwrap();
    node.sync_all().unwrap();
    // Other metadata evicts the block from the cache, while the file is in use.
    fs.journal.checkpoint().unwrap();
    for _ in 0..3 {
        for ino in 100..8192 {
            let _ = fs.read_inode(ino);
        }
    }
    device.armed.store(true, Ordering::SeqCst);
    let before = node.state().clone();
    assert!(node.content().fallocate(FallocMode::PunchHole, 0, 4 * MIB as u64).is_err());
    assert_eq!(device.failures.load(Ordering::SeqCst), 1, "the block was still cached");
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
    let attr = crate::fs::namei::NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    let files: Vec<InodeRef> = (0..3).map(|_| root.create_nameless(attr).unwrap()).collect();
    fs.journal.sync().unwrap();
    std::fs::write(image.path(), device.to_bytes()).unwrap();
    drop((files, root, fs));
    let fs = image.open();
    assert_eq!(fs.recovery.orphans, 3);
    assert!(fs.orphans.is_empty());
    image.close(fs);
}
