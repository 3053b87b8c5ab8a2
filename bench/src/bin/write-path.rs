//! The write path against raw I/O and the kernel's ext4 and XFS, on one disk, in one run.
//!
//! `make bench-write-path`; `ARGS="overwrite storm"` for some cases only, `ARGS=--long` for the
//! sizes of the goals; `ARGS=--help` tells all.

use clap::Parser;
use lanefs_bench::cases::{self, Case};
use lanefs_bench::report::Report;
use lanefs_bench::setup::own_folder;
use lanefs_bench::write_path::{Bench, Outcome, cached, overwrite, pmem, storm, stream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const CASES: [Case<Bench>; 8] = [
    ("overwrite", overwrite::overwrite),
    ("fdatasync", overwrite::fdatasync),
    ("pmem", pmem::pmem),
    ("tiny", cached::tiny),
    ("mixed", cached::mixed),
    ("memory", cached::memory),
    ("sequential", stream::sequential),
    ("storm", storm::storm),
];

/// The write path against raw I/O and the kernel's ext4 and XFS
#[derive(Debug, Parser)]
struct Args {
    /// Only these cases
    cases: Vec<String>,
    /// The sizes of the goals, and longer loops
    #[arg(long)]
    long: bool,
    /// How long a loop lasts (0.5, with --long 2); a storm lasts four times as long
    #[arg(long)]
    seconds: Option<f64>,
    /// How often each is run (3, with --long 5)
    #[arg(long)]
    rounds: Option<usize>,
    /// On the disk that this folder is on; its file system must take direct I/O
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

fn main() -> ExitCode {
    cases::end("write-path", start(Args::parse()))
}

fn start(args: Args) -> Outcome<()> {
    let chosen = cases::choose(&CASES, &args.cases)?;
    let own = own_folder(args.dir, &["mke2fs", "mkfs.xfs", "losetup", "mount"])?;
    let mut bench = Bench {
        dir: own.path().to_owned(),
        memory: PathBuf::from("/dev/shm"),
        time: Duration::try_from_secs_f64(args.seconds.unwrap_or(if args.long { 2.0 } else { 0.5 }))?,
        rounds: args.rounds.unwrap_or(if args.long { 5 } else { 3 }).max(1),
        long: args.long,
        report: Report::new("write-path"),
    };
    cases::run(&mut bench, &chosen)?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}
