//! How many batches of the group commit, and how many commits, a job waits for.
//!
//! A gate in the device, or the lock of the handle, holds what is under way until all jobs have
//! come. So no count depends on time.

use crate::error::Result;
use crate::fs::data::combine::{LEADERS, MOST_JOBS};
use crate::{File, OpenOptions, Volume};
use lanefs_device::{BlockDevice, DeviceError, MemDevice, Op, errno, forward_to};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// The content of all files.
const MARK: u8 = 0xB7;

/// How the calls end that the gate has held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    #[default]
    Done,
    Fails,
    Panics,
}

#[derive(Debug, Default)]
struct Gate {
    closed: bool,
    /// Calls that have come to the closed gate.
    held: usize,
    end: End,
}

/// A device whose writes of [`MARK`], or whose flushes, wait while its gate is closed.
#[derive(Debug)]
struct Gated {
    inner: MemDevice,
    holds: Op,
    gate: Mutex<Gate>,
    opened: Condvar,
}

impl Gated {
    fn close(&self) {
        self.gate.lock().unwrap().closed = true;
    }

    fn open(&self, end: End) {
        let mut gate = self.gate.lock().unwrap();
        (gate.closed, gate.end) = (false, end);
        self.opened.notify_all();
    }

    fn held(&self) -> usize {
        self.gate.lock().unwrap().held
    }

    fn pass(&self, op: Op) -> lanefs_device::Result<()> {
        let mut gate = self.gate.lock().unwrap();
        if op != self.holds || !gate.closed {
            return Ok(());
        }
        gate.held += 1;
        let gate = self.opened.wait_while(gate, |gate| gate.closed).unwrap();
        let end = gate.end;
        // A panic would poison it.
        drop(gate);
        match end {
            End::Done => Ok(()),
            End::Fails => Err(DeviceError::new(op, 0, 0, io::Error::from_raw_os_error(errno::EIO))),
            End::Panics => panic!("on purpose"),
        }
    }
}

impl BlockDevice for Gated {
    forward_to!(inner: size read_only read_at discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if data.first() == Some(&MARK) && data.iter().all(|byte| *byte == MARK) {
            self.pass(Op::Write)?;
        }
        self.inner.write_at(data, offset)
    }

    fn flush(&self) -> lanefs_device::Result<()> {
        self.pass(Op::Flush)?;
        self.inner.flush()
    }
}

/// Returns a volume with `files` empty files, on a device whose gate is open.
fn volume(holds: Op, files: usize) -> (Arc<Gated>, Volume, Vec<File>) {
    let inner = MemDevice::new(64 << 20);
    let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
    lanefs_mkfs::format(&inner, &options).unwrap();
    let device = Arc::new(Gated { inner, holds, gate: Mutex::default(), opened: Condvar::new() });
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
    let files = (0..files).map(|i| volume.create_file(format!("/{i}")).unwrap()).collect();
    volume.sync().unwrap();
    (device, volume, files)
}

/// Writes `len` bytes to a file and syncs it. A panic of the device is an error.
fn sync(file: &File, len: usize) -> thread::Result<Result<()>> {
    catch_unwind(AssertUnwindSafe(|| {
        file.write_at(&vec![MARK; len], 0)?;
        file.sync_all()
    }))
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

/// Two batches are held while their pages are written. All jobs that come meanwhile are in the next
/// one, whether those two are written, fail, or panic.
#[test]
fn a_job_is_in_the_next_batch_whatever_becomes_of_those_under_way() {
    const JOBS: usize = 40;
    for end in [End::Done, End::Fails, End::Panics] {
        let (device, _volume, files) = volume(Op::Write, JOBS);
        let combiner = &files[0].inode().fs.combiner;
        let before = combiner.seen();
        device.close();
        let told: Vec<_> = thread::scope(|scope| {
            let spawn = |file, len| scope.spawn(move || sync(file, len));
            // More than is left to a commit.
            let mut threads = vec![spawn(&files[0], 300 << 10)];
            wait_until(|| device.held() == 1);
            // As many as let a second thread lead.
            threads.extend(files[1..5].iter().map(|file| spawn(file, 4096)));
            wait_until(|| device.held() == 2);
            threads.extend(files[5..].iter().map(|file| spawn(file, 4096)));
            wait_until(|| combiner.seen().jobs - before.jobs == JOBS);
            device.open(end);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let seen = combiner.seen();
        assert_eq!((seen.batches - before.batches, seen.late), (LEADERS + 1, 0), "{end:?}");
        assert!(seen.leaders <= LEADERS && combiner.is_idle(), "{end:?}: {seen:?}");
        let panics = told.iter().filter(|result| result.is_err()).count();
        assert_eq!(panics, if end == End::Panics { LEADERS } else { 0 }, "{end:?}");
        for result in told.into_iter().flatten() {
            let failed = result.err().map(|e| e.errno());
            assert_eq!(failed, (end != End::Done).then_some(errno::EIO), "{end:?}");
        }
    }
}

/// While no leader has its turn at the handle, two batches begin. All other jobs gather in the
/// queue, and leave it in as few batches as there can be.
#[test]
fn batches_do_not_pile_up_at_the_handle() {
    const JOBS: usize = 600;
    let (_, _volume, files) = volume(Op::Write, JOBS);
    let combiner = &files[0].inode().fs.combiner;
    let before = combiner.seen();
    let begun = || combiner.seen().batches - before.batches;
    let held_up = thread::scope(|scope| {
        let spawn = |file| scope.spawn(move || sync(file, 4096).unwrap().unwrap());
        let handle = combiner.handle.lock();
        spawn(&files[0]);
        wait_until(|| begun() >= 1);
        files[1..5].iter().for_each(|file| drop(spawn(file)));
        wait_until(|| begun() >= 2);
        files[5..].iter().for_each(|file| drop(spawn(file)));
        wait_until(|| combiner.seen().jobs - before.jobs == JOBS);
        let held_up = begun();
        drop(handle);
        held_up
    });
    assert_eq!(held_up, LEADERS, "batches that wait for the handle");
    let seen = combiner.seen();
    assert_eq!((begun(), seen.late), (LEADERS + (JOBS - 5).div_ceil(MOST_JOBS), 0));
    assert!(seen.leaders <= LEADERS && combiner.is_idle(), "{seen:?}");
}

/// The first flush of a commit is held. All jobs that come meanwhile are in the next commit.
#[test]
fn a_job_waits_for_the_commit_under_way_and_one_more() {
    const JOBS: usize = 32;
    let (device, volume, files) = volume(Op::Flush, JOBS);
    let combiner = &files[0].inode().fs.combiner;
    let jobs_before = combiner.seen().jobs;
    let commits = || volume.stats().journal.commits;
    let commits_before = commits();
    device.close();
    thread::scope(|scope| {
        let spawn = |file| scope.spawn(move || sync(file, 4096).unwrap().unwrap());
        spawn(&files[0]);
        wait_until(|| device.held() == 1);
        files[1..].iter().for_each(|file| drop(spawn(file)));
        wait_until(|| combiner.seen().jobs - jobs_before == JOBS && combiner.is_idle());
        // Each batch has had its turn. Behind the last one, all changes are in the transaction.
        drop(combiner.handle.lock());
        device.open(End::Done);
    });
    assert_eq!(commits() - commits_before, 2);
    assert_eq!(combiner.seen().late, 0);
}

/// Without a gate: threads are asked to lead while others take their jobs.
#[test]
fn no_job_is_late_where_threads_sync_again_and_again() {
    const THREADS: usize = 24;
    let (_, _volume, files) = volume(Op::Flush, THREADS);
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                for round in 0..50 {
                    file.write_at(&[MARK; 4096], round * 8192).unwrap();
                    if round % 2 == 0 { file.sync_all() } else { file.sync_data() }.unwrap();
                }
            });
        }
    });
    let combiner = &files[0].inode().fs.combiner;
    let seen = combiner.seen();
    assert!(seen.late == 0 && seen.leaders <= LEADERS && combiner.is_idle(), "{seen:?}");
}
