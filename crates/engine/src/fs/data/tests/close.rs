//! Writes beside a close: those that were accepted are there when the volume is opened again.

use super::*;
use crate::{File, Io, Volume};
use lanefs_device::{MemDevice, forward_to};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// A transfer that waits: the test learns of its begin, and lets it go on.
#[derive(Debug)]
struct Stop {
    begun: Sender<()>,
    go_on: Receiver<()>,
}

/// A device whose next read, or whose next write of a block of [`MARK`], waits.
#[derive(Debug)]
struct Waiting {
    inner: MemDevice,
    read: Mutex<Option<Stop>>,
    write: Mutex<Option<Stop>>,
}

const MARK: u8 = 0xAB;

/// Returns the test's side of a transfer that will wait in `place`.
fn stop_in(place: &Mutex<Option<Stop>>) -> (Receiver<()>, Sender<()>) {
    let ((begun, has_begun), (let_go, go_on)) = (channel(), channel());
    *place.lock().unwrap() = Some(Stop { begun, go_on });
    (has_begun, let_go)
}

fn wait_in(place: &Mutex<Option<Stop>>) {
    let stop = place.lock().unwrap().take();
    if let Some(Stop { begun, go_on }) = stop {
        begun.send(()).unwrap();
        let _ = go_on.recv();
    }
}

impl BlockDevice for Waiting {
    forward_to!(inner: size read_only flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        wait_in(&self.read);
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if data.iter().all(|byte| *byte == MARK) {
            wait_in(&self.write);
        }
        self.inner.write_at(data, offset)
    }
}

fn device() -> Arc<Waiting> {
    let inner = MemDevice::new(16 << 20);
    let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
    lanefs_mkfs::format(&inner, &options).unwrap();
    Arc::new(Waiting { inner, read: Mutex::default(), write: Mutex::default() })
}

fn open(device: &Arc<Waiting>) -> Volume {
    let shared: Arc<dyn BlockDevice> = Arc::clone(device) as _;
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(shared).unwrap()
}

/// Every way of changing a file's content.
type Change = fn(&File) -> Result<()>;
const CHANGES: [(&str, Change); 9] = [
    ("write", |file| file.write_at(&[1; 5000], 10)),
    ("append", |file| file.inode().content().append(&[1; 5000], Caching::Cached, &mut 0, &mut 0)),
    ("direct write", |file| file.with_direct(true).write_at(&[1; 4096], 0)),
    ("direct append", |file| file.inode().content().append(&[1; 4096], Caching::Direct, &mut 0, &mut 0)),
    ("late write", |file| file.write_late(&[1; 256 << 10], 0)),
    ("write without waiting", |file| file.try_write_at(&[1; 4096], 0).map(drop)),
    ("batch", |file| File::run_batch(&mut [Io::write(file, &[1; 4096], 0)]).remove(0).map(drop)),
    ("set_len", |file| file.set_len(100)),
    ("fallocate", |file| file.fallocate(FallocMode::Allocate, 0, 1 << 20)),
];

const OLD: [u8; 8192] = [7; 8192];

/// Returns a volume with a file, which is open and in the cache.
fn with_file(device: &Arc<Waiting>) -> (Volume, File) {
    let volume = open(device);
    volume.write("/f", &OLD).unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.read("/f").unwrap(), OLD);
    let file = volume.open_options().read(true).write(true).open("/f").unwrap();
    (volume, file)
}

/// The content of the file once `change` was made with nothing beside it.
fn changed(change: Change) -> Vec<u8> {
    let device = device();
    let (volume, file) = with_file(&device);
    change(&file).unwrap();
    drop(file);
    volume.close().unwrap();
    open(&device).read("/f").unwrap()
}

fn judge(name: &str, change: Change, done: Result<()>, device: &Arc<Waiting>) {
    let found = open(device).read("/f").unwrap();
    match done {
        Ok(()) => assert!(found == changed(change), "{name}: it was accepted, and is not there"),
        Err(e) => {
            assert!(matches!(e, Error::Closed), "{name}: {e}");
            assert!(found == OLD, "{name}: it was refused, and is there");
        }
    }
}

/// A change beside the writing out of a close comes too late for it, so it is refused.
#[test]
fn a_change_that_is_accepted_beside_a_close_is_there() {
    for (name, change) in CHANGES {
        let device = device();
        let (volume, file) = with_file(&device);
        volume.write("/other", &[MARK; 8192]).unwrap();
        let (has_begun, let_go) = stop_in(&device.write);
        let done = thread::scope(|scope| {
            let close = scope.spawn(move || volume.close());
            has_begun.recv().unwrap();
            let done = change(&file);
            drop(let_go);
            close.join().unwrap().unwrap();
            done
        });
        drop(file);
        judge(name, change, done, &device);
    }
}

/// Begins `change` and then a close, which has to wait for it while the device holds it up in
/// `place`.
fn close_beside(device: &Arc<Waiting>, place: &Mutex<Option<Stop>>, name: &str, change: Change) {
    let volume = open(device);
    let file = volume.open_options().read(true).write(true).open("/f").unwrap();
    let fs = Arc::clone(&file.inode().fs);
    let (has_begun, let_go) = stop_in(place);
    let done = thread::scope(|scope| {
        let writer = scope.spawn(|| change(&file));
        has_begun.recv().unwrap();
        let close = scope.spawn(move || volume.close());
        while fs.check_writable().is_ok() {
            thread::yield_now();
        }
        assert!(!fs.is_closed(), "{name}: the close did not wait");
        drop(let_go);
        close.join().unwrap().unwrap();
        writer.join().unwrap()
    });
    drop((file, fs));
    assert!(done.is_ok(), "{name}");
    judge(name, change, done, device);
}

#[test]
fn a_close_waits_for_the_changes_that_have_begun() {
    // One reads a part of a block that it changes, one the bitmap of blocks that it frees.
    for (name, change) in [CHANGES[0], CHANGES[7]] {
        let device = device();
        drop(with_file(&device));
        close_beside(&device, &device.read, name, change);
    }
    let overwrites: [(&str, Change); 3] = [
        ("direct write", |file| file.with_direct(true).write_at(&[MARK; 4096], 0)),
        ("write without waiting", |file| file.with_direct(true).try_write_at(&[MARK; 4096], 0).map(drop)),
        ("batch", |file| {
            File::run_batch(&mut [Io::write(&file.with_direct(true), &[MARK; 4096], 0)]).remove(0).map(drop)
        }),
    ];
    for (name, change) in overwrites {
        let device = device();
        drop(with_file(&device));
        close_beside(&device, &device.write, name, change);
    }
}
