//! `lanefs zero-free`: writes zeros to all blocks that no file has.

use crate::failure::{Failure, OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::{size, volumes};
use lanefs::OpenOptions;
use lanefs_archive::Zeroing;
use std::ffi::OsString;
use std::sync::Arc;

/// Make free space read as zeros, so that an image compresses
///
/// In a file, free blocks that are not zero become holes; a device gets zeros, by its own command
/// where it has one. What is zero already is not written. The log, directories and inodes may still
/// hold names and attributes of old files. fstrim gives up all free blocks of a file at once,
/// without looking at them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume, which no program has open
    volume: OsString,
    /// Say how much it was
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let shown = name.as_encoded_bytes();
        let mut zeroing = None;
        let options = OpenOptions::new().cache_bytes(64 << 20).write(true);
        let volume = volumes::open_device(&name, true, options, |device| {
            Ok(zeroing.insert(Arc::new(Zeroing::new(device))).clone())
        })?;
        let zeroed = volume.trim(0..u64::MAX, 0).or_cannot("zero free space of", shown);
        let closed = volume.close().map_err(|e| Failure::cannot("close", shown, e));
        zeroed.and(closed)?;
        if self.verbose {
            let bytes = zeroing.map_or(0, |device| device.zeroed());
            let shown = out.name(shown);
            out.write_all(&shown)?;
            writeln!(out, ": {} ({bytes} bytes) zeroed", size::human(bytes))?;
        }
        Ok(())
    }
}
