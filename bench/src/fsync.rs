//! Threads that each write 16 KiB at random places of a sparse file of their own, and fsync each
//! write.
//!
//! Every variant gets the backing file in turn, formatted anew. Each fsync is timed to the
//! nanosecond and kept, so quantiles are exact: the buckets of a [`lanefs_stats::Histogram`] are a
//! quarter wide, which is more than the difference that a target asks for.

use crate::report::{Goal, Report};
use lanefs_lab::load::{more_open_files, run, sparse_files};
use lanefs_lab::store::{Backing, Contender, Handle, ext4, lanefs, xfs};
use lanefs_lab::{Outcome, Random};
use lanefs_stats::Histogram;
use rustix::fs::{major, minor, stat};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The numbers of threads of the goals.
pub const THREADS: [usize; 6] = [1, 4, 16, 64, 256, 2048];

const PIECE: u64 = 16 << 10;
/// Bytes of all files together.
const FILES: u64 = 4 << 30;
/// Bytes of a file at most.
const MOST: u64 = 64 << 20;

/// What is run.
#[derive(Debug)]
pub struct Plan {
    /// Where the backing file is made.
    pub dir: PathBuf,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// A part of the names of the variants that are run.
    pub only: String,
    /// How long each loop runs.
    pub time: Duration,
    /// How often each variant gets its turn.
    pub rounds: usize,
    /// Counts of the process.
    pub counts: fn() -> ProcessCounts,
}

/// Counts of the process so far, all threads together, those that have ended too.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessCounts {
    /// How often a thread went to sleep.
    pub sleeps: u64,
    /// Pages that were mapped at their first touch.
    pub faults: u64,
    /// Allocations by the allocator.
    pub allocations: u64,
}

/// The names of the figures of a run, and their units.
const FIGURES: [(&str, &str); 9] = [
    ("16 KiB and fsync", "/s"),
    ("fsync p50", "ms"),
    ("fsync p99", "ms"),
    ("fsync p99.9", "ms"),
    ("for one fsync: sleeps", ""),
    ("for one fsync: allocations", ""),
    ("for one fsync: page faults", ""),
    ("for one fsync: device writes", ""),
    ("for one fsync: device flushes", ""),
];

const RATE: usize = 0;
const P99: usize = 2;
const P999: usize = 3;

type Figures = [f64; FIGURES.len()];

/// The cost of all fsyncs of a run: what the process and the disk counted meanwhile.
struct Counts {
    process: ProcessCounts,
    writes: u64,
    flushes: u64,
}

impl Counts {
    fn now(plan: &Plan, disk: &Path) -> Self {
        let disk = fs::read_to_string(disk).unwrap_or_default();
        let field = |n: usize| disk.split_whitespace().nth(n).and_then(|w| w.parse().ok()).unwrap_or(0);
        Self { process: (plan.counts)(), writes: field(4), flushes: field(15) }
    }

    /// Returns the counts since `before`, for each of `count` fsyncs.
    fn since(&self, before: &Self, count: usize) -> [f64; 5] {
        let (now, old) = (&self.process, &before.process);
        let all = [
            now.sleeps - old.sleeps,
            now.allocations - old.allocations,
            now.faults - old.faults,
            self.writes - before.writes,
            self.flushes - before.flushes,
        ];
        all.map(|n| n as f64 / count.max(1) as f64)
    }
}

/// Returns the file with the counts of the disk that `path` is on.
fn disk_counts(path: &Path) -> Outcome<PathBuf> {
    let device = stat(path)?.st_dev;
    Ok(PathBuf::from(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device))))
}

/// Runs the loop on `files`, of `size` bytes each. The first thread takes the counts: so they have
/// nothing of the start of the threads.
fn storm(plan: &Plan, disk: &Path, files: &[Box<dyn Handle>], size: u64) -> Outcome<Figures> {
    let times = Mutex::new(Vec::<u64>::new());
    let (before, after) = (OnceLock::new(), OnceLock::new());
    let rate = run(files.len(), plan.time, |worker| {
        let data = vec![1; PIECE as usize];
        let mut random = Random::new(worker.thread as u64);
        let mut mine = Vec::with_capacity(1 << 12);
        while worker.go_on() {
            files[worker.thread].write(random.draw() % (size / PIECE) * PIECE, &data)?;
            let began = Instant::now();
            files[worker.thread].sync()?;
            mine.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            worker.did(1);
            if worker.thread == 0 {
                before.get_or_init(|| Counts::now(plan, disk));
            }
        }
        if worker.thread == 0 {
            after.get_or_init(|| Counts::now(plan, disk));
        }
        times.lock().unwrap_or_else(PoisonError::into_inner).append(&mut mine);
        Ok(())
    })?;
    let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    let quantile = |q: f64| {
        let rank = (q * times.len() as f64).ceil().max(1.0) as usize;
        times.get(rank - 1).map_or(0.0, |nanos| *nanos as f64 / 1e6)
    };
    let (Some(before), Some(after)) = (before.get(), after.get()) else {
        return Err("the first thread has done no fsync".into());
    };
    let [sleeps, allocations, faults, writes, flushes] = after.since(before, times.len());
    let (half, most, tail) = (quantile(0.5), quantile(0.99), quantile(0.999));
    Ok([rate, half, most, tail, sleeps, allocations, faults, writes, flushes])
}

/// Runs the series, adds its rows, and a target for each goal.
///
/// # Errors
/// Of any of the stores.
pub fn series(report: &mut Report, plan: &Plan) -> Outcome<()> {
    more_open_files();
    let backing = Backing::new(&plan.dir, FILES + (1 << 30))?;
    let disk = disk_counts(backing.path())?;
    let mut variants = vec![
        lanefs("lanefs", 128, |o| o),
        ext4("ext4", 128, "dioread_nolock"),
        ext4("ext4 lock", 128, "dioread_lock"),
        xfs(),
    ];
    variants.retain(|variant| variant.name.contains(&plan.only));
    let most = plan.threads.iter().copied().max().unwrap_or(1);
    if let Some(first) = variants.first() {
        // A virtual machine gets memory that it has not used lately only at the first touch: an
        // unmeasured run pays for that.
        turn(plan, &disk, &backing, first, most)?;
    }
    for &threads in &plan.threads {
        let mut samples: Vec<Vec<Figures>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..plan.rounds {
            // Each round begins with another one.
            for number in (0..variants.len()).map(|turn| (round + turn) % variants.len()) {
                samples[number].push(turn(plan, &disk, &backing, &variants[number], threads)?);
            }
        }
        add(report, threads, &variants, &samples);
    }
    Ok(())
}

/// One variant's turn.
fn turn(
    plan: &Plan,
    disk: &Path,
    backing: &Backing,
    variant: &Contender,
    threads: usize,
) -> Outcome<Figures> {
    let because = |e| format!("{}, {threads} threads: {e}", variant.name);
    let size = (FILES / threads as u64).min(MOST) / PIECE * PIECE;
    let store = variant.set_up(backing).map_err(because)?;
    let files = sparse_files(&*store, threads, size, &Histogram::new()).map_err(because)?;
    let figures = storm(plan, disk, &files, size).map_err(because)?;
    drop(files);
    store.finish().map_err(because)?;
    Ok(figures)
}

/// Adds the rows of one number of threads, and the targets.
fn add(report: &mut Report, threads: usize, variants: &[Contender], samples: &[Vec<Figures>]) {
    let mut medians = vec![Figures::default(); variants.len()];
    for (at, (what, unit)) in FIGURES.into_iter().enumerate() {
        for ((variant, samples), medians) in variants.iter().zip(samples).zip(&mut medians) {
            let of: Vec<f64> = samples.iter().map(|figures| figures[at]).collect();
            medians[at] = report.row(what, variant.name, threads, &of, unit);
        }
    }
    let [own, peers @ ..] = &medians[..] else { return };
    if peers.is_empty() {
        return;
    }
    let best = |at: usize, better: fn(f64, f64) -> f64| {
        peers.iter().map(|peer| peer[at]).reduce(better).unwrap_or(0.0)
    };
    let what = |what: &str| format!("fsync at {threads} threads: {what} over the best of the kernel's");
    let goal = if threads >= 2048 { 2.0 } else { 1.2 };
    report.target(&what("rate"), Goal::AtLeast(goal), own[RATE] / best(RATE, f64::max));
    report.target(&what("p99"), Goal::AtMost(1.0), own[P99] / best(P99, f64::min));
    report.target(&what("p99.9"), Goal::AtMost(1.0), own[P999] / best(P999, f64::min));
}
