//! `lanefs fstrim`: discards free space on the device.

use crate::failure::{OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::size;
use crate::volumes::Volumes;
use std::ffi::OsString;

/// Discard free space, so that its device or file need not keep it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// Where to begin on the volume
    #[arg(short, long, default_value = "0", value_parser = size::parse)]
    offset: u64,
    /// How far to go: to the end, unless said otherwise
    #[arg(short, long, value_parser = size::parse)]
    length: Option<u64>,
    /// The shortest run that is worth it
    #[arg(short, long, default_value = "0", value_parser = size::parse)]
    minimum: u64,
    /// Say how much it was
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let mut volumes = Volumes::default();
        let side = volumes.volume(&name, true)?;
        let end = self.offset.saturating_add(self.length.unwrap_or(u64::MAX));
        let shown = name.as_encoded_bytes();
        let bytes = side.with(|v| v.trim(self.offset..end, self.minimum)).or_cannot("trim", shown)?;
        if self.verbose {
            let shown = out.name(shown);
            out.write_all(&shown)?;
            writeln!(out, ": {} ({bytes} bytes) trimmed", size::human(bytes))?;
        }
        drop(side);
        volumes.close()
    }
}
