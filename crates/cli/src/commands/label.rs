//! `lanefs label`: the name of a volume.

use crate::failure::{OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::volumes::{self, Volumes};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Print the label of a volume, or set it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// The new label, at most 16 bytes; '' takes the old one away
    label: Option<OsString>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let Some(label) = self.label else {
            // Read from the medium, so that a volume in use shows its label too.
            let superblock = volumes::read_superblock(&*volumes::unlocked_device(&name)?, &name)?;
            let label = out.name(superblock.label());
            return out.write_all(&[label.as_slice(), b"\n"].concat());
        };
        let mut volumes = Volumes::default();
        let side = volumes.volume(&name, true)?;
        side.with(|v| v.set_label(label.as_bytes())).or_cannot("label", name.as_bytes())?;
        volumes.close()
    }
}
