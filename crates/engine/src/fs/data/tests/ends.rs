//! Sizes, places and times at the ends of what they can be.

use super::*;
use crate::{File, Volume};
use lanefs_device::{MemDevice, forward_to};
use lanefs_mkfs::Options;
use lanefs_sim::FailingDevice;

fn formatted() -> MemDevice {
    let device = MemDevice::new(16 << 20);
    lanefs_mkfs::format(&device, &Options { block_size: Some(1024), ..Options::default() }).unwrap();
    device
}

fn volume() -> Volume {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(Arc::new(formatted())).unwrap()
}

/// Gives an inode an i_size that no call would.
fn set_size_on_disk(volume: &Volume, path: &str, size: u64) -> File {
    let file = volume.open_options().read(true).write(true).open(path).unwrap();
    let node = file.inode();
    let update = |txn: &mut Txn<'_>| {
        node.prepare()?.update(txn, |_, inode| {
            inode.size = size;
            Ok(())
        })
    };
    node.fs.transact(crate::store::txn::credits::INODE, update).unwrap();
    node.file().set_size(size);
    file
}

#[test]
fn bytes_that_no_map_can_hold_are_behind_the_end() {
    const BLOCKS: u64 = u32::MAX as u64 * 1024;
    let volume = volume();
    volume.write("/f", b"content").unwrap();
    for size in [BLOCKS + 1, BLOCKS + 1024, 1 << 62] {
        let file = set_size_on_disk(&volume, "/f", size);
        let mut buf = [1; 4096];
        for direct in [false, true] {
            let file = file.with_direct(direct);
            assert_eq!(file.read_at(&mut buf, size - 1).unwrap(), 0, "{size}, {direct}");
            assert_eq!(file.read_at(&mut buf, BLOCKS - 100).unwrap(), 100, "{size}, {direct}");
            assert_eq!(buf[..100], [0; 100]);
            assert_eq!(file.try_read_at(&mut buf, size - 1).unwrap(), 0, "{size}, {direct}");
        }
        assert_eq!(file.next_data(BLOCKS - 1).unwrap(), None);
        assert!(file.write_at(b"x", BLOCKS).is_err());
        file.set_len(7).unwrap();
        assert_eq!(volume.read("/f").unwrap(), b"content");
    }
}

#[test]
fn the_largest_file_is_punched_behind_its_end() {
    const LARGEST: u64 = u32::MAX as u64 * 1024;
    let volume = volume();
    let file = volume.open_options().read(true).write(true).create(true).open("/f").unwrap();
    let size = LARGEST - 1000;
    file.write_at(&[7; 4096], size - 4096).unwrap();
    file.fallocate(FallocMode::PunchHole, size - 1536, LARGEST - (size - 1536)).unwrap();
    let mut buf = [1; 4096];
    assert_eq!(file.read_at(&mut buf, size - 4096).unwrap(), 4096);
    assert_eq!(buf[..2560], [7; 2560]);
    assert_eq!(buf[2560..], [0; 1536]);
    assert_eq!(file.next_data(LARGEST - 1024).unwrap(), None);
}

#[test]
fn what_cannot_be_read_ahead_fails_no_reader_before_it() {
    let device = Arc::new(FailingDevice::new(formatted()));
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let volume = options.clone().open_device(Arc::clone(&shared)).unwrap();
    volume.write("/f", &vec![7; 1 << 20]).unwrap();
    volume.close().unwrap();
    let volume = options.open_device(shared).unwrap();
    let file = volume.open_file("/f").unwrap();
    let mut buf = [0; 4096];
    // Its map is in memory then.
    file.with_direct(true).read_at(&mut buf, 0).unwrap();
    let before = device.count(lanefs_device::Op::Read);
    // What is asked for comes with the first read, what is read ahead with those behind it.
    device.fail_from(lanefs_device::Op::Read, before + 1, 5);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4096);
    assert!(device.failures() > 0, "nothing was read ahead");
    assert_eq!(buf, [7; 4096]);
}

#[test]
fn no_commit_interval_is_too_long() {
    let options = OpenOptions::new().write(true).commit_interval(Duration::MAX);
    let volume = options.open_device(Arc::new(formatted())).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    let file = volume.create_file("/f").unwrap();
    file.write_at(b"content", 0).unwrap();
    // Its flusher has a round with a dirty page.
    file.inode().fs.flusher.wake();
    drop(file);
    let close = std::thread::spawn(move || done.send(volume.close().is_ok()));
    assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(true));
    close.join().unwrap().unwrap();
}

#[test]
fn a_source_that_was_cut_has_no_hole_behind_its_end() {
    let volume = volume();
    volume.write("/from", b"content").unwrap();
    let (from, to) = (volume.open_file("/from").unwrap(), volume.create_file("/to").unwrap());
    volume.open_options().write(true).open("/from").unwrap().set_len(3).unwrap();
    // As a copy goes on that had begun before.
    assert_eq!(from.copy_some(7, &to, 7, 1 << 30).unwrap(), 0);
    assert_eq!(to.metadata().len(), 0);
}

/// A device that drops a file when it is flushed for a volume that is being closed.
#[derive(Debug)]
struct Dropping {
    inner: MemDevice,
    file: std::sync::Mutex<Option<File>>,
}

impl BlockDevice for Dropping {
    forward_to!(inner: size read_only read_at write_at discard);

    fn flush(&self) -> lanefs_device::Result<()> {
        let mut file = self.file.lock().unwrap();
        if file.as_ref().is_some_and(|file| file.inode().fs.is_closed()) {
            // In another thread, because this one holds locks.
            let file = file.take();
            std::thread::scope(|scope| _ = scope.spawn(move || drop(file)).join());
        }
        self.inner.flush()
    }
}

#[test]
fn a_file_that_is_dropped_beside_a_close_is_no_damage() {
    let device = Arc::new(Dropping { inner: formatted(), file: Default::default() });
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.clone().open_device(Arc::clone(&shared)).unwrap();
    let file = volume.create_file("/f").unwrap();
    volume.remove_file("/f").unwrap();
    *device.file.lock().unwrap() = Some(file);
    volume.close().unwrap();
    assert!(device.file.lock().unwrap().is_none(), "no flush came behind the mark of a close");
    let volume = options.open_device(shared).unwrap();
    let state = volume.info().superblock.state();
    assert!(!state.contains(lanefs_format::State::ERROR_FS), "{state:?}");
}
