use super::*;
use crate::fs::inode::InodeRef;
use crate::store::map::{self, Mapping};
use crate::store::txn::credits;
use crate::store::{Config, Survey, read_super};
use crate::{OpenOptions, Volume};
use lanefs_device::{BlockDevice, MemDevice, forward_to};
use lanefs_format::InodeFlags;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

thread_local! {
    /// How often this thread has parsed a block.
    static PARSES: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_parse() {
    PARSES.set(PARSES.get() + 1);
}

fn formatted() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(16 << 20));
    lanefs_mkfs::format(&*device, &lanefs_mkfs::Options::default()).unwrap();
    device
}

fn open(device: &Arc<MemDevice>) -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(device);
    OpenOptions::new().write(true).open_device(device).unwrap()
}

/// Stores an attribute as its bytes are, which no program can.
fn store_raw(inode: &InodeRef, name: Name<'_>, value: &[u8]) {
    let set = |txn: &mut Txn<'_>| {
        inode.update(txn, |txn, inode| change(txn, inode, name, Some(value), SetXattr::Create))
    };
    inode.fs.transact(credits::INODE + credits::XATTR, set).unwrap();
}

#[test]
fn what_no_program_can_read_is_left_out() {
    let volume = open(&formatted());
    volume.create_dir("/d").unwrap();
    volume.symlink("target", "/l").unwrap();
    volume.set_xattr("/d", "user.a", b"a", SetXattr::Any).unwrap();
    volume.set_xattr("/l", "trusted.a", b"a", SetXattr::Any).unwrap();
    let fs = Arc::clone(&volume.create_file("/f").unwrap().inode().fs);
    let inode = |path: &str| fs.inode(volume.symlink_metadata(path).unwrap().ino()).unwrap();
    let (dir, link) = (inode("/d"), inode("/l"));
    let empty_list = [1, 0, 0, 0];
    // A list without entries; nothing behind the prefix; a name of 256 bytes with its prefix.
    store_raw(&dir, Name::ACL_DEFAULT, &empty_list);
    store_raw(&dir, Name { index: index::USER, rest: b"" }, b"v");
    store_raw(&dir, Name { index: index::USER, rest: &[b'n'; 251] }, b"v");
    // Symbolic links have neither.
    store_raw(&link, Name::ACL_ACCESS, &empty_list);
    store_raw(&link, Name { index: index::USER, rest: b"b" }, b"v");

    let only = |name: &str| vec![(name.as_bytes().to_vec(), b"a".to_vec())];
    assert_eq!(dir.xattr_names().unwrap().len(), 4);
    assert_eq!(dir.xattrs().unwrap(), only("user.a"));
    assert_eq!(link.xattr_names().unwrap().len(), 3);
    assert_eq!(link.xattrs().unwrap(), only("trusted.a"));
    drop((dir, link, fs));
    volume.close().unwrap();
}

/// A block has thousands of values, which may overlap, and a parse hashes each.
#[test]
fn a_list_with_values_parses_its_block_once() {
    let volume = open(&formatted());
    let file = volume.create_file("/f").unwrap();
    for n in 0..30 {
        file.set_xattr(format!("user.{n:03}"), &[n], SetXattr::Any).unwrap();
    }
    let before = PARSES.get();
    assert_eq!(file.xattrs().unwrap().len(), 30);
    assert_eq!(PARSES.get() - before, 1);
}

/// A device that waits while it reads at one place, until another thread has done its work.
#[derive(Debug)]
struct Waiting {
    inner: MemDevice,
    at: AtomicU64,
    reading: Mutex<Sender<()>>,
    done: Mutex<Receiver<()>>,
    in_time: AtomicBool,
}

impl BlockDevice for Waiting {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        if offset == self.at.load(Relaxed) {
            self.reading.lock().unwrap().send(()).unwrap();
            let done = self.done.lock().unwrap().recv_timeout(Duration::from_secs(10));
            self.in_time.store(done.is_ok(), Relaxed);
        }
        self.inner.read_at(buf, offset)
    }
}

const SIZE: usize = 5000;

/// Makes two files share a block, whose attribute `user.v` has its value in an inode of its own.
/// Returns the inodes of the files, and that with the value.
fn with_value_inode(store: &Store, inos: [u32; 3]) -> ([Inode; 2], Inode) {
    let [mut one, mut other, mut holder] = inos.map(|ino| store.read_inode(ino).unwrap());
    let value = Value::Inode { ino: holder.ino, size: SIZE as u32 };
    let attr = Attr { name: Name { index: index::USER, rest: b"v" }, value, hash: 1 };
    let make = |txn: &mut Txn<'_>| {
        holder.flags |= InodeFlags::EA_INODE;
        store.table_slot(holder.ino)?.write(txn, &holder)?;
        [&mut one, &mut other]
            .into_iter()
            .try_for_each(|inode| block::replace(txn, inode, block::encode(store, vec![attr])?))
    };
    store.transact(64, make).unwrap();
    assert_eq!(one.file_acl, other.file_acl);
    ([one, other], holder)
}

/// On a store that is written although values have inodes of their own, which an open refuses.
#[test]
fn a_value_inode_is_read_with_no_block_locked() {
    let memory = formatted();
    let volume = open(&memory);
    let inos = ["/one", "/other", "/holder"].map(|path| {
        volume.write(path, &[7; SIZE]).unwrap();
        volume.metadata(path).unwrap().ino()
    });
    volume.close().unwrap();
    let ((reading, read), (work, done)) = (channel(), channel());
    let device = Arc::new(Waiting {
        inner: MemDevice::from_bytes(memory.to_bytes()),
        at: AtomicU64::new(u64::MAX),
        reading: Mutex::new(reading),
        done: Mutex::new(done),
        in_time: AtomicBool::new(false),
    });
    let sb = read_super(&*device).unwrap();
    let survey = Survey::read(&*device, &sb, None, true).unwrap();
    let config = Config { cache: 1 << 20, ..Config::default() };
    let below: Arc<dyn BlockDevice> = Arc::<Waiting>::clone(&device);
    let mut store = Store::assemble(below, sb, None, &survey, config).unwrap();
    let ([one, mut other], holder) = with_value_inode(&store, inos);

    let refused = get(&store, &one, b"user.v").unwrap_err();
    assert!(refused.errno() == 117 && refused.to_string().contains("ea_inode"), "{refused}");

    store.inode_ctx.ea_inode = true;
    let store = &store;
    let Mapping::Mapped { block, .. } = map::lookup(store, &holder, 0).unwrap() else { panic!("a hole") };
    device.at.store(store.byte_of(block), Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            read.recv_timeout(Duration::from_secs(60)).unwrap();
            let add = |txn: &mut Txn<'_>| set(txn, &mut other, b"user.w", &[1; 600], SetXattr::Any);
            store.transact(64, add).unwrap();
            work.send(()).unwrap();
        });
        assert_eq!(get(store, &one, b"user.v").unwrap(), [7; SIZE]);
    });
    assert!(device.in_time.load(Relaxed), "the shared block was locked while the value was read");
}
