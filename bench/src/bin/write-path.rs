//! The write path against raw I/O and the kernel's ext4 and XFS, on one disk, in one run.
//!
//! `make bench-write-path`; `ARGS="overwrite storm"` for some cases only, `ARGS=--long` for the sizes of the goals and more
//! rounds, `ARGS="--seconds 2 --rounds 5"` for loops of another length and number (0.5 and 3; a storm lasts 16 times as long). `--dir DIR`
//! says on which disk: its file system must take direct I/O.

use lanefs_bench::report::Report;
use lanefs_bench::write_path::{Bench, Outcome, cached, overwrite, pmem, storm, stream};
use lanefs_tests::{require_root, require_tools};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

type Case = fn(&mut Bench) -> Outcome<()>;

const CASES: [(&str, Case); 8] = [
    ("overwrite", overwrite::overwrite),
    ("fdatasync", overwrite::fdatasync),
    ("pmem", pmem::pmem),
    ("tiny", cached::tiny),
    ("mixed", cached::mixed),
    ("memory", cached::memory),
    ("sequential", stream::sequential),
    ("storm", storm::storm),
];

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("write-path: {e}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Outcome<()> {
    let (mut seconds, mut rounds, mut long, mut dir) = (None, None, false, std::env::temp_dir());
    let mut chosen: Vec<(&str, Case)> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match &*arg {
            "--seconds" => seconds = Some(value()?.parse::<f64>()?),
            "--rounds" => rounds = Some(value()?.parse::<usize>()?),
            "--dir" => dir = PathBuf::from(value()?),
            "--long" => long = true,
            name => match CASES.iter().find(|(case, _)| *case == name) {
                Some(case) => chosen.push(*case),
                None => {
                    let names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
                    return Err(format!("no case {name}; there are {}", names.join(", ")).into());
                }
            },
        }
    }
    require_root();
    require_tools(&["mke2fs", "mkfs.xfs", "losetup", "mount"]);
    let own = tempfile::Builder::new().prefix("lanefs-bench").tempdir_in(dir)?;
    let mut bench = Bench {
        dir: own.path().to_owned(),
        memory: PathBuf::from("/dev/shm"),
        time: Duration::try_from_secs_f64(seconds.unwrap_or(if long { 2.0 } else { 0.5 }))?,
        rounds: rounds.unwrap_or(if long { 5 } else { 3 }).max(1),
        long,
        report: Report::new("write-path"),
    };
    if chosen.is_empty() {
        chosen.extend(CASES);
    }
    for (name, case) in chosen {
        case(&mut bench).map_err(|e| format!("{name}: {e}"))?;
    }
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}
