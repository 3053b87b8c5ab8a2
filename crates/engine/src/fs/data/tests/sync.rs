//! The commits and flushes that a sync waits for.

use crate::{Error, File, OpenOptions, Volume};
use lanefs_device::{BlockDevice, MemDevice, forward_to};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

fn volume() -> Volume {
    let device = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&device, &lanefs_mkfs::Options::default()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    options.open_device(Arc::new(device)).unwrap()
}

#[test]
fn an_fsync_waits_for_the_flushes_of_its_commit_and_no_other() {
    let volume = volume();
    let file = volume.create_file("/f").unwrap();
    volume.sync().unwrap();
    for all in [true, false] {
        let flushes = || volume.stats().journal.flushes;
        let before = flushes();
        file.write_at(&[1; 10_000], u64::from(all) << 20).unwrap();
        if all { file.sync_all() } else { file.sync_data() }.unwrap();
        // One before the commit block and one behind it: the first covers the data.
        assert_eq!(flushes() - before, 2);
        file.sync_data().unwrap();
        assert_eq!(flushes() - before, 2, "nothing was written since");
    }
}

#[test]
fn threads_that_sync_together_share_handle_and_commit_and_all_are_woken() {
    const THREADS: usize = 24;
    let volume = volume();
    let files: Vec<_> = (0..THREADS).map(|i| volume.create_file(format!("/{i}")).unwrap()).collect();
    volume.sync().unwrap();
    let combiner = &files[0].inode().fs.combiner;
    for round in 0..3_u8 {
        let counts = || {
            let journal = volume.stats().journal;
            (journal.handles, journal.commits, journal.flushes)
        };
        let before = counts();
        combiner.gathers.store(THREADS, Ordering::Relaxed);
        thread::scope(|scope| {
            for (at, file) in files.iter().enumerate() {
                scope.spawn(move || {
                    file.write_at(&[at as u8 + round; 10_000], u64::from(round) << 16).unwrap();
                    if at % 2 == 0 { file.sync_all() } else { file.sync_data() }.unwrap();
                });
            }
        });
        combiner.gathers.store(0, Ordering::Relaxed);
        let after = counts();
        assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (1, 1, 2));
        for (at, file) in files.iter().enumerate() {
            let mut bytes = [0; 10_000];
            // From the device.
            file.inode().file().drop_pages(0..u32::MAX);
            assert_eq!(file.read_at(&mut bytes, u64::from(round) << 16).unwrap(), bytes.len());
            assert!(bytes.iter().all(|b| *b == at as u8 + round));
        }
    }
}

/// The content of the file that is written without end.
const STREAM: u8 = 0xC5;

/// A device beside whose writes of [`STREAM`] another thread appends to the file, and overwrites
/// its start.
#[derive(Debug)]
struct Beside {
    inner: MemDevice,
    file: Mutex<Option<File>>,
    appended: AtomicUsize,
}

impl BlockDevice for Beside {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        let file = self.file.lock().unwrap().clone().filter(|_| data.iter().all(|byte| *byte == STREAM));
        if let Some(file) = file
            && self.appended.fetch_add(1, Ordering::Relaxed) < 100
        {
            let write = move || {
                file.write_at(&[STREAM; 4096], file.metadata().len()).unwrap();
                file.write_at(&[STREAM; 4096], 0).unwrap();
            };
            thread::spawn(write).join().unwrap();
        }
        self.inner.write_at(data, offset)
    }
}

/// What is written while a sync runs is not part of it.
#[test]
fn a_sync_ends_beside_a_writer_that_does_not() {
    let syncs: [fn(&Volume, &File); 3] = [
        |_, file| file.sync_all().unwrap(),
        |_, file| file.sync_data().unwrap(),
        |volume, _| volume.sync().unwrap(),
    ];
    for (i, sync) in syncs.into_iter().enumerate() {
        let inner = MemDevice::new(32 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
        lanefs_mkfs::format(&inner, &options).unwrap();
        let device = Arc::new(Beside { inner, file: Mutex::default(), appended: AtomicUsize::new(0) });
        let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        let volume = options.open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
        let file = volume.create_file("/f").unwrap();
        file.write_at(&[STREAM; 40_960], 0).unwrap();
        *device.file.lock().unwrap() = Some(file.clone());
        sync(&volume, &file);
        *device.file.lock().unwrap() = None;
        let appended = device.appended.load(Ordering::Relaxed);
        assert!(
            (1..20).contains(&appended),
            "sync {i}: {appended} writes came beside it, and were waited for"
        );
    }
}

/// A server: counts the writes that are under way at a time.
#[derive(Debug)]
struct Remote {
    below: MemDevice,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Remote {
    fn write(&self, write: impl FnOnce() -> lanefs_device::Result<()>) -> lanefs_device::Result<()> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(1));
        let written = write();
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        written
    }
}

impl BlockDevice for Remote {
    forward_to!(below: size read_only read_at flush discard);

    fn is_remote(&self) -> bool {
        true
    }

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        self.write(|| self.below.write_at(data, offset))
    }

    fn write_batch(&self, ops: &[lanefs_device::WriteOp<'_>]) -> lanefs_device::Result<()> {
        self.write(|| self.below.write_batch(ops))
    }
}

/// A writer that is ahead of the device writes out other files too, before it goes on.
#[test]
fn a_writer_ahead_of_a_server_writes_many_files_at_a_time() {
    let below = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&below, &lanefs_mkfs::Options::default()).unwrap();
    let (under_way, most) = Default::default();
    let device = Arc::new(Remote { below, under_way, most });
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO).cache_bytes(2 << 20);
    let volume: Volume = options.open_device(device.clone()).unwrap();
    (0..1000).for_each(|i| volume.write(format!("/{i}"), &[i as u8; 5000]).unwrap());
    assert!(device.most.load(Ordering::SeqCst) > 4, "one after the other");
    (0..1000).for_each(|i| assert_eq!(volume.read(format!("/{i}")).unwrap(), [i as u8; 5000]));
    volume.close().unwrap();
}

/// Also of a volume that is claimed, which is written to through the fence of its claim.
#[test]
fn many_files_are_written_to_a_server_at_a_time() {
    for features in ["", "mmp"] {
        let below = MemDevice::new(32 << 20);
        let options =
            lanefs_mkfs::Options { features: features.parse().unwrap(), ..lanefs_mkfs::Options::default() };
        lanefs_mkfs::format(&below, &options).unwrap();
        let (under_way, most) = Default::default();
        let device = Arc::new(Remote { below, under_way, most });
        let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        let volume: Volume = options.open_device(device.clone()).unwrap();
        let files: Vec<_> = (0..100).map(|i| volume.create_file(format!("/{i}")).unwrap()).collect();
        files.iter().enumerate().for_each(|(i, file)| file.write_at(&[i as u8; 5000], 0).unwrap());
        device.most.store(0, Ordering::SeqCst);
        volume.sync().unwrap();
        assert!(device.most.load(Ordering::SeqCst) > 4, "{features}: one after the other");
        drop(files);
        volume.close().unwrap();
        let volume: Volume = OpenOptions::new().open_device(device).unwrap();
        (0..100).for_each(|i| assert_eq!(volume.read(format!("/{i}")).unwrap(), [i as u8; 5000]));
    }
}

/// A device beside whose first read of the byte `at` a writeback of the file fails.
#[derive(Debug)]
struct FailingBeside {
    inner: MemDevice,
    at: AtomicU64,
    file: Mutex<Option<File>>,
}

impl BlockDevice for FailingBeside {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        let at = self.at.load(Ordering::SeqCst);
        if (offset..offset + buf.len() as u64).contains(&at)
            && let Some(file) = self.file.lock().unwrap().take()
        {
            file.inode().file().note_failure();
        }
        self.inner.read_at(buf, offset)
    }
}

/// The sync of a piece is the only one that is told of the failure.
#[test]
fn a_copy_tells_of_a_writeback_that_fails_between_two_pieces() {
    const MIB: u64 = 1 << 20;
    let inner = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&inner, &lanefs_mkfs::Options::default()).unwrap();
    let (at, file) = Default::default();
    let device = Arc::new(FailingBeside { inner, at, file });
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume: Volume = options.open_device(device.clone()).unwrap();
    volume.write("/from", &vec![1; 3 * MIB as usize]).unwrap();
    volume.sync().unwrap();
    let from = volume.open_file("/from").unwrap().with_direct(true);
    let to = volume.open_options().write(true).create(true).sync(true).open("/to").unwrap();
    let second = from.fiemap(MIB..2 * MIB, 1).unwrap()[0];
    device.at.store(second.physical + MIB - second.logical, Ordering::SeqCst);
    *device.file.lock().unwrap() = Some(to.clone());
    let copied = from.copy_range(0, &to, 0, 3 * MIB);
    assert!(device.file.lock().unwrap().is_none(), "the second piece was not read: {copied:?}");
    let told = copied.err().or(to.sync_all().err());
    assert!(matches!(told, Some(Error::Lost { .. })), "{told:?}");
    drop((from, to));
    volume.close().unwrap();
}
