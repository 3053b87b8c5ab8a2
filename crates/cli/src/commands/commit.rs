//! `lanefs commit`: folds the top of an overlay back into its base.

use crate::failure::{Cause, Failure, Res};
use crate::location::{VolumeName, whole_volume};
use crate::output::Out;
use crate::{quote, size, volumes};
use lanefs_device::{BlockDevice, CowDevice, FileOptions, Medium, VolumeUrl};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

/// Write what an overlay has changed to its base, and empty the overlay
///
/// No program may have the base open, for reading either. A commit that was cut can be repeated:
/// until it has succeeded, the overlay has all that it had. Other overlays of the base are refused
/// from then on: by the superblock, which every overlay that was mounted or changed has anew.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The overlay, overlay:base=URL,top=FILE; or the FILE alone, for the base that it was made on
    overlay: OsString,
    /// Say how much was written
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.overlay);
        let shown = name.as_encoded_bytes();
        let cannot = |e: lanefs::Error| {
            let path = format!("{}: ", name.to_string_lossy());
            Failure::cannot("commit", shown, Cause::from(e).without(&path))
        };
        let device = |e: lanefs_device::DeviceError| cannot(e.into());
        let parsed = match VolumeUrl::is_stacked(&name) {
            true => VolumeUrl::parse(&name).map_err(device)?.medium,
            false => Medium::File(Path::new(&name)),
        };
        let (base, top): (VolumeName, &Path) = match parsed {
            Medium::Overlay { base, top } => (base.into(), top),
            Medium::File(top) => (CowDevice::base_of(top).map_err(device)?.into(), top),
            _ => return Err(Failure::cannot("commit", shown, Cause::text("is no overlay"))),
        };
        if top.as_os_str().as_encoded_bytes().windows(5).any(|part| part == b",top=") {
            let why = "its path has ',top=' in it: rename the file, or its folder";
            return Err(Failure::cannot("commit", shown, Cause::text(why)));
        }
        let above = mmp_place(&overlay_name(&base, top))?;
        // First the file: a program that uses the overlay has it alone.
        let file: Arc<dyn BlockDevice> = Arc::new(FileOptions::new().open(top).map_err(device)?);
        let below = volumes::writable_device(&base)?;
        let base_name = volumes::source(&base);
        let written = lanefs::mmp::claimed(&below, volumes::mmp_options(&base)?, |below, kept| {
            let is_same = match (&kept, above) {
                (Some(kept), Some(above)) => kept.start == above,
                (kept, _) => kept.is_none(),
            };
            if !is_same {
                let why = "the overlay has switched multiple mount protection; lanefs mmp on or off makes it that \
                           of the base again";
                return Err(lanefs::Error::Invalid(why));
            }
            Ok(CowDevice::commit(below, file, &base_name.to_string_lossy(), kept)?)
        });
        let bytes = written.map_err(cannot)?;
        if self.verbose {
            let shown = out.name(shown);
            out.write_all(&shown)?;
            let base = quote::escaped(base.as_encoded_bytes());
            writeln!(out, ": {} ({bytes} bytes) written to {base}", size::human(bytes))?;
        }
        Ok(())
    }
}

fn overlay_name(base: &OsStr, top: &Path) -> OsString {
    let parts = ["overlay:base=".as_ref(), base, ",top=".as_ref(), top.as_os_str()];
    parts.into_iter().collect()
}

/// Returns the first byte of the MMP block of an overlay's volume, if it has one. Opens the overlay
/// for that: a top that is not one of its base is refused here.
fn mmp_place(name: &VolumeName) -> Res<Option<u64>> {
    let device = volumes::device(name)?;
    let sb = volumes::read_superblock(&*device, name).ok();
    let place = |sb: lanefs_format::Superblock| Some(sb.mmp()?.0.saturating_mul(sb.block_size().into()));
    Ok(sb.and_then(place))
}
