//! The start of a benchmark: what it needs of the machine, and a folder of its own.

use lanefs_tests::{require_root, require_tools};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Returns a new folder in `dir`, which is removed with the value.
///
/// # Errors
/// The system's.
///
/// # Panics
/// If the caller is not root, or one of `tools` is missing.
pub fn own_folder(dir: impl AsRef<Path>, tools: &[&str]) -> io::Result<TempDir> {
    require_root();
    require_tools(tools);
    tempfile::Builder::new().prefix("lanefs-bench").tempdir_in(dir)
}

/// Returns the path of the command, which make builds into the folder of this program.
///
/// # Errors
/// The system's.
pub fn lanefs_command() -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("lanefs"))
}
