//! The cases that the tests try: those of earlier findings, a line each in `tests/seeds`, and a
//! slice chosen by the date.

use super::workload::Case;
use lanefs_sim::seed_from_env;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The file of the seeds of the crash campaign.
pub fn seeds_file() -> PathBuf {
    file("crash.txt")
}

/// Reads the cases in which a crash once found something.
///
/// # Errors
/// A line that is no case.
pub fn seeds() -> Result<Vec<Case>, String> {
    read(seeds_file())
}

/// Reads the cases in which a failed I/O once found something.
///
/// # Errors
/// A line that is no case.
pub fn fault_seeds() -> Result<Vec<Case>, String> {
    read(file("faults.txt"))
}

/// Returns the number of the day, or what `LANEFS_SEED` says.
///
/// # Panics
/// If that is no number.
pub fn day() -> u64 {
    match std::env::var_os("LANEFS_SEED") {
        Some(_) => seed_from_env("LANEFS_SEED").value(),
        None => SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs() / 86_400,
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name)
}

/// Reads cases: one in a line; what follows a `#` is for readers.
fn read(file: PathBuf) -> Result<Vec<Case>, String> {
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let cases = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    cases.filter(|case| !case.is_empty()).map(str::parse).collect()
}
