//! The source of the tree of an import or a build.

use super::transfer::Ownership;
use crate::failure::{Failure, OrCannot, Res};
use crate::{size, volumes};
use lanefs_archive::{Error, ImageChoice, ImportOptions, Platform, Source};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Arguments that say how sources are read.
#[derive(Debug, clap::Args)]
pub(super) struct SourceArgs {
    /// Of an image the one for this platform, for example linux/arm64; without it that of this
    /// machine, or the only one
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<Platform>,
    /// Keep the whiteouts of layers as files
    #[arg(long)]
    no_whiteouts: bool,
    /// Refuse archives that unpack to more than this, for example 20G
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
    #[command(flatten)]
    ownership: Ownership,
}

impl SourceArgs {
    /// Opens what the arguments name: one source, or layers.
    pub(super) fn source(&self, sources: &[OsString]) -> Res<Result<Source, Error>> {
        if self.platform.is_some() && sources.len() > 1 {
            return Err(Failure::new("--platform chooses from one image, and these are several archives"));
        }
        let choice = self.platform.iter().cloned().fold(ImageChoice::new(), ImageChoice::platform);
        Ok(match sources {
            [one] if one == "-" => Source::reader("-", std::io::stdin(), &choice, self.max_size),
            [one] if is_stream(Path::new(one)) => {
                let stream = File::open(one).or_cannot("open", one.as_bytes())?;
                Source::reader(one.as_bytes(), stream, &choice, self.max_size)
            }
            [one] => at_path(one, choice, self.platform.is_some()),
            layers => Source::layers(layers),
        })
    }

    /// Returns what arrives of the sources.
    pub(super) fn options(self) -> Res<ImportOptions> {
        let options = ImportOptions::new().ownership(self.ownership.into()).whiteouts(!self.no_whiteouts);
        let options = self.max_size.into_iter().fold(options, ImportOptions::max_size);
        Ok(volumes::source_date_epoch()?.into_iter().fold(options, ImportOptions::newest))
    }
}

/// Returns whether the path leads to what is read once, such as a named pipe.
fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Opens a file or a folder, or an image of it by `IMAGE:TAG`. `wants_image`: it must be an image.
fn at_path(one: &OsStr, choice: ImageChoice, wants_image: bool) -> Result<Source, Error> {
    match (Path::new(one).exists(), tagged(one)) {
        (false, Some((image, tag))) => Source::image(image, &choice.tag(tag)),
        (true, _) if wants_image => Source::image(one, &choice),
        _ => Source::open(one),
    }
}

/// Splits `IMAGE:TAG` at the first colon behind which a tag can begin: what is before it exists.
fn tagged(arg: &OsStr) -> Option<(&Path, String)> {
    let bytes = arg.as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, b)| **b == b':').map(|(at, _)| at);
    let mut splits = colons.map(|at| (Path::new(OsStr::from_bytes(&bytes[..at])), &bytes[at + 1..]));
    let (image, tag) = splits.find(|(image, _)| image.exists())?;
    Some((image, String::from_utf8_lossy(tag).into_owned()))
}
