//! `lanefs mkfs`: a new volume.

use crate::failure::Res;
use crate::output::Out;
use crate::size;
use std::ffi::OsString;

/// Make an ext4 volume, as mke2fs -t ext4 does
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or block device; a file is made if there is none
    volume: OsString,
    /// Size of the volume: 512M, 2G, 15T; without it, all of the file or device
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Bytes of a block: 1024, 2048, 4096 or more
    #[arg(short, value_name = "BYTES", value_parser = size::parse)]
    block_size: Option<u64>,
}

impl Args {
    pub(crate) fn run(self, _out: &mut Out) -> Res {
        Err(crate::failure::Failure::new("mkfs is not built yet"))
    }
}
