//! Thousands of threads that each write 16 KiB at random places of a sparse file of their own, then
//! fsync, then fdatasync.
//!
//! The limit is a bare loop of the same writes by direct I/O, with group commit: one leader writes
//! 256 KiB of a log and flushes for all waiting threads.

use super::{Latencies, run};
use crate::store::{Handle, Store};
use crate::{Outcome, Random};
use lanefs_device::AlignedBuf;
use lanefs_stats::{Histogram, Snapshot};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

const PIECE: u64 = 16 << 10;
const LOG: u64 = 128 << 20;
const LOG_WRITE: usize = 256 << 10;

/// The figures of a run.
#[derive(Debug, Clone)]
pub struct Storm {
    /// Writes a second.
    pub rate: f64,
    /// Nanoseconds of each write.
    pub write: Snapshot,
    /// Nanoseconds of each fsync.
    pub fsync: Snapshot,
    /// The same, exact.
    pub fsyncs: Latencies,
}

/// Opens files that are all hole, `size` bytes each, and makes them durable. `open` records how
/// long each open took.
///
/// # Errors
/// The errors of opening.
pub fn sparse_files(
    store: &dyn Store,
    count: usize,
    size: u64,
    open: &Histogram,
) -> Outcome<Vec<Box<dyn Handle>>> {
    let files: Vec<_> =
        (0..count).map(|n| open.time(|| store.file(n, size, false))).collect::<Outcome<_>>()?;
    for file in &files {
        file.set_len(size)?;
    }
    // One commit has all of the files.
    if let Some(file) = files.last() {
        file.sync()?;
    }
    Ok(files)
}

/// Runs the storm: each thread has one of `files`, of `size` bytes.
///
/// # Errors
/// The errors of writing and syncing.
pub fn storm(files: &[Box<dyn Handle>], size: u64, time: Duration) -> Outcome<Storm> {
    let (write, fsync, fsyncs) = (Histogram::new(), Histogram::new(), Mutex::default());
    let rate = run(files.len(), time, |worker| {
        let data = vec![1; PIECE as usize];
        let mut random = Random::new(worker.thread as u64);
        let mut mine = Latencies::new();
        let file = &files[worker.thread];
        while worker.go_on() {
            write.time(|| file.write(random.draw() % (size / PIECE) * PIECE, &data))?;
            mine.time(|| fsync.time(|| file.sync()))?;
            file.sync_data()?;
            worker.did(1);
        }
        mine.add_to(&fsyncs);
        Ok(())
    })?;
    let fsyncs = Latencies::of_all(fsyncs);
    Ok(Storm { rate, write: write.snapshot(), fsync: fsync.snapshot(), fsyncs })
}

/// Runs the limit, on a file of `whole` bytes that takes direct I/O.
///
/// # Errors
/// The errors of writing and flushing.
pub fn bare_storm(file: &File, whole: u64, threads: usize, size: u64, time: Duration) -> Outcome<Storm> {
    let shared = SharedFlush { file, log: whole - LOG, state: Mutex::default(), ended: Condvar::new() };
    let (write, fsync, fsyncs) = (Histogram::new(), Histogram::new(), Mutex::default());
    let rate = run(threads, time, |worker| {
        let data = AlignedBuf::zeroed(PIECE as usize);
        let mut random = Random::new(worker.thread as u64);
        let mut mine = Latencies::new();
        let base = worker.thread as u64 * size;
        while worker.go_on() {
            write.time(|| file.write_all_at(&data, base + random.draw() % (size / PIECE) * PIECE))?;
            mine.time(|| fsync.time(|| shared.flush()))?;
            worker.did(1);
        }
        mine.add_to(&fsyncs);
        Ok(())
    })?;
    let fsyncs = Latencies::of_all(fsyncs);
    Ok(Storm { rate, write: write.snapshot(), fsync: fsync.snapshot(), fsyncs })
}

/// One flush for all waiting threads.
struct SharedFlush<'a> {
    file: &'a File,
    /// Where the log is.
    log: u64,
    state: Mutex<Flushes>,
    ended: Condvar,
}

#[derive(Default)]
struct Flushes {
    started: u64,
    done: u64,
    running: bool,
}

impl SharedFlush<'_> {
    /// Returns when a flush that began after this call has ended.
    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = state.started + 1;
        while state.done < needed && state.running {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.done >= needed {
            return Ok(());
        }
        state.started += 1;
        state.running = true;
        let mine = state.started;
        drop(state);
        let blocks = AlignedBuf::zeroed(LOG_WRITE);
        let at = self.log + mine % (LOG / LOG_WRITE as u64) * LOG_WRITE as u64;
        let result = self.file.write_all_at(&blocks, at).and_then(|()| self.file.sync_data());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running = false;
        // A failure ends the run; the waiting threads need not know of it.
        state.done = mine;
        self.ended.notify_all();
        result
    }
}

/// Raises the limit of open files: one for each thread is more than some machines allow at first.
pub fn more_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses it, the first open beyond the limit fails.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
