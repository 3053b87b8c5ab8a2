//! `lanefs fallocate`: which blocks a file has, with the options of fallocate(1).

use super::cp::umask;
use crate::failure::{OrCannot, Res};
use crate::location::Location;
use crate::size;
use crate::volumes::Volumes;
use lanefs::FallocMode;
use std::ffi::OsString;

/// Give a file blocks, or take them away
///
/// Without an option for the mode, holes get blocks and the file grows to the end of the range.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file, made if it is not there and is to get blocks
    #[arg(value_name = "VOLUME:/PATH")]
    path: OsString,
    /// Where the range begins (4096, 1M)
    #[arg(short, long, default_value = "0", value_parser = size::parse)]
    offset: u64,
    /// How long it is
    #[arg(short, long, value_parser = size::parse)]
    length: u64,
    /// The file does not grow
    #[arg(short = 'n', long)]
    keep_size: bool,
    /// Free the blocks: the range becomes a hole
    #[arg(short, long, group = "mode")]
    punch_hole: bool,
    /// Make the range zeros, with blocks
    #[arg(short, long, group = "mode")]
    zero_range: bool,
    /// Take the range out of the file
    #[arg(short, long, group = "mode")]
    collapse_range: bool,
    /// Put a hole into the file
    #[arg(short, long, group = "mode")]
    insert_range: bool,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let (volume, path) = Location::parse(&self.path).in_volume(&self.path, "/path")?;
        let mut volumes = Volumes::default();
        let side = volumes.volume(&volume, true)?;
        let mode = self.mode();
        let makes = matches!(mode, FallocMode::Allocate | FallocMode::KeepSize);
        let opened = side.open_to_write(&path, makes.then(|| 0o666 & !umask()));
        let done = opened.and_then(|file| Ok(file.fallocate(mode, self.offset, self.length)?));
        done.or_cannot("allocate", self.path.as_encoded_bytes())?;
        drop(side);
        volumes.close()
    }

    fn mode(&self) -> FallocMode {
        match self {
            Self { punch_hole: true, .. } => FallocMode::PunchHole,
            Self { collapse_range: true, .. } => FallocMode::CollapseRange,
            Self { insert_range: true, .. } => FallocMode::InsertRange,
            Self { zero_range: true, keep_size: false, .. } => FallocMode::ZeroRange,
            Self { zero_range: true, .. } => FallocMode::ZeroRangeKeepSize,
            Self { keep_size: true, .. } => FallocMode::KeepSize,
            _ => FallocMode::Allocate,
        }
    }
}
