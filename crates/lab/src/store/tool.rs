//! Programs of the system: they make the peers' volumes and mount them.

use crate::Outcome;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the file of a program, if it is there.
fn find(program: &str) -> Option<PathBuf> {
    search_path().split(':').map(|dir| Path::new(dir).join(program)).find(|file| file.is_file())
}

/// Returns a PATH with the folders of system programs, which the PATH of a user may lack.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

/// Runs a program, and returns its standard output without white space at the end. Ctrl-C at the
/// terminal does not end the program: it would leave half a volume or half a mount.
///
/// # Errors
/// A program that is missing or fails, with all its output.
pub fn run_tool(program: &str, args: &[&str]) -> Outcome<String> {
    // By its path: for a bare name and a PATH of its own the standard library forks, which copies
    // the page tables of a process that has much memory, instead of `posix_spawn`.
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("PATH", search_path()).env("LC_ALL", "C").args(args).process_group(0);
    let out = command.output().map_err(|e| format!("cannot run {program}: {e}"))?;
    let said = String::from_utf8_lossy(&out.stdout).trim_end().to_owned();
    if out.status.success() {
        return Ok(said);
    }
    let errors = String::from_utf8_lossy(&out.stderr);
    Err(format!("{program} {}: {}: {said}{}", args.join(" "), out.status, errors.trim_end()).into())
}

/// Returns the `programs` that this system lacks.
pub fn missing_tools<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    programs.iter().copied().filter(|program| find(program).is_none()).collect()
}

/// Returns the line with the version of a program, if it is there.
pub fn tool_version(program: &str, arg: &str) -> Option<String> {
    let out = Command::new(program).env("PATH", search_path()).arg(arg).output().ok()?;
    let said = [out.stdout, out.stderr].concat();
    String::from_utf8_lossy(&said).lines().next().map(|line| line.trim().to_owned())
}
