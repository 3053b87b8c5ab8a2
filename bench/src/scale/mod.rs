//! The cost of operations against the size of what they work on: entries of a directory, extents of
//! a file, bytes of a volume. Each step runs in a process of its own (`scale --step`), so that the
//! memory that it takes is its own. It prints its figures as one JSON object.

mod extents;
mod names;
mod volumes;

use lanefs::OpenOptions;
use lanefs_device::Cached;
use lanefs_lab::Outcome;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What a step found, by name.
pub type Figures = BTreeMap<String, f64>;

/// A part of a measurement: it works on the volume in a file, at one size.
type Step = fn(&Path, u64) -> Outcome<Figures>;

/// The steps, by name.
const STEPS: [(&str, Step); 8] = [
    ("names-make", names::make),
    ("names", names::measure),
    ("extents-make", extents::make),
    ("extents", extents::measure),
    ("volume-make", volumes::make),
    ("volume-fill", volumes::fill),
    ("volume-crash", volumes::crash),
    ("volume-open", volumes::open),
];

/// Runs a step in this process and prints its figures.
///
/// # Errors
/// The step's; a name that no step has.
pub fn step(name: &str, volume: &Path, size: u64) -> Outcome<()> {
    let (_, step) = STEPS.iter().find(|(step, _)| *step == name).ok_or("no such step")?;
    let figures = step(volume, size)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// Runs a step in a process of its own. Gives its figures.
///
/// # Errors
/// A step that fails; what it said stands on standard error.
pub fn run(name: &str, volume: &Path, size: u64) -> Outcome<Figures> {
    let out = Command::new(std::env::current_exe()?)
        .args(["--step", name, "--size", &size.to_string(), "--volume"])
        .arg(volume)
        .stderr(Stdio::inherit())
        .output()?;
    if !out.status.success() {
        return Err(format!("step {name} at {size}: {}", out.status).into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// The options of all volumes here: all I/O through the page cache of the system, so that no disk
/// hides the cost of an operation.
fn options() -> OpenOptions {
    OpenOptions::new().write(true).cached(Cached::All)
}

/// MiB that this process has in memory.
fn resident() -> Outcome<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// Operations of one kind: how many, and how long they took together.
#[derive(Debug, Default)]
struct Timed {
    seconds: f64,
    count: u64,
}

impl Timed {
    /// Runs `work`, which is `count` operations.
    fn run<T>(&mut self, count: u64, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let began = Instant::now();
        let done = work()?;
        self.seconds += began.elapsed().as_secs_f64();
        self.count += count;
        Ok(done)
    }

    /// Microseconds of one.
    fn each(&self) -> f64 {
        self.seconds * 1e6 / self.count.max(1) as f64
    }
}
