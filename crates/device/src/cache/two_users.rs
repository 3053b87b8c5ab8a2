//! A cache between two threads, processes or hosts: what must never be given out.

use super::head::KnownHead;
use super::open::{remove_unused, share};
use super::store::Store;
use super::{BLOCK, CachedDevice, PIECE};
use crate::identity::BaseIdentity;
use crate::{BlockDevice, MemDevice, ReadOp, RepeatGuard, Result, errno};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;

/// A medium that other hosts write too, and that can stop between the read of its bytes and the
/// return.
#[derive(Debug)]
struct Medium {
    below: Arc<MemDevice>,
    read_only: bool,
    size: AtomicU64,
    stop: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl BlockDevice for Medium {
    crate::forward_to!(below: read_at write_at flush discard write_zeroes);

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.below.read_batch(ops)?;
        let stop = self.stop.lock().unwrap().take();
        if let Some((here, go)) = stop {
            here.send(()).unwrap();
            go.recv().unwrap();
        }
        Ok(())
    }

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_at(buf, offset)
    }
}

struct Bench {
    dir: tempfile::TempDir,
    below: Arc<MemDevice>,
}

impl Bench {
    fn new() -> Self {
        let below = Arc::new(MemDevice::from_bytes(vec![1; SIZE as usize]));
        Self { dir: tempfile::tempdir().unwrap(), below }
    }

    fn medium(&self, read_only: bool) -> Arc<Medium> {
        let (below, size) = (self.below.clone(), SIZE.into());
        Arc::new(Medium { below, read_only, size, stop: Mutex::default() })
    }

    fn open_over(&self, medium: Arc<Medium>) -> Result<Arc<dyn BlockDevice>> {
        CachedDevice::over(medium, "medium".as_ref(), self.dir.path(), 1 << 30)
    }

    fn open(&self, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        self.open_over(self.medium(read_only))
    }

    fn path(&self) -> PathBuf {
        std::fs::read_dir(self.dir.path()).unwrap().next().unwrap().unwrap().path()
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.path()).unwrap()
    }
}

fn read(device: &dyn BlockDevice, offset: u64) -> u8 {
    let mut bytes = [0; 512];
    device.read_at(&mut bytes, offset).unwrap();
    assert_eq!(bytes, [bytes[0]; 512]);
    bytes[0]
}

fn is_cached(device: &Arc<dyn BlockDevice>) -> bool {
    device.name().is_some_and(|name| name.starts_with("cached:"))
}

/// A thread reads, and so fills the cache, while another writes: no old block is kept.
#[test]
fn a_read_beside_a_write_keeps_nothing_old() {
    type Change = fn(&dyn BlockDevice) -> Result<()>;
    let changes: [Change; 4] = [
        |device| device.write_at(&[2; 512], 2 * BLOCK),
        |device| device.write_shared(&[2; 512], 2 * BLOCK),
        |device| device.write_at(&[2; 3 * PIECE as usize], 0),
        |device| device.write_at(&[2; SIZE as usize], 0),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let bench = Bench::new();
        let medium = bench.medium(false);
        let device = bench.open_over(medium.clone()).unwrap();
        let ((here, is_here), (go, may_go)) = (channel(), channel());
        *medium.stop.lock().unwrap() = Some((here, may_go));
        thread::scope(|scope| {
            // In the piece of the write, and in the block of it.
            let reader = scope.spawn(|| read(&*device, 2 * BLOCK));
            is_here.recv().unwrap();
            change(&*device).unwrap();
            go.send(()).unwrap();
            assert_eq!(reader.join().unwrap(), 1);
        });
        assert_eq!(read(&*device, 2 * BLOCK), 2, "change {number}");
    }
}

#[test]
fn the_cache_of_a_writer_that_lost_its_volume_is_dropped() {
    for own in [0, 1024] {
        let bench = Bench::new();
        let device = bench.open(false).unwrap();
        read(&*device, 1 << 20);
        device.write_at(&[7; 512], own).unwrap();
        // This host is stopped, and another one takes the volume and writes to it.
        bench.below.write_at(&[own as u8; 3], 1030).unwrap();
        bench.below.write_at(&[9; 512], 1 << 20).unwrap();
        drop(device);
        assert_eq!(read(&*bench.open(true).unwrap(), 1 << 20), 9);
    }
}

#[test]
fn the_cache_of_a_writer_is_kept_whatever_it_writes() {
    let bench = Bench::new();
    let device = bench.open(false).unwrap();
    read(&*device, 1 << 20);
    device.write_at(&[7; 5000], 4000).unwrap();
    device.write_at(&[8; 700], 1000).unwrap();
    device.write_zeroes(500, 40).unwrap();
    drop(device);
    bench.below.write_at(&[9; 512], 1 << 20).unwrap();
    assert_eq!(read(&*bench.open(true).unwrap(), 1 << 20), 1);
}

#[test]
fn the_cache_of_a_base_that_changed_its_size_is_dropped() {
    let bench = Bench::new();
    let medium = bench.medium(false);
    let device = bench.open_over(medium.clone()).unwrap();
    read(&*device, 1 << 20);
    medium.size.store(SIZE - BLOCK, Ordering::Relaxed);
    drop(device);
    bench.below.write_at(&[9; 512], 1 << 20).unwrap();
    let smaller = bench.medium(true);
    smaller.size.store(SIZE - BLOCK, Ordering::Relaxed);
    assert_eq!(read(&*bench.open_over(smaller).unwrap(), 1 << 20), 9);
}

#[test]
fn what_cannot_be_forgotten_is_not_given_out() {
    for len in [512, PIECE as usize + 1, SIZE as usize] {
        let bench = Bench::new();
        let device = bench.open(false).unwrap();
        read(&*device, 0);
        // A file that cannot be written, as on a disk with a fault.
        let file = File::open(bench.path()).unwrap();
        let store = Store::new(&bench.path(), file, SIZE, 1 << 30).unwrap();
        let medium = bench.medium(false);
        let head = KnownHead::read(&*medium).unwrap();
        let failing = CachedDevice::new(medium, store, head, "failing".into());
        assert_eq!(read(&failing, 0), 1);
        failing.write_at(&vec![2; len], 0).unwrap();
        assert_eq!(read(&failing, 0), 2, "{len} bytes");
        assert_eq!(failing.closed_with(), None);
    }
}

#[test]
fn a_range_of_any_length_is_forgotten() {
    let bench = Bench::new();
    let device = bench.open(false).unwrap();
    for at in (0..SIZE).step_by(1 << 20) {
        read(&*device, at);
    }
    for (offset, len) in [(u64::MAX, 1), (u64::MAX - 1, 9), (SIZE - 1, 2)] {
        device.write_zeroes(offset, len).unwrap_err();
        device.discard(offset, len).unwrap_err();
        device.write_at(&vec![0; len as usize], offset).unwrap_err();
    }
    device.write_zeroes(512, SIZE - 1024).unwrap();
    for at in (0..SIZE).step_by(1 << 20) {
        assert_eq!(read(&*device, at), u8::from(at == 0), "{at}");
    }
    assert_eq!(read(&*device, SIZE - 512), 1);
}

/// The medium has no lock, as an export of a server: the cache's own keeps them apart.
#[test]
fn a_reader_beside_a_writer_has_no_cache() {
    let bench = Bench::new();
    let writer = bench.open(false).unwrap();
    let reader = bench.open(true).unwrap();
    assert!(is_cached(&writer) && !is_cached(&reader));
    assert_eq!(read(&*reader, 4096), 1);
    writer.write_at(&[2; 512], 4096).unwrap();
    assert_eq!(read(&*reader, 4096), 2);
    drop((writer, reader));
    let reader = bench.open(true).unwrap();
    assert!(is_cached(&reader));
    assert_eq!(bench.open(false).unwrap_err().errno(), errno::EBUSY);
}

#[test]
fn readers_that_open_at_once_share_the_cache() {
    let bench = Bench::new();
    drop(bench.open(true).unwrap());
    // The first of them, at work on the file.
    let first = bench.file();
    flock(&first, FlockOperation::LockExclusive).unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| bench.open(true).unwrap());
        thread::sleep(Duration::from_millis(300));
        flock(&first, FlockOperation::LockShared).unwrap();
        assert!(is_cached(&second.join().unwrap()));
    });
    // A writer is not waited for.
    drop(first);
    let _writer = bench.open(false).unwrap();
    let start = Instant::now();
    assert!(!is_cached(&bench.open(true).unwrap()));
    assert!(start.elapsed() < Duration::from_secs(4));
}

/// The kernel gives an exclusive lock up before it takes the shared one.
#[test]
fn a_lock_that_was_lost_is_noticed() {
    let bench = Bench::new();
    drop(bench.open(true).unwrap());
    let identity = BaseIdentity::read(&*bench.medium(true)).unwrap();
    let store = |path: &Path| Store::new(path, bench.file(), SIZE, 1 << 30).unwrap();
    let (own, store) = (bench.file(), store(&bench.path()));
    assert!(share(&own, &store, &identity).unwrap());
    // A writer came and went.
    store.mark(&identity).unwrap();
    assert!(!share(&own, &store, &identity).unwrap());
    drop(own);
    let (own, writer) = (bench.file(), bench.file());
    flock(&writer, FlockOperation::LockExclusive).unwrap();
    assert!(!share(&own, &store, &identity).unwrap());
}

/// A process that locks the file between the look at it and its removal would fill a file that the
/// next one does not find.
#[test]
fn a_cache_is_held_while_it_is_removed() {
    let bench = Bench::new();
    let user = bench.open(true).unwrap();
    assert!(!remove_unused(&bench.path(), |_| panic!("it is in use")).unwrap());
    drop(user);
    let (path, other) = (bench.path(), bench.file());
    let removed = remove_unused(&path, |path| {
        flock(&other, FlockOperation::NonBlockingLockShared).unwrap_err();
        std::fs::remove_file(path)
    });
    assert!(removed.unwrap() && !path.exists());
}

/// Sets `s_magic`, and `s_state`: 1 for a volume that was closed.
fn superblock(below: &MemDevice, state: u8) {
    below.write_at(&[state, 0], 1024 + 0x3a).unwrap();
    below.write_at(&[0x53, 0xef], 1024 + 0x38).unwrap();
    below.write_at(&[0; 4], 1024 + 0x60).unwrap();
}

#[test]
fn a_claim_forgets_what_another_host_may_have_written() {
    let check = Arc::new(|_: &[u8]| Ok(()));
    for (state, writes_superblock, kept) in [(1, false, true), (1, true, false), (0, false, false)] {
        let bench = Bench::new();
        superblock(&bench.below, state);
        let device = bench.open(false).unwrap();
        read(&*device, 1 << 20);
        bench.below.write_at(&[9; 512], 1 << 20).unwrap();
        if writes_superblock {
            bench.below.write_at(&[3], 1024).unwrap();
        }
        device.guard_repeats(RepeatGuard { offset: 0, len: 1, check: check.clone() });
        assert_eq!(read(&*device, 1 << 20) == 1, kept, "{state} {writes_superblock}");
    }
}

#[test]
fn a_writer_does_not_take_over_what_was_read_beside_another_host() {
    for state in [0, 1] {
        let bench = Bench::new();
        superblock(&bench.below, state);
        read(&*bench.open(true).unwrap(), 1 << 20);
        bench.below.write_at(&[9; 512], 1 << 20).unwrap();
        assert_eq!(read(&*bench.open(false).unwrap(), 1 << 20) == 1, state == 1);
    }
}
