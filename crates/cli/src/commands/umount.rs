//! `lanefs umount`, and what umount(8) calls: `umount.lanefs` and `umount.fuse.lanefs`.

use crate::failure::{Failure, Res};
use crate::quote::quoted;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Take a mount away, and wait until its volume is closed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory that it is mounted at
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Take it from the tree of names now, and for good when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        lanefs_fuse::unmount(&self.dir, self.lazy).map_err(|e| {
            Failure::new(format!("cannot unmount {}: {e}", quoted(self.dir.as_os_str().as_bytes()))).code(32)
        })
    }
}

/// What umount(8) calls: `umount.TYPE DIRECTORY [-flnrv] [-N NAMESPACE] [-t TYPE]`.
#[derive(Debug, clap::Parser)]
#[command(name = "umount.lanefs", version)]
pub(crate) struct Helper {
    /// The directory
    dir: PathBuf,
    /// For compatibility
    #[arg(short)]
    force: bool,
    /// From the tree of names now
    #[arg(short)]
    lazy: bool,
    /// For compatibility
    #[arg(short = 'n')]
    no_table: bool,
    /// For compatibility
    #[arg(short)]
    read_only: bool,
    /// For compatibility
    #[arg(short)]
    verbose: bool,
    /// For compatibility
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// For compatibility
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl Helper {
    pub(crate) fn run(self) -> Res {
        Args { dir: self.dir, lazy: self.lazy }.run()
    }
}
