//! Thousands of threads that each write 16 KiB at random places of a sparse file of their own, then fsync, then fdatasync.
//!
//! The limit is a bare loop of the same writes by direct I/O, with one flush for all who wait, before which the one who
//! flushes writes 256 KiB of a log.

use super::backing::Backing;
use super::store::{Handle, Store, ext4, lanefs, open_raw, xfs};
use super::work::run;
use super::{Bench, Outcome, Variant};
use crate::rangelock::work::Random;
use crate::report::{Goal, Report};
use lanefs::Writeback;
use lanefs_device::AlignedBuf;
use lanefs_journal::Times;
use lanefs_stats::{Histogram, Snapshot};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

const PIECE: u64 = 16 << 10;
const SIZE: u64 = 4 << 20;
const LOG: u64 = 128 << 20;
const LOG_WRITE: usize = 256 << 10;

/// What a run gave: writes a second, and quantiles of fsync in milliseconds.
struct Storm {
    rate: f64,
    half: f64,
    most: f64,
}

/// The figures of a variant, over the rounds.
#[derive(Default)]
struct Samples {
    rate: Vec<f64>,
    half: Vec<f64>,
    most: Vec<f64>,
}

impl Samples {
    fn add(&mut self, storm: &Storm) {
        self.rate.push(storm.rate);
        self.half.push(storm.half);
        self.most.push(storm.most);
    }

    /// Adds the rows; the medians of the rate and of the slowest fsync but one in a hundred.
    fn report(&self, report: &mut Report, name: &str, threads: usize) -> (f64, f64) {
        let rate = report.row("storm of fsyncs, writes", name, threads, &self.rate, "/s");
        report.row("storm of fsyncs, fsync p50", name, threads, &self.half, "ms");
        (rate, report.row("storm of fsyncs, fsync p99", name, threads, &self.most, "ms"))
    }
}

/// The storm.
///
/// # Errors
/// Of any of the stores.
pub fn storm(bench: &mut Bench) -> Outcome<()> {
    more_open_files();
    let counts: &[usize] = if bench.long { &[256, 2048] } else { &[2048] };
    let most = counts.iter().copied().max().unwrap_or(0);
    // Room for the largest of the journals.
    let backing = Backing::new(&bench.dir, most as u64 * SIZE + (2 << 30))?;
    let variants = [
        lanefs("mapafter", 128, |o| o),
        lanefs("lanefs lock", 128, |o| o.writeback(Writeback::DioreadLock)),
        lanefs("lanefs nolock", 128, |o| o.writeback(Writeback::DioreadNolock)),
        lanefs("mapafter, log 16M", 16, |o| o),
        ext4("ext4 lock", 128, "dioread_lock"),
        ext4("ext4 nolock", 128, "dioread_nolock"),
        ext4("ext4 nolock, 1G", 1024, "dioread_nolock"),
        xfs(),
    ];
    let time = bench.time * 16;
    let rounds = bench.rounds.div_ceil(3);
    for &threads in counts {
        let mut limit = Samples::default();
        let mut samples: Vec<Samples> = variants.iter().map(|_| Samples::default()).collect();
        let (mut waits, mut starts) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            limit.add(&bare(&backing, threads, time)?);
            for (number, (variant, samples)) in variants.iter().zip(&mut samples).enumerate() {
                let (storm, journal) =
                    one(&backing, variant, threads, time).map_err(|e| format!("{}: {e}", variant.name))?;
                samples.add(&storm);
                if let (0, Some(times)) = (number, journal) {
                    waits.push(ms(&times.credit_wait, 0.99));
                    starts.push(ms(&times.start, 0.99));
                }
            }
        }
        let report = &mut bench.report;
        let (limit, _) = limit.report(report, "the limit", threads);
        let of: Vec<(f64, f64)> =
            variants.iter().zip(&samples).map(|(v, s)| s.report(report, v.name, threads)).collect();
        let best = of[4..].iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
        let quickest = of[4..].iter().map(|(_, most)| *most).fold(f64::MAX, f64::min);
        let what = |what: &str| format!("storm of {threads}: {what}");
        report.target(&what("over the limit"), Goal::AtLeast(0.6), of[0].0 / limit);
        report.target(&what("over the best of the kernel's"), Goal::AtLeast(2.0), of[0].0 / best);
        report.target(
            &what("fsync p99 over the best of the kernel's"),
            Goal::AtMost(0.5),
            of[0].1 / quickest,
        );
        report.target(&what("mapafter over its own dioread_lock"), Goal::AtLeast(1.0), of[0].0 / of[1].0);
        report.target(&what("log of 16 MiB over log of 128 MiB"), Goal::AtLeast(0.8), of[3].0 / of[0].0);
        report.row("storm of fsyncs, handle start p99", "mapafter", threads, &starts, "ms");
        let wait = report.row("storm of fsyncs, credit wait p99", "mapafter", threads, &waits, "ms");
        report.target(&what("p99 of those that wait for credits, ms"), Goal::AtMost(1.0), wait);
    }
    Ok(())
}

/// One variant's turn, and what its journal timed, where it tells.
fn one(
    backing: &Backing,
    variant: &Variant,
    threads: usize,
    time: Duration,
) -> Outcome<(Storm, Option<Times>)> {
    let store = (variant.set_up)(backing)?;
    let files = sparse(&*store, threads)?;
    let storm = of_files(&files, threads, time)?;
    let times = store.volume().map(|volume| volume.stats().journal.times);
    drop(files);
    store.finish()?;
    Ok((storm, times))
}

fn sparse(store: &dyn Store, count: usize) -> Outcome<Vec<Box<dyn Handle>>> {
    let files: Vec<_> = (0..count).map(|n| store.file(n, SIZE, false)).collect::<Outcome<_>>()?;
    for file in &files {
        file.set_len(SIZE)?;
    }
    // A commit that has all of them.
    if let Some(file) = files.last() {
        file.sync()?;
    }
    Ok(files)
}

fn of_files(files: &[Box<dyn Handle>], threads: usize, time: Duration) -> Outcome<Storm> {
    let fsync = Histogram::new();
    let rate = run(threads, time, |worker| {
        let data = vec![1; PIECE as usize];
        let mut random = Random::new(worker.thread as u64);
        let file = &files[worker.thread];
        while worker.go_on() {
            file.write(random.draw() % (SIZE / PIECE) * PIECE, &data)?;
            fsync.time(|| file.sync())?;
            file.sync_data()?;
            worker.did(1);
        }
        Ok(())
    })?;
    Ok(figures(rate, &fsync))
}

fn figures(rate: f64, fsync: &Histogram) -> Storm {
    let fsync = fsync.snapshot();
    Storm { rate, half: ms(&fsync, 0.5), most: ms(&fsync, 0.99) }
}

/// A quantile in milliseconds.
fn ms(times: &Snapshot, q: f64) -> f64 {
    times.quantile(q) as f64 / 1e6
}

fn bare(backing: &Backing, threads: usize, time: Duration) -> Outcome<Storm> {
    let file = open_raw(backing)?;
    let shared = SharedFlush {
        file: &file,
        log: backing.size() - LOG,
        state: Mutex::default(),
        ended: Condvar::new(),
    };
    let fsync = Histogram::new();
    let rate = run(threads, time, |worker| {
        let data = AlignedBuf::zeroed(PIECE as usize);
        let mut random = Random::new(worker.thread as u64);
        let base = worker.thread as u64 * SIZE;
        while worker.go_on() {
            file.write_all_at(&data, base + random.draw() % (SIZE / PIECE) * PIECE)?;
            fsync.time(|| shared.flush())?;
            worker.did(1);
        }
        Ok(())
    })?;
    Ok(figures(rate, &fsync))
}

/// One flush for all who wait.
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
        // A failure ends the run; those that wait need not know.
        state.done = mine;
        self.ended.notify_all();
        result
    }
}

/// A file for each thread is more than some machines allow at first.
fn more_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, the first file too many says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
