//! The `lanefs` command: arguments in, messages and exit codes out. No file-system logic.
//!
//! Each command is a file of [`commands`]. Standard output goes through [`output::Out`], failures
//! through [`failure::Failure`], both to [`streams`]; a volume that was opened is closed, and with
//! that durable, before the command says that it succeeded.

#![forbid(unsafe_code)]
// A macro of the standard library panics where standard error cannot be written.
#![warn(clippy::print_stderr)]

mod commands;
mod copy;
mod date;
mod entry;
mod failure;
mod glob;
mod hex_bytes;
mod location;
mod mode;
mod output;
mod owner;
mod progress;
mod quote;
mod side;
mod size;
mod stats;
mod streams;
mod time;
mod top;
mod volumes;
mod walk;
mod watch;

use clap::Parser;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// ext4 volumes without root and without a mount: make, fill, read, edit, export, recover.
///
/// A path inside a volume is VOLUME:/path. A volume is a file or a block device, or a part of one:
/// disk.raw@2, disk.raw@root (name, label, UUID), disk.raw?offset=1M&size=4G; or an export of an
/// NBD server: nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH; or an image of a Ceph cluster:
/// rbd:POOL/IMAGE.
#[derive(Debug, Parser)]
#[command(
    name = "lanefs",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Args {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    // By these names mount(8) and umount(8) call it.
    let called = std::env::args_os().next().map(PathBuf::from);
    match called.as_deref().and_then(Path::file_name).and_then(OsStr::to_str) {
        Some("mount.lanefs" | "mount.fuse.lanefs") => start(commands::MountHelper::run),
        Some("umount.lanefs" | "umount.fuse.lanefs") => start(commands::UmountHelper::run),
        _ => start(|args: Args| args.command.run()),
    }
}

/// Reads the arguments, and runs what they ask for.
fn start<A: Parser>(run: impl FnOnce(A) -> failure::Res) -> ExitCode {
    let args = match A::try_parse_from(commands::find::with_two_hyphens(std::env::args_os())) {
        Ok(args) => args,
        Err(e) => {
            return match e.print() {
                _ if e.use_stderr() => ExitCode::from(usage_code()),
                // A reader of --help that went away is no failure.
                Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                    ExitCode::from(failure::Failure::output(e).report())
                }
                _ => ExitCode::SUCCESS,
            };
        }
    };
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report()),
    }
}

/// Returns the exit status after wrong arguments: 2 of ls and diff, 16 of check and 125 of run, as
/// of ls(1), diff(1), fsck(8) and env(1), and 1 of all others.
fn usage_code() -> u8 {
    match std::env::args_os().nth(1).as_deref().and_then(OsStr::to_str) {
        Some("diff" | "ls") => 2,
        Some("check") => 16,
        Some("run") => 125,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }
}
