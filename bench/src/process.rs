//! Programs that are run to their end and timed.

use lanefs_lab::Outcome;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The resources that a finished process took.
#[derive(Debug)]
pub struct Cost {
    /// From its start to its end.
    pub seconds: f64,
    /// The most memory that it had.
    pub peak_mib: f64,
}

/// Runs a program to its end. `note` is a file for what time(1) says of it.
///
/// # Errors
/// A program that cannot be run, and one that fails: what it wrote to standard error.
pub fn run<S: AsRef<OsStr>>(note: &Path, program: impl AsRef<OsStr>, args: &[S]) -> Outcome<Cost> {
    let program = program.as_ref();
    let began = Instant::now();
    let out = Command::new("/usr/bin/time")
        .args(["-q", "-f", "%M", "-o"])
        .arg(note)
        .arg(program)
        .args(args)
        .output()?;
    let seconds = began.elapsed().as_secs_f64();
    if !out.status.success() {
        return Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&out.stderr)).into());
    }
    let peak_mib = fs::read_to_string(note)?.trim().parse::<f64>()? / 1024.0;
    Ok(Cost { seconds, peak_mib })
}
