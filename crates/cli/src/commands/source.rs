//! The source of the tree of an import or a build.

use super::transfer::Ownership;
use crate::failure::{Failure, Res};
use crate::{size, volumes};
use lanefs_archive::{Error, ImageChoice, ImportOptions, Platform, Source};
use std::ffi::{OsStr, OsString};
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
        Ok(source(sources, self.platform.as_ref()))
    }

    /// Returns what arrives of the sources.
    pub(super) fn options(self) -> Res<ImportOptions> {
        let options = ImportOptions::new().ownership(self.ownership.into()).whiteouts(!self.no_whiteouts);
        let options = self.max_size.into_iter().fold(options, ImportOptions::max_size);
        Ok(volumes::source_date_epoch()?.into_iter().fold(options, ImportOptions::newest))
    }
}

/// Returns what the arguments mean: one source, or layers.
fn source(sources: &[OsString], platform: Option<&Platform>) -> Result<Source, Error> {
    let choice = platform.into_iter().cloned().fold(ImageChoice::new(), ImageChoice::platform);
    match (sources, platform) {
        ([one], _) if one == "-" => Source::reader("-", std::io::stdin(), &choice),
        ([one], None) if Path::new(one).exists() => Source::open(one),
        ([one], _) => match (Path::new(one).exists(), tagged(one)) {
            (false, Some((image, tag))) => Source::image(image, &choice.tag(tag)),
            (false, None) => Source::open(one),
            (true, _) => Source::image(one, &choice),
        },
        (layers, _) => Source::layers(layers),
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
