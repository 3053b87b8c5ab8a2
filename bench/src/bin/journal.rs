//! The journal under load: very many threads that each start a handle, change a few blocks, stop
//! and wait for their commit, on a small and on a large log, in memory and in a file.
//!
//! `cargo run --release -p lanefs-bench --bin journal -- [--quick] [--runs N] [--only WORD]`. What
//! is compared is the number of threads and the size of the log: neither may make it collapse.

use clap::Parser;
use lanefs_bench::cases::{self, Effort};
use lanefs_bench::report::{Goal, Report};
use lanefs_device::{BlockDevice, FileOptions, MemDevice};
use lanefs_format::jbd2::{Compat, Incompat, Superblock};
use lanefs_journal::{Journal, LogConfig, LogRun, Options, Stats};
use lanefs_lab::Outcome;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;
/// Metadata blocks that the handles choose from, and how many of those all of them want.
const BLOCKS: u64 = 2048;
const HOT: u64 = 64;
const CREDITS: u32 = 12;

/// The operation that a thread repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    /// A handle, and its commit: an fsync.
    Sync,
    /// Only handles.
    Handles,
}

/// The journal under load
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    effort: Effort,
    /// Only cases with this in their names
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    cases::end("journal", start(Args::parse()))
}

fn start(Args { effort, only }: Args) -> Outcome<()> {
    let runs = effort.runs(3);
    let time = Duration::from_secs(if effort.quick { 1 } else { 3 });
    let dir = tempfile::tempdir()?;
    let mut report = Report::new("journal");
    for work in [Work::Sync, Work::Handles] {
        for medium in ["mem", "file", "direct"] {
            let mut rates = Vec::new();
            for log_mib in [16u32, 128] {
                for threads in [16, 256, 2048] {
                    let case = format!("{work:?} {medium} {log_mib} MiB").to_lowercase();
                    if !format!("{case} {threads}").contains(&only) {
                        continue;
                    }
                    let mut samples = Vec::new();
                    let mut last = None;
                    for _ in 0..runs {
                        let size = u64::from(log_mib << 20) + (BLOCKS + 1) * u64::from(BLOCK);
                        let device: Arc<dyn BlockDevice> = match medium {
                            "mem" => Arc::new(MemDevice::new(size as usize)),
                            _ => Arc::new(
                                FileOptions::new()
                                    .direct(medium == "direct")
                                    .create(dir.path().join("volume"), size)?,
                            ),
                        };
                        let (ops, stats) = run(&device, log_mib, threads, time, work)?;
                        samples.push(ops);
                        last = Some(stats);
                    }
                    rates.push(report.row(&case, "ops", threads, &samples, "/s"));
                    if let Some(stats) = last {
                        tell(&mut report, &case, threads, &stats);
                    }
                }
            }
            if let [_, _, small, _, _, large] = rates[..] {
                let what =
                    format!("{work:?} {medium}: 16 MiB log against 128 MiB, 2048 threads").to_lowercase();
                report.target(&what, Goal::AtLeast(0.8), small / large);
            }
        }
    }
    println!("\n{}", report.finish()?.display());
    Ok(())
}

/// The phases of the last run.
fn tell(report: &mut Report, case: &str, threads: usize, stats: &Stats) {
    let times = &stats.times;
    for (name, time) in [
        ("start", &times.start),
        ("credit_wait", &times.credit_wait),
        ("commit_wait", &times.commit_wait),
        ("commit", &times.commit),
        ("lock_down", &times.lock_down),
        ("log_write", &times.log_write),
        ("flush", &times.flush),
        ("commit_block", &times.commit_block),
        ("checkpoint", &times.checkpoint),
    ] {
        println!("    {name:<13} {time}");
    }
    let per_commit = stats.handles.checked_div(stats.commits).unwrap_or(0);
    println!(
        "    {} handles, {} waits, {} commits of {per_commit} handles and {} blocks, {} checkpoints, {} flushes",
        stats.handles,
        stats.waits,
        stats.commits,
        stats.blocks_logged.checked_div(stats.commits).unwrap_or(0),
        stats.checkpoints,
        stats.flushes
    );
    let share = stats.waits as f64 / stats.handles.max(1) as f64;
    // What a handle in a hundred waits at least.
    let p99 = if share < 0.01 { 0 } else { times.credit_wait.quantile(1.0 - 0.01 / share) };
    report.row(case, "start p99", threads, &[p99 as f64 / 1e3], "us");
}

/// Operations a second.
fn run(
    device: &Arc<dyn BlockDevice>,
    log_mib: u32,
    threads: usize,
    time: Duration,
    work: Work,
) -> Outcome<(f64, Stats)> {
    let log_blocks = (log_mib << 20) / BLOCK;
    let mut sb = Superblock::new(BLOCK, log_blocks, [7; 16]);
    sb.set_features(Compat::empty(), Incompat::CSUM_V3 | Incompat::BIT64);
    device.write_at(&sb.to_bytes(), (BLOCKS + 1) * u64::from(BLOCK))?;
    let options = Options {
        log: Some(LogConfig {
            runs: vec![LogRun { logical: 0, physical: BLOCKS + 1, len: log_blocks }],
            metadata_csum: true,
            is_64bit: true,
        }),
        cache_blocks: BLOCKS as usize * 2,
        ..Options::new(BLOCK)
    };
    let journal = Journal::open(Arc::clone(device), options)?;
    (0..BLOCKS).try_for_each(|block| journal.read(block).map(drop))?;
    let (ops, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|seed| {
                let (journal, ops, stop) = (&journal, &ops, &stop);
                let worker = move || worker(journal, work, seed as u64, ops, stop);
                thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, worker)
            })
            .collect::<Result<_, _>>()?;
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Outcome::Ok(())
    })?;
    let rate = ops.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    let stats = journal.stats();
    journal.close()?;
    Ok((rate, stats))
}

fn worker(journal: &Journal, work: Work, seed: u64, ops: &AtomicU64, stop: &AtomicBool) -> Outcome<()> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let blocks = [rng.random_range(0..HOT), rng.random_range(0..BLOCKS), rng.random_range(0..BLOCKS)];
        let handle = journal.start(CREDITS)?;
        for block in blocks {
            let buffer = journal.read(block)?;
            handle.write(&buffer)?[..8].copy_from_slice(&seed.to_le_bytes());
        }
        let tid = handle.tid();
        handle.stop();
        if work == Work::Sync {
            journal.commit(tid)?;
        }
        done += 1;
    }
    ops.fetch_add(done, Ordering::Relaxed);
    Ok(())
}
