//! The check of a volume against e2fsck, in turn: one volume with very many files, and one of 4 MiB
//! as a crash test has it.
//!
//! `make bench-check [ARGS='--files N --runs N']`. A volume of a million files takes a minute to
//! make. Both read it from the page cache: the first run of each does not count.

use clap::Parser;
use lanefs_bench::cases::{self, Effort};
use lanefs_bench::report::{Goal, Report};
use lanefs_check::{Options, check};
use lanefs_device::{BlockDevice, FileDevice, FileOptions, MemDevice};
use lanefs_lab::Outcome;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Names in a directory.
const NAMES: usize = 1000;
/// Checks of a small volume in one sample.
const SMALL: u32 = 200;

/// Checks against e2fsck
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    effort: Effort,
    /// Files of the large volume; every fourth has a block
    #[arg(long, default_value_t = 1_000_000)]
    files: usize,
}

fn main() -> ExitCode {
    cases::end("check", start(Args::parse()))
}

fn start(Args { effort, files }: Args) -> Outcome<()> {
    let files = if effort.quick { files.min(100_000) } else { files };
    let runs = effort.runs(5);
    let mut report = Report::new("check");
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("volume");
    make(Arc::new(FileDevice::create(&path, (files as u64 * 4096).max(256 << 20))?), files)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for run in 0..=runs {
        let pair = (by_lanefs(&path)?, by_e2fsck(&path)?);
        if run > 0 {
            ours.push(pair.0);
            theirs.push(pair.1);
        }
    }
    let case = format!("{files} files");
    let ours = report.row(&case, "lanefs", 1, &ours, "s");
    let theirs = report.row(&case, "e2fsck -fn", 1, &theirs, "s");
    report.target(&format!("{case}: times faster than e2fsck -fn"), Goal::AtLeast(1.0), theirs / ours);
    small(&mut report, runs)?;
    report.finish()?;
    Ok(())
}

/// A volume of 4 MiB in memory with some files, checked over and over.
fn small(report: &mut Report, runs: usize) -> Outcome<()> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4 << 20));
    make(Arc::clone(&device), 50)?;
    let mut samples = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        for _ in 0..SMALL {
            judge(Arc::clone(&device))?;
        }
        samples.push(start.elapsed().as_secs_f64() * 1e3 / f64::from(SMALL));
    }
    let time = report.row("4 MiB, 50 files", "lanefs", 1, &samples, "ms");
    report.target("4 MiB in memory: milliseconds a check", Goal::AtMost(1.0), time);
    Ok(())
}

fn make(device: Arc<dyn BlockDevice>, files: usize) -> Outcome<()> {
    let options = lanefs_mkfs::Options {
        inode_count: Some((files + files / 100) as u32 + 64),
        journal_size: (device.size() < 64 << 20).then_some(1),
        block_size: Some(if device.size() < 64 << 20 { 1024 } else { 4096 }),
        ..Default::default()
    };
    lanefs_mkfs::format(&*device, &options)?;
    let volume = lanefs::Volume::open_device(device)?;
    for i in 0..files {
        let dir = format!("/d{}", i / NAMES);
        if i % NAMES == 0 {
            volume.create_dir(&dir)?;
        }
        let content: &[u8] = if i % 4 == 0 { b"some bytes" } else { b"" };
        volume.write(format!("{dir}/a file with number {i}"), content)?;
    }
    volume.close()?;
    Ok(())
}

fn by_lanefs(path: &Path) -> Outcome<f64> {
    let start = Instant::now();
    judge(Arc::new(FileOptions::new().read_only(true).open(path)?))?;
    Ok(start.elapsed().as_secs_f64())
}

fn judge(device: Arc<dyn BlockDevice>) -> Outcome<()> {
    let report = check(device, &Options::default())?;
    if !report.is_clean() {
        return Err(format!("the volume is not clean: {:?}", report.findings).into());
    }
    Ok(())
}

fn by_e2fsck(path: &Path) -> Outcome<f64> {
    let start = Instant::now();
    let status =
        Command::new("e2fsck").arg("-fn").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("e2fsck -fn: {status}").into());
    }
    Ok(start.elapsed().as_secs_f64())
}
