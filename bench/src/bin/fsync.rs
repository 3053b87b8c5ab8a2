//! fsync at 1 to 2048 threads, beside the kernel's ext4 and XFS on one disk, in turns in one run:
//! rate, p50, p99 and p99.9, and the cost of one fsync in sleeps, allocations, page faults, device
//! writes and flushes. At 1 and 64 threads it also shows what the peers' loop device costs.
//!
//! `make bench-fsync`; `ARGS="--threads 256"` for one number of threads, `ARGS=--help` tells all.

use clap::Parser;
use lanefs_bench::cases;
use lanefs_bench::fsync::{self, Plan, ProcessCounts};
use lanefs_bench::report::Report;
use lanefs_bench::setup::own_folder;
use lanefs_lab::Outcome;
use lanefs_stats::Counter;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// An allocator that counts allocations.
struct Counting;

static ALLOCATIONS: Counter = Counter::new();

// SAFETY: hands everything to `System`, and counts.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.add(1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns the counts of the process.
#[allow(unsafe_code)]
fn counts() -> ProcessCounts {
    // SAFETY: numbers, for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes into `usage` alone.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    ProcessCounts {
        sleeps: usage.ru_nvcsw.cast_unsigned(),
        faults: usage.ru_minflt.cast_unsigned(),
        allocations: ALLOCATIONS.get(),
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// fsync at 1 to 2048 threads beside the kernel's ext4 and XFS
#[derive(Debug, Parser)]
struct Args {
    /// These numbers of threads
    #[arg(long, num_args = 1.., default_values_t = fsync::THREADS)]
    threads: Vec<usize>,
    /// Only variants whose names contain this
    #[arg(long, default_value = "")]
    only: String,
    /// How long a loop lasts
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// How often each is run
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// On the disk that this folder is on; its file system must take direct I/O
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

fn main() -> ExitCode {
    cases::end("fsync", start(Args::parse()))
}

fn start(args: Args) -> Outcome<()> {
    let own = own_folder(args.dir, &["mke2fs", "mkfs.xfs", "losetup", "mount"])?;
    let plan = Plan {
        dir: own.path().to_owned(),
        threads: args.threads,
        only: args.only,
        time: Duration::try_from_secs_f64(args.seconds)?,
        rounds: args.rounds.max(1),
        counts,
    };
    let mut report = Report::new("fsync");
    fsync::series(&mut report, &plan)?;
    println!("\n{}", report.finish()?.display());
    Ok(())
}
