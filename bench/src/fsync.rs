//! Threads that each write 16 KiB at random places of a sparse file of their own, and fsync each
//! write.
//!
//! Every variant gets the backing file in turn, formatted anew. lanefs is opened without any
//! option. The latency of each fsync is kept, so that quantiles are exact.
//!
//! The kernel's file systems have a loop device below them, and lanefs has none. The controls show
//! what the loop device costs: raw direct I/O and lanefs by direct I/O, each on the backing file
//! and on a loop device over it. They are in no target.

use crate::report::{Goal, Report};
use crate::turns::rotated;
use lanefs_device::AlignedBuf;
use lanefs_lab::load::{Latencies, more_open_files, run, sparse_files};
use lanefs_lab::store::{
    Backing, Contender, Handle, ext4, lanefs, lanefs_default, lanefs_over_loop, raw, raw_over_loop, xfs,
};
use lanefs_lab::{Outcome, Random};
use lanefs_stats::Histogram;
use rustix::fs::{major, minor, stat};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The numbers of threads of the goals.
pub const THREADS: [usize; 6] = [1, 4, 16, 64, 256, 2048];
/// The numbers of threads at which the controls run.
const CONTROLLED: [usize; 2] = [1, 64];

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

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Own,
    Peer,
    /// It shows what a loop device costs.
    Control,
}

/// A variant of the series.
struct Variant {
    role: Role,
    contender: Contender,
}

impl Variant {
    fn runs_at(&self, threads: usize) -> bool {
        self.role != Role::Control || CONTROLLED.contains(&threads)
    }
}

fn variants() -> Vec<Variant> {
    [
        (Role::Own, lanefs_default("lanefs", 128, |o| o)),
        (Role::Peer, ext4("ext4", 128, "dioread_nolock")),
        (Role::Peer, ext4("ext4 lock", 128, "dioread_lock")),
        (Role::Peer, xfs()),
        (Role::Control, raw()),
        (Role::Control, raw_over_loop()),
        (Role::Control, lanefs("lanefs io=direct", 128, |o| o)),
        (Role::Control, lanefs_over_loop("lanefs over loop", 128)),
    ]
    .map(|(role, contender)| Variant { role, contender })
    .into()
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
/// The figures that the controls show: the first ones.
const OF_CONTROLS: usize = 3;

/// A figure is `None` where it could not be counted.
type Figures = [Option<f64>; FIGURES.len()];

/// What the process, the disk and the threads of a run have counted at some time.
struct Counts {
    fsyncs: u64,
    process: ProcessCounts,
    writes: Option<u64>,
    flushes: Option<u64>,
}

impl Counts {
    fn now(plan: &Plan, disk: &Path, fsyncs: &AtomicU64) -> Self {
        // A file system need not be on one block device, and older kernels count no flushes.
        let disk = fs::read_to_string(disk).unwrap_or_default();
        let field = |n: usize| disk.split_whitespace().nth(n).and_then(|word| word.parse().ok());
        let (writes, flushes) = (field(4), field(15));
        Self { fsyncs: fsyncs.load(Ordering::SeqCst), process: (plan.counts)(), writes, flushes }
    }

    /// Returns the counts since `before`, for each fsync since then: `None` where there was none,
    /// as in a run that ended before the window began.
    fn since(&self, before: &Self) -> [Option<f64>; 5] {
        let (now, old) = (&self.process, &before.process);
        let all = [
            Some(now.sleeps.saturating_sub(old.sleeps)),
            Some(now.allocations.saturating_sub(old.allocations)),
            Some(now.faults.saturating_sub(old.faults)),
            self.writes.zip(before.writes).map(|(now, old)| now.saturating_sub(old)),
            self.flushes.zip(before.flushes).map(|(now, old)| now.saturating_sub(old)),
        ];
        let fsyncs = self.fsyncs.checked_sub(before.fsyncs).filter(|fsyncs| *fsyncs > 0);
        all.map(|count| Some(count? as f64 / fsyncs? as f64))
    }
}

/// Returns the file with the counts of the disk that `path` is on: of the whole disk, because the
/// kernel counts no flushes of a partition.
fn disk_counts(path: &Path) -> Outcome<PathBuf> {
    let device = stat(path)?.st_dev;
    let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    let is_partition = device.join("partition").exists();
    Ok(device.join(if is_partition { "../stat" } else { "stat" }))
}

/// Runs the loop on `files`, of `size` bytes each. The counts are those of one window, for the
/// process, the disk and the fsyncs alike. It begins when as many fsyncs are done as there are
/// threads, so that it has little of the start of the threads, and ends when the first thread
/// stops.
fn measured(
    plan: &Plan,
    disk: &Path,
    files: &[Box<dyn Handle>],
    size: u64,
    time: Duration,
) -> Outcome<Figures> {
    let (all, done) = (Mutex::new(Latencies::new()), AtomicU64::new(0));
    let (before, after) = (OnceLock::new(), OnceLock::new());
    let rate = run(files.len(), time, |worker| {
        // Raw direct I/O asks for aligned memory.
        let mut data = AlignedBuf::zeroed(PIECE as usize);
        data.fill(1);
        let mut random = Random::new(worker.thread as u64);
        let mut mine = Latencies::new();
        while worker.go_on() {
            files[worker.thread].write(random.draw() % (size / PIECE) * PIECE, &data)?;
            mine.time(|| files[worker.thread].sync())?;
            worker.did(1);
            if done.fetch_add(1, Ordering::SeqCst) + 1 == files.len() as u64 {
                before.get_or_init(|| Counts::now(plan, disk, &done));
            }
        }
        after.get_or_init(|| Counts::now(plan, disk, &done));
        mine.add_to(&all);
        Ok(())
    })?;
    let mut all = Latencies::of_all(all);
    let costs = match (before.get(), after.get()) {
        (Some(before), Some(after)) => after.since(before),
        _ => [None; 5],
    };
    let [sleeps, allocations, faults, writes, flushes] = costs;
    let [half, most, tail] = [0.5, 0.99, 0.999].map(|q| Some(all.ms(q)));
    Ok([Some(rate), half, most, tail, sleeps, allocations, faults, writes, flushes])
}

/// Runs the series, adds its rows, and a target for each goal.
///
/// # Errors
/// Of any of the stores.
pub fn series(report: &mut Report, plan: &Plan) -> Outcome<()> {
    more_open_files();
    let backing = Backing::new(&plan.dir, FILES + (1 << 30))?;
    let disk = disk_counts(backing.path())?;
    if !disk.exists() {
        println!("no {}: no rows of device writes and flushes", disk.display());
    }
    let mut variants = variants();
    variants.retain(|variant| variant.contender.name.contains(&plan.only));
    // A virtual machine gets memory that it has not used lately only at the first touch: a short,
    // unmeasured run of each variant pays for that.
    for variant in &variants {
        if let Some(most) = plan.threads.iter().copied().filter(|&n| variant.runs_at(n)).max() {
            turn(plan, &disk, &backing, &variant.contender, most, plan.time / 4)?;
        }
    }
    for &threads in &plan.threads {
        let there: Vec<&Variant> = variants.iter().filter(|variant| variant.runs_at(threads)).collect();
        let mut samples: Vec<Vec<Figures>> = there.iter().map(|_| Vec::new()).collect();
        for number in rotated(plan.rounds, there.len()) {
            let contender = &there[number].contender;
            samples[number].push(turn(plan, &disk, &backing, contender, threads, plan.time)?);
        }
        add(report, threads, &there, &samples);
    }
    Ok(())
}

/// One variant's turn.
fn turn(
    plan: &Plan,
    disk: &Path,
    backing: &Backing,
    contender: &Contender,
    threads: usize,
    time: Duration,
) -> Outcome<Figures> {
    let because = |e| format!("{}, {threads} threads: {e}", contender.name);
    let size = (FILES / threads as u64).min(MOST) / PIECE * PIECE;
    let store = contender.set_up(backing).map_err(because)?;
    let files = sparse_files(&*store, threads, size, &Histogram::new()).map_err(because)?;
    let figures = measured(plan, disk, &files, size, time).map_err(because)?;
    drop(files);
    store.finish().map_err(because)?;
    Ok(figures)
}

/// Adds the rows of one number of threads, and the targets.
fn add(report: &mut Report, threads: usize, variants: &[&Variant], samples: &[Vec<Figures>]) {
    let of = |control: bool| {
        let both = variants.iter().zip(samples);
        both.filter(move |(variant, _)| (variant.role == Role::Control) == control)
    };
    let mut medians: Vec<(Role, [f64; FIGURES.len()])> =
        of(false).map(|(variant, _)| (variant.role, Default::default())).collect();
    for (at, (what, unit)) in FIGURES.into_iter().enumerate() {
        for ((variant, samples), (_, medians)) in of(false).zip(&mut medians) {
            let name = variant.contender.name;
            medians[at] = row(report, (what, unit), name, threads, at, samples);
        }
    }
    for (at, (what, unit)) in FIGURES.into_iter().enumerate().take(OF_CONTROLS) {
        for (variant, samples) in of(true) {
            let case = format!("cost of a loop device: {what}");
            row(report, (case.as_str(), unit), variant.contender.name, threads, at, samples);
        }
    }
    let own = medians.iter().find(|(role, _)| *role == Role::Own).map(|(_, medians)| medians);
    let Some(own) = own else { return };
    let what = |what: &str| format!("fsync at {threads} threads: {what} over the best of the kernel's");
    let mut target = |name: &str, at: usize, goal, better: fn(f64, f64) -> f64| {
        let peers = medians.iter().filter(|(role, _)| *role == Role::Peer).map(|(_, peer)| peer[at]);
        if let Some(best) = peers.reduce(better) {
            report.target(&what(name), goal, own[at] / best);
        }
    };
    let rate = if threads >= 2048 { 2.0 } else { 1.2 };
    target("rate", RATE, Goal::AtLeast(rate), f64::max);
    target("p99", P99, Goal::AtMost(1.0), f64::min);
    target("p99.9", P999, Goal::AtMost(1.0), f64::min);
}

/// Adds a row of figure number `at`, unless no run could count it. Returns its median.
fn row(
    report: &mut Report,
    (case, unit): (&str, &'static str),
    variant: &str,
    threads: usize,
    at: usize,
    samples: &[Figures],
) -> f64 {
    let counted: Vec<f64> = samples.iter().filter_map(|figures| figures[at]).collect();
    if counted.is_empty() { 0.0 } else { report.row(case, variant, threads, &counted, unit) }
}
