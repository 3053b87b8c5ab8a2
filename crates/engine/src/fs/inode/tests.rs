//! The state that an inode passes on when it leaves the cache, and what it enters it with.

use super::*;
use crate::fs::OpenOptions;
use crate::{SetAttr, Volume};
use lanefs_device::{BlockDevice, MemDevice, Result as DeviceResult, forward_to};
use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

type Hook = Box<dyn FnOnce(u32)>;

thread_local! {
    /// What runs before the next inode that this thread makes is cached.
    static BEFORE_NEW_INODE: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Runs what a test has set for it.
pub(super) fn before_new_inode(ino: u32) {
    if let Some(hook) = BEFORE_NEW_INODE.take() {
        hook(ino);
    }
}

/// A device that counts the writes since its last flush.
#[derive(Debug)]
struct Counting {
    inner: MemDevice,
    unflushed: AtomicU64,
}

impl BlockDevice for Counting {
    forward_to!(inner: size read_only read_at discard);

    fn write_at(&self, data: &[u8], offset: u64) -> DeviceResult<()> {
        self.unflushed.fetch_add(1, Ordering::SeqCst);
        self.inner.write_at(data, offset)
    }
    fn flush(&self) -> DeviceResult<()> {
        self.unflushed.store(0, Ordering::SeqCst);
        self.inner.flush()
    }
}

fn volume() -> (Arc<Counting>, Volume) {
    let device = Arc::new(Counting { inner: MemDevice::new(32 << 20), unflushed: AtomicU64::new(0) });
    lanefs_mkfs::format(&*device, &lanefs_mkfs::Options::default()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
    (device, volume)
}

#[test]
fn a_sync_covers_what_was_written_before_the_node_was_evicted() {
    // With the state of the content in memory, as after an open, and without.
    for opened in [true, false] {
        let (device, volume) = volume();
        let file = volume.create_file("/f").unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        volume.sync().unwrap();
        let (ino, fs) = (file.inode().ino, Arc::clone(&file.inode().fs));
        // The time is written into the inode and committed; the page is written out after that.
        file.write_at(&[2; 4096], 0).unwrap();
        file.set_attr(&SetAttr { uid: Some(7), ..SetAttr::default() }).unwrap();
        fs.journal.sync().unwrap();
        file.inode().write_out().unwrap();
        drop(file);
        assert!(device.unflushed.load(Ordering::SeqCst) > 0);
        fs.inodes.sweep_but(0);
        assert!(fs.known_inode(ino).is_none());

        let node = fs.inode(ino).unwrap();
        if opened {
            node.file();
        }
        node.sync_all().unwrap();
        assert_eq!(device.unflushed.load(Ordering::SeqCst), 0, "synced, and not on the medium");
    }
}

/// Between the drop of an inode's last reference and its removal from the cache, another thread may
/// sweep.
#[test]
fn a_node_without_a_name_is_left_to_its_deleter() {
    let (_, volume) = volume();
    let before = volume.statfs().inodes_free;
    let file = volume.create_file("/f").unwrap();
    let fs = Arc::clone(&file.inode().fs);
    let node = fs.known_inode(file.inode().ino).unwrap();
    volume.remove_file("/f").unwrap();
    drop(file);
    assert_eq!(node.refs.swap(0, Ordering::AcqRel), 1);
    fs.inodes.sweep_but(0);
    fs.inodes.clear_unused();
    node.refs.store(1, Ordering::Release);
    drop(node);
    assert!(fs.orphans.is_empty());
    assert_eq!(volume.statfs().inodes_free, before);
}

/// A file handle may lead to a new inode, by its number, before the call that makes it returns.
#[test]
fn a_new_inode_is_in_the_cache_before_its_number_leads_to_it() {
    let (_, volume) = volume();
    let fs = Arc::clone(&volume.create_file("/f").unwrap().inode().fs);
    let other = Arc::clone(&fs);
    BEFORE_NEW_INODE.set(Some(Box::new(move |ino| {
        // In another thread, because this one holds locks.
        let change = std::thread::spawn(move || {
            if let Ok(node) = other.inode(ino) {
                node.set_attr(&SetAttr { uid: Some(7), ..SetAttr::default() }).unwrap();
            }
        });
        change.join().unwrap();
    })));
    let file = volume.create_file("/new").unwrap();
    assert!(BEFORE_NEW_INODE.take().is_none());
    let (cached, ino) = (file.inode().state().uid, file.inode().ino);
    assert_eq!(cached, fs.read_inode(ino).unwrap().uid);
}

#[test]
fn files_whose_times_are_pending_are_noted_once_and_not_without_bound() {
    let (_, volume) = volume();
    let file = volume.create_file("/f").unwrap();
    let fs = Arc::clone(&file.inode().fs);
    for _ in 0..100 {
        file.write_at(b"x", 0).unwrap();
        file.sync_all().unwrap();
    }
    assert!(fs.dirty_times() <= 1);
}
