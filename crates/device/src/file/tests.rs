//! Judged by what we did not write where possible: `flock(1)`, `losetup`, the kernel's mount,
//! `std::fs`.

#[path = "../../tests/common/loop_device.rs"]
mod loop_device;
mod rings;

use self::loop_device::LoopDevice;
use super::vectored::GIVEN_BACK;
use super::*;
use crate::{AlignedBuf, Cached, FileOptions};
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

thread_local! {
    /// Whether other openers were refused when a new file was about to be removed by this thread.
    pub(crate) static LOCKED_AT_REMOVAL: Cell<Option<bool>> = const { Cell::new(None) };
    /// What another opener does between this thread's next open of a file and its lock.
    static BEFORE_LOCK: Cell<Option<fn(&Path)>> = const { Cell::new(None) };
    /// How often this thread has asked the kernel for all locks.
    static ASKED_FOR_LOCKS: Cell<usize> = const { Cell::new(0) };
}

/// Sets what another opener does between this thread's next open of a file and its lock.
pub(crate) fn at_next_lock(act: fn(&Path)) {
    BEFORE_LOCK.set(Some(act));
}

/// Notes whether another opener is refused. A lock that a reader gets is none.
pub(super) fn note_removal(path: &Path) {
    LOCKED_AT_REMOVAL.set(Some(lock::is_locked(&File::open(path).unwrap())));
}

pub(super) fn note_question() {
    ASKED_FOR_LOCKS.set(ASKED_FOR_LOCKS.get() + 1);
}

pub(super) fn before_lock(path: &Path) {
    if let Some(act) = BEFORE_LOCK.take() {
        act(path);
    }
}

/// Fills with bytes that differ from sector to sector.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 9) as u8 ^ seed).collect()
}

fn scratch() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume.img");
    (dir, path)
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).env("LC_ALL", "C").output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(
        out.status.success(),
        "{program} {args:?} (needs root): {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// Gives this thread a mount namespace of its own: a process that is started meanwhile, and makes
/// itself one, would have a copy of a mount, and keep the device in use behind the unmount.
fn private_mounts() {
    #[allow(deprecated, reason = "unshare is unsafe with FILES only, which is not asked for")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).unwrap();
    run("mount", &["--make-rprivate", "/"]);
}

/// A mount, unmounted on drop.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A child of another thread that has not come to its exec still has what files this one had
        // open.
        let unmounts = || Command::new("umount").arg(self.0).status().is_ok_and(|s| s.success());
        let done = (0..1200).any(|_| {
            unmounts() || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        });
        assert!(done || std::thread::panicking(), "{} stays mounted", self.0.display());
    }
}

/// Another process that holds the lock until drop.
struct Holder(Child);

impl Holder {
    fn lock(how: &str, path: &Path) -> Self {
        let mut child = Command::new("flock")
            .args([how.as_ref(), path.as_os_str()])
            .args(["sh", "-c", "echo held; read wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn flock_gets(how: &str, path: &Path) -> bool {
    Command::new("flock").args(["-n", how]).arg(path).arg("true").status().unwrap().success()
}

fn refused(result: Result<FileDevice>, op: Op, errno: i32, words: &[&str]) {
    let e = result.expect_err("must be refused");
    assert_eq!((e.op, e.errno()), (op, errno), "{e}");
    let line = e.to_string();
    assert!(!line.contains('\n'));
    for word in words {
        assert!(line.contains(word), "{word:?} is not in {line:?}");
    }
}

#[test]
fn creates_sparse() {
    use std::os::unix::fs::MetadataExt;
    let (_dir, path) = scratch();
    let dev = FileDevice::create(&path, 1 << 40).unwrap();
    assert_eq!(dev.size(), 1 << 40);
    dev.write_at(b"end", (1 << 40) - 3).unwrap();
    dev.flush().unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
}

#[test]
fn create_empties_what_was_there() {
    let (_dir, path) = scratch();
    std::fs::write(&path, pattern(9000, 1)).unwrap();
    drop(FileDevice::create(&path, 5000).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), vec![0; 5000]);
}

#[test]
fn a_loop_device_is_in_use_with_the_file_behind_it() {
    let (_dir, path) = scratch();
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let device = LoopDevice::attach(&path, &[]);
    let name = Path::new(device.name());
    let writer = Holder::lock("-x", &path);
    refused(FileDevice::open(name), Op::Lock, libc::EBUSY, &["has open the file behind it"]);
    refused(FileDevice::open_read_only(name), Op::Lock, libc::EBUSY, &["writes to the file behind it"]);
    drop(writer);
    let reader = Holder::lock("-s", &path);
    refused(FileDevice::open(name), Op::Lock, libc::EBUSY, &["has open the file behind it"]);
    drop(FileDevice::open_read_only(name).unwrap());
    drop(reader);
    drop(FileDevice::open(name).unwrap());
}

#[test]
fn create_new_leaves_a_file_alone() {
    let (_dir, path) = scratch();
    assert_eq!(FileDevice::create_new(&path, 5000).unwrap().size(), 5000);
    std::fs::write(&path, b"kept").unwrap();
    refused(FileDevice::create_new(&path, 5000), Op::Open, libc::EEXIST, &["exists already"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[test]
fn create_spares_a_file_in_use() {
    let (_dir, path) = scratch();
    let dev = FileDevice::create(&path, 4096).unwrap();
    dev.write_at(b"kept", 0).unwrap();
    refused(FileDevice::create(&path, 8192), Op::Lock, libc::EBUSY, &["in use"]);
    assert_eq!(std::fs::read(&path).unwrap().len(), 4096);
    assert_eq!(&std::fs::read(&path).unwrap()[..4], b"kept");
}

#[test]
fn create_leaves_nothing_after_failure() {
    let (_dir, path) = scratch();
    refused(FileDevice::create(&path, 1 << 62), Op::Open, libc::EFBIG, &["volume.img", "that size"]);
    assert!(!path.exists());
    assert_eq!(LOCKED_AT_REMOVAL.take(), Some(true), "without the lock it may be another's");
    refused(FileDevice::create(&path, 0), Op::Open, libc::EINVAL, &["0 bytes"]);
    assert!(!path.exists());
}

/// The kernel takes 10 ms to tell of all locks.
#[test]
fn an_open_that_is_not_refused_asks_for_no_locks() {
    let (_dir, path) = scratch();
    drop(FileDevice::create(&path, 1 << 20).unwrap());
    drop(FileDevice::open_read_only(&path).unwrap());
    drop(FileOptions::new().window(Some(4096..8192)).open(&path).unwrap());
    let first = FileDevice::open(&path).unwrap();
    assert_eq!(ASKED_FOR_LOCKS.get(), 0);
    FileDevice::open(&path).unwrap_err();
    assert!(ASKED_FOR_LOCKS.get() > 0);
    drop(first);
}

/// The opener that had the lock removes its file, or another process renames one over it.
#[test]
fn a_file_that_lost_its_name_before_the_lock_is_not_used() {
    let remove = |path: &Path| std::fs::remove_file(path).unwrap();
    let replace = |path: &Path| {
        std::fs::write(path.with_extension("new"), [7; 4096]).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    };
    for act in [remove as fn(&Path), replace] {
        let (_dir, path) = scratch();
        std::fs::write(&path, [1; 8192]).unwrap();
        BEFORE_LOCK.set(Some(act));
        let made = FileDevice::create(&path, 1 << 20).unwrap();
        made.write_at(&[5], 0).unwrap();
        drop(made);
        assert_eq!(std::fs::read(&path).unwrap()[..2], [5, 0]);
    }
    let (_dir, path) = scratch();
    std::fs::write(&path, [1; 8192]).unwrap();
    BEFORE_LOCK.set(Some(replace));
    assert_eq!(FileDevice::open(&path).unwrap().size(), 4096);
    BEFORE_LOCK.set(Some(remove));
    refused(FileDevice::open(&path), Op::Open, libc::ENOENT, &["no such file"]);
}

/// What another process adds to a file is there when it is measured, and never less than before.
#[test]
fn a_file_that_became_longer_is_measured() {
    let (_dir, path) = scratch();
    for cached in [Cached::All, Cached::SmallReads] {
        std::fs::write(&path, [1; 8192]).unwrap();
        let dev = FileOptions::new().cached(cached).open(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(12_288 + 100).unwrap();
        assert!(dev.size() == 8192 && dev.write_at(&[2; 4096], 8192).is_err());
        let size = dev.measure().unwrap();
        assert!(size == dev.size() && (12_288..=12_388).contains(&size), "{size}");
        dev.write_at(&[2; 4096], 8192).unwrap();
        let mut found = [0; 4096];
        dev.read_at(&mut found, 8192).unwrap();
        assert_eq!(found, [2; 4096]);
        file.set_len(4096).unwrap();
        assert_eq!(dev.measure().unwrap(), size);
        lengthen(&file, 20_000).unwrap();
        lengthen(&file, 10_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 20_000);
    }
}

/// What another process has renamed over a new file is not the file that failed.
#[test]
fn only_the_file_that_failed_is_removed() {
    let (_dir, path) = scratch();
    let failed = File::create(&path).unwrap();
    std::fs::write(path.with_extension("new"), b"another's").unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    remove_new(&path, &failed);
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
}

/// A path of this process leads to a file without a name too.
#[test]
fn a_file_without_a_name_is_opened_by_its_descriptor() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    assert_eq!(FileDevice::open(path).unwrap().size(), 4096);
}

/// Two processes that ask at the same time do not take each other for a mount.
#[test]
fn a_question_for_a_claim_is_no_claim() {
    let mut asked = 0;
    let busy_once = || {
        asked += 1;
        if asked == 1 { Err(Errno::BUSY.into()) } else { File::open("/dev/null") }
    };
    assert_eq!(lock::stays_claimed(busy_once), Some(false));
    assert_eq!(lock::stays_claimed(|| Err(Errno::BUSY.into())), Some(true));
    assert_eq!(lock::stays_claimed(|| Err(Errno::ACCESS.into())), None);
}

#[test]
fn refuses_what_is_no_volume() {
    let (dir, path) = scratch();
    refused(FileDevice::open(&path), Op::Open, libc::ENOENT, &["volume.img: no such file"]);
    refused(FileDevice::open(dir.path()), Op::Open, libc::EISDIR, &["is a directory"]);
    refused(FileDevice::create(dir.path(), 4096), Op::Open, libc::EISDIR, &["is a directory"]);
    refused(FileDevice::open_read_only(dir.path()), Op::Open, libc::EISDIR, &["is a directory"]);
    std::fs::write(&path, b"").unwrap();
    refused(FileDevice::open(&path), Op::Open, libc::EINVAL, &["volume.img: is empty"]);
    let fifo = dir.path().join("fifo");
    run("mkfifo", &[fifo.to_str().unwrap()]);
    refused(FileDevice::open_read_only(&fifo), Op::Open, libc::EINVAL, &["neither a regular file"]);
    refused(FileDevice::open("/dev/null"), Op::Open, libc::EINVAL, &["neither a regular file"]);
}

#[test]
fn locks_within_a_process() {
    let (_dir, path) = scratch();
    let writer = FileDevice::create(&path, 4096).unwrap();
    refused(
        FileDevice::open(&path),
        Op::Lock,
        libc::EBUSY,
        &["volume.img", "in use: this process has it open"],
    );
    refused(FileDevice::open_read_only(&path), Op::Lock, libc::EBUSY, &["in use", "writes to it"]);
    drop(writer);
    let reader = FileDevice::open_read_only(&path).unwrap();
    let other = FileDevice::open_read_only(&path).unwrap();
    refused(FileDevice::open(&path), Op::Lock, libc::EBUSY, &["in use"]);
    drop(reader);
    refused(FileDevice::open(&path), Op::Lock, libc::EBUSY, &["in use"]);
    drop(other);
    FileDevice::open(&path).unwrap();
}

#[test]
fn locks_across_processes() {
    let (_dir, path) = scratch();
    let dev = FileDevice::create(&path, 4096).unwrap();
    assert!(!flock_gets("-x", &path) && !flock_gets("-s", &path));
    drop(dev);
    let dev = FileDevice::open_read_only(&path).unwrap();
    assert!(!flock_gets("-x", &path) && flock_gets("-s", &path));
    drop(dev);
    assert!(flock_gets("-x", &path));

    let holder = Holder::lock("-x", &path);
    let pid = format!("process {} has it open", holder.0.id());
    refused(FileDevice::open(&path), Op::Lock, libc::EBUSY, &["in use", &pid]);
    refused(FileDevice::open_read_only(&path), Op::Lock, libc::EBUSY, &["in use"]);
    drop(holder);
    let holder = Holder::lock("-s", &path);
    refused(FileDevice::open(&path), Op::Lock, libc::EBUSY, &["in use"]);
    FileDevice::open_read_only(&path).unwrap();
    drop(holder);
    FileDevice::open(&path).unwrap();
}

#[test]
fn ranges_and_read_only() {
    let (_dir, path) = scratch();
    let dev = FileDevice::create(&path, 4096).unwrap();
    for (offset, len) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 1, 4)] {
        assert_eq!(dev.read_at(&mut vec![0; len], offset).unwrap_err().op, Op::Read);
        assert_eq!(dev.write_at(&vec![0; len], offset).unwrap_err().op, Op::Write);
        assert_eq!(dev.discard(offset, len as u64).unwrap_err().op, Op::Discard);
        assert_eq!(dev.write_zeroes(offset, len as u64).unwrap_err().op, Op::Write);
        assert!(dev.write_batch(&[WriteOp { offset, data: &[&vec![0; len]] }]).is_err());
        assert!(dev.read_batch(&mut [ReadOp { offset, buf: &mut vec![0; len] }]).is_err());
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
    drop(dev);
    let dev = FileDevice::open_read_only(&path).unwrap();
    assert!(dev.read_only());
    assert_eq!(dev.write_at(b"x", 0).unwrap_err().errno(), libc::EROFS);
    assert_eq!(dev.discard(0, 1).unwrap_err().errno(), libc::EROFS);
    assert_eq!(dev.write_zeroes(0, 1).unwrap_err().errno(), libc::EROFS);
    assert!(dev.write_batch(&[WriteOp { offset: 0, data: &[b"x"] }]).is_err());
    dev.flush().unwrap();
}

#[test]
fn a_file_that_shrank_is_an_error() {
    let (_dir, path) = scratch();
    let dev = FileDevice::create(&path, 8192).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(dev.read_at(&mut [0; 200], 4000).unwrap_err().op, Op::Read);
    assert!(dev.read_batch(&mut [ReadOp { offset: 4000, buf: &mut [0; 200] }]).is_err());
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Random reads, writes, batches, zeros and discards against a plain Vec.
pub(crate) fn exercise(dev: &dyn BlockDevice, path: &Path) {
    let size = dev.size() as usize;
    let mut model = pattern(size, 7);
    dev.write_at(&model, 0).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for step in 0..300 {
        let at = random.below(size);
        // Mostly small; some larger than a bounce buffer.
        let most = if random.below(8) == 0 { size } else { 9000 };
        let mut len = random.below(most.min(size - at)) + 1;
        let mut at = at;
        if random.below(3) == 0 {
            at = at / 4096 * 4096;
            len = (len.next_multiple_of(4096)).min(size - at);
        }
        match random.below(6) {
            0 => {
                let data = pattern(len, step as u8);
                dev.write_at(&data, at as u64).unwrap();
                model[at..at + len].copy_from_slice(&data);
            }
            1 => {
                let mut got = vec![1; len];
                dev.read_at(&mut got, at as u64).unwrap();
                assert!(got == model[at..at + len], "read of {len} at {at}");
            }
            2 => write_batch(dev, &mut model, at, &pattern(len, step as u8), &mut random),
            3 => {
                let cut = random.below(len) + 1;
                let got = read_batch(dev, at, len, cut);
                assert!(got == model[at..at + len], "batch read of {len} at {at} cut by {cut}");
            }
            4 => {
                dev.write_zeroes(at as u64, len as u64).unwrap();
                model[at..at + len].fill(0);
            }
            _ => {
                dev.discard(at as u64, len as u64).unwrap();
                dev.write_at(&model[at..at + len], at as u64).unwrap();
            }
        }
    }
    dev.flush().unwrap();
    let mut all = vec![0; size];
    dev.read_at(&mut all, 0).unwrap();
    assert!(all == model);
    assert!(std::fs::read(path).unwrap() == model, "the file differs from what the device reads");
}

/// Writes `data` at `at` in one batch: cut into ops and pieces, back to front, one op left out.
fn write_batch(dev: &dyn BlockDevice, model: &mut [u8], at: usize, data: &[u8], random: &mut Random) {
    let cut = random.below(data.len()) / 3 + 1;
    let ops: Vec<(u64, Vec<&[u8]>)> = data
        .chunks(cut * 3)
        .enumerate()
        .map(|(i, c)| ((at + i * cut * 3) as u64, c.chunks(cut).collect()))
        .collect();
    let skip = random.below(ops.len() + 1);
    let mut ops: Vec<WriteOp<'_>> = ops
        .iter()
        .enumerate()
        .filter(|&(i, _)| i != skip)
        .map(|(_, (offset, data))| WriteOp { offset: *offset, data })
        .collect();
    ops.reverse();
    dev.write_batch(&ops).unwrap();
    for op in ops {
        let bytes = op.data.concat();
        model[op.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
}

/// Reads `len` bytes at `at` in one batch of ops of `cut` bytes, back to front.
fn read_batch(dev: &dyn BlockDevice, at: usize, len: usize, cut: usize) -> Vec<u8> {
    let mut got = vec![1; len];
    let mut ops: Vec<ReadOp<'_>> = got
        .chunks_mut(cut)
        .enumerate()
        .map(|(i, buf)| ReadOp { offset: (at + i * cut) as u64, buf })
        .collect();
    ops.reverse();
    dev.read_batch(&mut ops).unwrap();
    got
}

#[test]
fn buffered_file() {
    let (_dir, path) = scratch();
    exercise(&FileDevice::create(&path, (3 << 20) + 1111).unwrap(), &path);
}

#[test]
fn direct_file() {
    let (_dir, path) = scratch();
    let dev = FileOptions::new().direct(true).create(&path, 3 << 20).unwrap();
    assert!(dev.is_direct() && dev.alignment() >= 512);
    exercise(&dev, dev.path());
}

#[test]
fn direct_goes_past_the_cache() {
    let (_dir, path) = scratch();
    let dev = FileOptions::new().direct(true).create(&path, 1 << 20).unwrap();
    let flags = rustix::fs::fcntl_getfl(&dev.file).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::DIRECT));
    drop(dev);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((1 << 20) + 100).unwrap();
    let odd = FileOptions::new().direct(true).open(&path);
    refused(odd, Op::Open, libc::EINVAL, &["1048676 bytes", "multiple"]);
}

fn mixed() -> FileOptions {
    FileOptions::new().cached(Cached::SmallReads)
}

#[test]
fn small_reads_by_the_cache() {
    let (_dir, path) = scratch();
    let dev = mixed().create(&path, 3 << 20).unwrap();
    assert!(dev.is_direct() && dev.alignment() >= 512);
    let by_cache = |len| {
        dev.reads_cached(len, Reads::BySize)
            .is_some_and(|file| !rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::DIRECT))
    };
    assert!(by_cache(LARGE - 1) && !by_cache(LARGE));
    assert!(dev.reads_cached(1, Reads::Direct).is_none());
    assert_eq!(dev.cached(), Some(Cached::SmallReads));
    exercise(&dev, dev.path());
    drop(dev);
    // Where direct I/O is not to be had.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((3 << 20) + 1111).unwrap();
    let odd = mixed().open(&path).unwrap();
    assert!(!odd.is_direct() && odd.alignment() == 1 && odd.cached() == Some(Cached::All));
    exercise(&odd, odd.path());
}

/// Cached reads see the bytes of direct writes, even while the kernel reads ahead of adjacent
/// pages.
#[test]
fn the_cache_has_nothing_older_than_what_was_written() {
    let (_dir, path) = scratch();
    let dev = mixed().create(&path, 8 << 20).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = vec![0; 64 << 10];
            while !done.load(Ordering::Relaxed) {
                for at in (0..dev.size()).step_by(buf.len()) {
                    dev.read_at(&mut buf, at).unwrap();
                }
            }
        });
        let mut block = AlignedBuf::zeroed(256 << 10);
        let mut got = [0; 1024];
        for round in 0..400_u64 {
            let len = [1024, 4096, 256 << 10][round as usize % 3];
            block[..len].fill(round as u8);
            let at = round * 7919 * 1024 % (dev.size() - (1 << 20)) / 1024 * 1024;
            match round % 2 {
                0 => dev.write_at(&block[..len], at).unwrap(),
                _ => {
                    let (a, b) = block[..len].split_at(len / 2);
                    let op = |offset, data| WriteOp { offset, data };
                    // Apart from the first two: by io_uring.
                    let apart = at + (512 << 10);
                    dev.write_batch(&[op(at, &[a]), op(at + a.len() as u64, &[b]), op(apart, &[b])]).unwrap();
                    dev.read_at(&mut got[..b.len().min(1024)], apart).unwrap();
                    assert!(
                        got[..b.len().min(1024)].iter().all(|byte| *byte == round as u8),
                        "round {round}"
                    );
                }
            }
            for at in (at..at + len as u64).step_by(16 << 10) {
                dev.read_at(&mut got, at).unwrap();
                assert!(got.iter().all(|byte| *byte == round as u8), "round {round}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    dev.flush().unwrap();
}

/// Two threads write the two halves of one sector; neither undoes the other.
#[test]
fn direct_partial_sectors_by_two_threads() {
    let (_dir, path) = scratch();
    let dev = FileOptions::new().direct(true).create(&path, 64 << 10).unwrap();
    std::thread::scope(|scope| {
        for half in 0..2_u64 {
            let dev = &dev;
            scope.spawn(move || {
                for round in 0..2000_u32 {
                    let data = [round as u8; 256];
                    dev.write_at(&data, half * 256).unwrap();
                    let mut seen = [0; 256];
                    dev.read_at(&mut seen, half * 256).unwrap();
                    assert_eq!(seen, data, "half {half} in round {round}");
                }
            });
        }
    });
}

/// An empty piece may lie anywhere: the others go to the device from where they are.
#[test]
fn empty_pieces_are_of_no_account() {
    let (_dir, path) = scratch();
    let dev = FileOptions::new().direct(true).io_uring(IoUring::On).create(&path, 8 << 20).unwrap();
    let (mut data, odd) = (AlignedBuf::zeroed(4 << 20), [0; 3]);
    // The blocks are there already: a write that must wait for new ones is no ring's.
    dev.write_at(&data, 512 << 10).unwrap();
    data.copy_from_slice(&pattern(4 << 20, 3));
    let (before, given_back) = (write_calls(), GIVEN_BACK.get());
    let pieces: [&[u8]; 3] = [&odd[1..1], &data, &odd[2..2]];
    dev.write_batch(&[WriteOp { offset: 512 << 10, data: &pieces }]).unwrap();
    // By the ring, to which nothing goes that had to be copied first. What the kernel will not wait
    // for is written by a call.
    assert_eq!(write_calls() - before, GIVEN_BACK.get() - given_back);
    let mut seen = vec![0; 4 << 20];
    dev.read_at(&mut seen, 512 << 10).unwrap();
    assert!(seen == data[..]);
}

/// Calls of write(2) and its kin that this thread has made; what a ring does is not among them.
fn write_calls() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|l| l.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}

/// Pieces that lie side by side are one call, as many as the kernel takes; of direct I/O, as many
/// as are not cut.
#[test]
fn a_run_is_one_call() {
    for (direct, cases) in
        [(false, [(1, 1), (256, 1), (1024, 1), (1025, 2)]), (true, [(1, 1), (256, 1), (257, 2), (1024, 4)])]
    {
        let (_dir, path) = scratch();
        let options = FileOptions::new().direct(direct).io_uring(IoUring::Off);
        let dev = options.create(&path, 16 << 20).unwrap();
        let page = AlignedBuf::zeroed(4096);
        for (pieces, calls) in cases {
            let gathered: Vec<&[u8]> = vec![&page; pieces];
            let before = write_calls();
            dev.write_batch(&[WriteOp { offset: 4096, data: &gathered }]).unwrap();
            assert_eq!(write_calls() - before, calls, "{pieces} pieces of one op");
            let ops: Vec<_> =
                (0..pieces).map(|i| WriteOp { offset: i as u64 * 4096, data: &gathered[..1] }).collect();
            let before = write_calls();
            dev.write_batch(&ops).unwrap();
            assert_eq!(write_calls() - before, calls, "{pieces} ops");
        }
    }
}

#[test]
fn more_pieces_than_one_call_takes() {
    for direct in [false, true] {
        let (_dir, path) = scratch();
        let dev = FileOptions::new().direct(direct).create(&path, 3000 * 512).unwrap();
        let data = pattern(3000 * 512, 3);
        let pieces: Vec<[&[u8]; 1]> = data.chunks(512).map(|c| [c]).collect();
        let ops: Vec<WriteOp<'_>> =
            pieces.iter().enumerate().map(|(i, data)| WriteOp { offset: i as u64 * 512, data }).collect();
        dev.write_batch(&ops).unwrap();
        assert!(std::fs::read(&path).unwrap() == data);
        let mut got = vec![0; data.len()];
        let mut ops: Vec<ReadOp<'_>> =
            got.chunks_mut(512).enumerate().map(|(i, buf)| ReadOp { offset: i as u64 * 512, buf }).collect();
        dev.read_batch(&mut ops).unwrap();
        assert!(got == data);
    }
}

#[test]
fn discard_and_zeroes_give_space_back() {
    use std::os::unix::fs::MetadataExt;
    let (_dir, path) = scratch();
    let dev = FileDevice::create(&path, 4 << 20).unwrap();
    dev.write_at(&pattern(4 << 20, 1), 0).unwrap();
    dev.flush().unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let full = blocks();
    dev.discard(0, 1 << 20).unwrap();
    dev.write_zeroes(2 << 20, 1 << 20).unwrap();
    // But for what the host's own map needs for the holes.
    assert!(blocks() <= full / 2 + 64, "{} of {full} blocks", blocks());
}

#[test]
fn a_block_special_file_is_all_cached_or_not() {
    let (_dir, path) = scratch();
    std::fs::write(&path, vec![0; 4 << 20]).unwrap();
    let device = LoopDevice::attach(&path, &[]);
    let dev = mixed().open(device.name()).unwrap();
    assert!(!dev.is_direct() && dev.alignment() == 1);
}

#[test]
fn block_special_file() {
    let (_dir, path) = scratch();
    std::fs::write(&path, vec![0; 4 << 20]).unwrap();
    let loop_dev = LoopDevice::attach(&path, &[]);
    for direct in [false, true] {
        let dev = FileOptions::new().direct(direct).open(loop_dev.name()).unwrap();
        assert!(dev.is_block_special());
        assert_eq!(dev.size(), 4 << 20);
        exercise(&dev, dev.path());
        refused(FileDevice::open(loop_dev.name()), Op::Lock, libc::EBUSY, &[loop_dev.name(), "in use"]);
        refused(FileDevice::open_read_only(loop_dev.name()), Op::Lock, libc::EBUSY, &["in use"]);
    }
    let dev = FileDevice::create(loop_dev.name(), 1 << 20).unwrap();
    assert_eq!(dev.size(), 4 << 20);
    drop(dev);
    let larger = FileDevice::create(loop_dev.name(), 8 << 20);
    refused(larger, Op::Open, libc::ENOSPC, &["4194304", "8388608"]);
}

#[test]
fn a_mounted_volume_is_refused_for_writing() {
    let (dir, path) = scratch();
    drop(FileDevice::create(&path, 8 << 20).unwrap());
    run("mke2fs", &["-q", "-t", "ext4", path.to_str().unwrap()]);
    let loop_dev = LoopDevice::attach(&path, &[]);
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    drop(FileDevice::open(&path).unwrap());
    private_mounts();
    run("mount", &[loop_dev.name(), mnt.to_str().unwrap()]);
    let mounted = Mounted(&mnt);
    refused(FileDevice::open(loop_dev.name()), Op::Lock, libc::EBUSY, &[loop_dev.name(), "mounted"]);
    refused(FileDevice::open(&path), Op::Lock, libc::EBUSY, &["volume.img", "mounted", loop_dev.name()]);
    FileDevice::open_read_only(loop_dev.name()).unwrap();
    FileDevice::open_read_only(&path).unwrap();
    drop(mounted);
    FileDevice::open(loop_dev.name()).unwrap();
    FileDevice::open(&path).unwrap();
}

/// A tiny file system of its own, to fill up.
fn small_host(dir: &Path) -> (LoopDevice, PathBuf) {
    let (image, mnt) = (dir.join("host.img"), dir.join("host"));
    drop(FileDevice::create(&image, 4 << 20).unwrap());
    run("mke2fs", &["-q", "-t", "ext4", image.to_str().unwrap()]);
    let loop_dev = LoopDevice::attach(&image, &[]);
    std::fs::create_dir(&mnt).unwrap();
    private_mounts();
    run("mount", &[loop_dev.name(), mnt.to_str().unwrap()]);
    (loop_dev, mnt)
}

/// A write that the host refuses: the error names place and number.
#[test]
fn a_full_file_system_below() {
    let (dir, _) = scratch();
    let (_loop, mnt) = small_host(dir.path());
    let mounted = Mounted(&mnt);
    let dev = FileDevice::create(mnt.join("inner"), 64 << 20).unwrap();
    let error = (0..16).find_map(|i| dev.write_at(&pattern(1 << 20, 1), i << 20).err()).unwrap();
    assert_eq!((error.op, error.errno(), error.len), (Op::Write, libc::ENOSPC, 1 << 20));
    drop(dev);
    drop(mounted);
}

/// A flush that really fails, of a block device whose backing file has nowhere to go. The kernel
/// itself tells of it once only.
#[test]
fn a_failed_flush_is_never_forgotten() {
    let (dir, _) = scratch();
    let (_host, mnt) = small_host(dir.path());
    let mounted = Mounted(&mnt);
    let backing = mnt.join("inner");
    File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    let inner = LoopDevice::attach(&backing, &[]);
    let dev = FileDevice::open(inner.name()).unwrap();
    dev.write_at(&pattern(16 << 20, 1), 0).unwrap();
    assert_eq!(dev.flush().unwrap_err().op, Op::Flush);
    rustix::fs::fdatasync(&dev.file).expect("the kernel has forgotten");
    assert_eq!(dev.flush().unwrap_err().op, Op::Flush);
    drop(dev);
    drop(inner);
    drop(mounted);
}

#[test]
fn direct_where_there_is_none() {
    let (dir, _) = scratch();
    let mnt = dir.path().join("ramfs");
    std::fs::create_dir(&mnt).unwrap();
    private_mounts();
    run("mount", &["-t", "ramfs", "none", mnt.to_str().unwrap()]);
    let mounted = Mounted(&mnt);
    let path = mnt.join("volume");
    let direct = FileOptions::new().direct(true);
    refused(direct.create(&path, 1 << 20), Op::Open, libc::EINVAL, &["direct I/O"]);
    assert!(!path.exists());
    exercise(&FileDevice::create(&path, 1 << 20).unwrap(), &path);
    refused(direct.open(&path), Op::Open, libc::EINVAL, &["direct I/O"]);
    assert!(!mixed().open(&path).unwrap().is_direct());
    drop(mounted);
}

/// A loop device and the file behind it are one volume, whichever of them is open.
#[test]
fn a_loop_device_is_the_file_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["v.img", "other"].map(|name| dir.path().join(name));
    for path in [&path, &other] {
        drop(FileDevice::create(path, 1 << 20).unwrap());
    }
    let device = LoopDevice::attach(&path, &[]);
    let by_device = FileDevice::open_read_only(device.name()).unwrap();
    assert!(crate::is_open_here(&path) && crate::is_open_here(device.name()));
    assert!(!crate::is_open_here(&other));
    drop(by_device);
    assert!(!crate::is_open_here(&path) && !crate::is_open_here(device.name()));
    let by_file = FileDevice::open_read_only(&path).unwrap();
    assert!(crate::is_open_here(device.name()));
    drop(by_file);
    assert!(!crate::is_open_here(device.name()));
}
