//! The cases of earlier findings, a line each in `tests/seeds`.

use super::workload::Case;
use std::path::PathBuf;

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

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name)
}

/// Reads cases: one in a line; what follows a `#` is for readers.
fn read(file: PathBuf) -> Result<Vec<Case>, String> {
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let cases = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    cases.filter(|case| !case.is_empty()).map(str::parse).collect()
}
