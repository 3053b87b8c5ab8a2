//! Batches of reads and writes.

use crate::{Error, File, Io, Locking, OpenOptions, Volume};
use lanefs_device::{
    BlockDevice, DeviceError, FileDevice, FileOptions, MemDevice, Op, ReadOp, WriteOp, forward_to,
};
use lanefs_sim::FailingDevice;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const SIZE: usize = 1 << 20;

fn volume(device: Arc<dyn BlockDevice>, block_size: u32, locking: Locking) -> Volume {
    let options = lanefs_mkfs::Options { block_size: Some(block_size), ..lanefs_mkfs::Options::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    let options = OpenOptions::new().write(true).locking(locking).commit_interval(Duration::ZERO);
    options.open_device(device).unwrap()
}

fn direct(volume: &Volume, name: &str) -> File {
    volume.open_options().read(true).write(true).create(true).direct(true).open(name).unwrap()
}

/// A batch of requests that do not overlap, some aligned, some not, some in holes and beyond the
/// end, through cache and past it, does what they do one by one.
#[test]
fn a_batch_does_what_its_requests_do() {
    let dir = tempfile::tempdir().unwrap();
    for (seed, (block_size, locking)) in
        [(4096, Locking::Range), (1024, Locking::RangeMutex), (4096, Locking::Inode)].into_iter().enumerate()
    {
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let path = dir.path().join(seed.to_string());
        drop(FileDevice::create(&path, 32 << 20).unwrap());
        let device = FileOptions::new().direct(true).open(&path).unwrap();
        let volume = volume(Arc::new(device), block_size, locking);
        let files = [direct(&volume, "/a"), direct(&volume, "/b")];
        let cached = files[0].with_direct(false);
        let mut contents = [vec![0; SIZE], vec![7; SIZE / 2]];
        files[0].set_len(SIZE as u64).unwrap();
        files[1].write_at(&contents[1], 0).unwrap();
        for round in 0..60 {
            // Each has a place of its own.
            let mut memory = lanefs_device::AlignedBuf::slab(1 << 16, 12);
            let mut plans = Vec::new();
            for slot in 0..memory.len() {
                let (which, write) = (slot % 2, rng.random_bool(0.5));
                let through = which == 0 && rng.random_bool(0.2);
                let odd = if rng.random_bool(0.3) { rng.random_range(1..2000) } else { 0 };
                let len = rng.random_range(1..=12) * 4096 - odd.min(4000);
                plans.push((which, write, through, slot / 2 * (1 << 16) + odd, len));
            }
            let mut ios = Vec::new();
            for ((which, write, through, at, len), buf) in plans.iter().zip(&mut memory) {
                let file = if *through { &cached } else { &files[*which] };
                let buf = &mut buf[..*len];
                match write {
                    true => {
                        buf.fill(round);
                        ios.push(Io::write(file, buf, *at as u64));
                    }
                    false => ios.push(Io::read(file, buf, *at as u64)),
                }
            }
            let done = File::run_batch(&mut ios);
            drop(ios);
            for (((which, write, _, at, len), buf), done) in plans.iter().zip(&memory).zip(done) {
                let (content, done) = (&mut contents[*which], done.unwrap());
                match write {
                    true => {
                        assert_eq!(done, *len);
                        content.resize(content.len().max(at + len), 0);
                        content[*at..at + len].fill(round);
                    }
                    false => {
                        assert_eq!(done, content.len().saturating_sub(*at).min(*len));
                        assert!(buf[..done] == content[*at..at + done], "round {round}, {at} and {len}");
                    }
                }
            }
            assert_eq!(files[1].metadata().len(), contents[1].len() as u64);
        }
        for (file, content) in files.iter().zip(&contents) {
            let mut found = vec![1; content.len()];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), content.len());
            assert!(found == *content);
        }
        drop((files, cached));
        volume.close().unwrap();
        let (code, said) = super::run("e2fsck", &["-fn", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{said}");
    }
}

/// Memory that records how many requests it had at a time, and fails on demand.
#[derive(Debug)]
struct Memory {
    inner: MemDevice,
    most: [AtomicUsize; 2],
    fails: AtomicBool,
}

impl Memory {
    fn check(&self) -> Result<(), DeviceError> {
        let failure = || DeviceError::new(Op::Read, 0, 0, std::io::Error::from_raw_os_error(5));
        if self.fails.load(Ordering::Relaxed) { Err(failure()) } else { Ok(()) }
    }
}

impl BlockDevice for Memory {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        self.check()?;
        self.inner.read_at(buf, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<(), DeviceError> {
        self.most[0].fetch_max(ops.len(), Ordering::Relaxed);
        self.check()?;
        self.inner.read_batch(ops)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<(), DeviceError> {
        self.most[1].fetch_max(ops.len(), Ordering::Relaxed);
        self.inner.write_batch(ops)
    }
}

#[test]
fn the_device_has_all_at_the_same_time() {
    let inner = MemDevice::new(32 << 20);
    let device = Arc::new(Memory { inner, most: Default::default(), fails: AtomicBool::new(false) });
    let volume = volume(Arc::clone(&device) as Arc<dyn BlockDevice>, 4096, Locking::Range);
    let file = direct(&volume, "/f");
    file.write_at(&[1; 64 << 10], 0).unwrap();
    device.most.iter().for_each(|most| most.store(0, Ordering::Relaxed));
    let mut memory = [[0; 4096]; 8];
    let mut ios: Vec<_> = memory.iter_mut().zip(0..).map(|(buf, i)| Io::read(&file, buf, i * 8192)).collect();
    ios.extend((0..8).map(|i| Io::write(&file, &[2; 4096], i * 8192 + 4096)));
    let handles = volume.stats().journal.handles;
    assert!(File::run_batch(&mut ios).iter().all(|done| matches!(done, Ok(4096))));
    assert_eq!(device.most.each_ref().map(|most| most.load(Ordering::Relaxed)), [8, 8]);
    assert_eq!(volume.stats().journal.handles, handles);

    // Each request that fails reports its error.
    device.fails.store(true, Ordering::Relaxed);
    let done = File::run_batch(&mut ios);
    assert!(done[..8].iter().all(|done| matches!(done, Err(Error::Device(_)))), "{done:?}");
    assert!(done[8..].iter().all(|done| matches!(done, Ok(4096))), "{done:?}");
    drop(ios);
    assert!(memory.iter().flatten().all(|byte| *byte == 1));
}

/// Each request reports its own failure.
#[test]
fn a_failure_is_its_own() {
    let volume = volume(Arc::new(MemDevice::new(32 << 20)), 4096, Locking::Range);
    let other = self::volume(Arc::new(MemDevice::new(32 << 20)), 4096, Locking::Range);
    let (file, elsewhere) = (direct(&volume, "/f"), direct(&other, "/f"));
    for file in [&file, &elsewhere] {
        file.write_at(&[1; 16384], 0).unwrap();
    }
    let blind = volume.open_options().write(true).direct(true).open("/f").unwrap();
    let [mut a, mut b, mut c] = [[0; 4096]; 3];
    let done = File::run_batch(&mut [
        Io::read(&file, &mut a, 0),
        Io::read(&blind, &mut b, 0),
        Io::write(&file, &[2; 4096], u64::MAX - 4095),
        Io::read(&elsewhere, &mut c, 8192),
        Io::write(&blind, &[3; 4096], 4096),
        Io::write(&elsewhere, &[4; 4096], 4096),
    ]);
    let [Ok(4096), Err(Error::BadHandle(_)), Err(Error::FileTooBig), Ok(4096), Ok(4096), Ok(4096)] = done[..]
    else {
        panic!("{done:?}")
    };
    assert!(a == [1; 4096] && b == [0; 4096] && c == [1; 4096]);
    assert_eq!(elsewhere.read_at(&mut c, 4096).unwrap(), 4096);
    assert!(c == [4; 4096]);
}

/// A batch whose write fails half way is not made good by running its requests again: the file may
/// hold a part of each, and a sync beside it has not covered them.
#[test]
fn a_failed_write_of_a_batch_aborts_the_journal() {
    let device = Arc::new(FailingDevice::new(MemDevice::new(16 << 20)));
    let volume = volume(Arc::clone(&device) as _, 4096, Locking::Range);
    let file = direct(&volume, "/a");
    file.write_at(&[1; 4 * 4096], 0).unwrap();
    volume.sync().unwrap();
    device.fail_once(Op::Write, 2, 5);
    let pieces = [[2; 4096], [3; 4096]];
    let done = File::run_batch(&mut [Io::write(&file, &pieces[0], 0), Io::write(&file, &pieces[1], 8192)]);
    assert!(done.iter().all(Result::is_err), "{done:?}");
    assert!(volume.sync().is_err());
    assert!(volume.close().is_err());
}
