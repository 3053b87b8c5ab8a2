//! `lanefs import`: a folder's contents, a tar archive or the layers of an image into a directory
//! of a volume.

use super::transfer::{Ownership, Told, failure};
use crate::failure::{Failure, Res};
use crate::location::Location;
use crate::output::Out;
use crate::quote::quoted;
use crate::size;
use crate::stats::StatsArg;
use crate::volumes;
use lanefs_archive::{Error, ImageChoice, ImportOptions, Platform, Source, import};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Fill a directory of a volume with the contents of a folder, a tar archive or an image
///
/// Owners, modes, times, attributes, ACLs, links, devices and holes arrive as they are, whoever
/// runs this. A name that is there already is replaced, directories are joined. With
/// SOURCE_DATE_EPOCH no time is later than that, and the same source gives the same bytes.
///
/// An image is an OCI layout, as a folder or in a tar archive, or what docker save wrote; its
/// content says so. Its digests are checked before anything is written. Several archives are the
/// layers of an image, the lowest first. Whiteouts (.wh.NAME and .wh..wh..opq) take names of lower
/// layers away.
#[derive(Debug, clap::Args)]
#[command(override_usage = "lanefs import [OPTIONS] <SRC>... <VOLUME:/DIR>")]
pub(crate) struct Args {
    /// A folder, a tar archive (plain, or by gzip, zstd, xz or bzip2), `-` for an archive from
    /// standard input, an image (IMAGE or IMAGE:TAG), or several archives: layers, the lowest first.
    /// Last the directory to fill, VOLUME:/DIR; it is made if it does not exist
    #[arg(value_name = "SRC", required = true)]
    // One list, so that options may stand between the sources and the directory.
    paths: Vec<OsString>,
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
    #[command(flatten)]
    stats: StatsArg,
}

impl Args {
    pub(crate) fn run(self, _: &mut Out) -> Res {
        let (destination, sources) = match &self.paths[..] {
            [sources @ .., destination] if !sources.is_empty() => (destination, sources),
            _ => return Err(Failure::new("nothing says where to: write lanefs import SRC VOLUME:/DIR")),
        };
        let Location::Volume { volume: name, path } = Location::parse_inside(destination) else {
            let text = format!(
                "{} is not inside a volume: write VOLUME:/DIR",
                quoted(destination.as_encoded_bytes())
            );
            return Err(Failure::new(text));
        };
        if self.platform.is_some() && sources.len() > 1 {
            return Err(Failure::new("--platform chooses from one image, and these are several archives"));
        }
        let epoch = volumes::source_date_epoch()?;
        let source = source(sources, self.platform.as_ref()).map_err(|e| failure(&name, &e))?;
        // All or nothing is asked for, and a timer would commit at other places each time.
        let volume = volumes::open_with(&name, true, |o| o.commit_interval(Duration::ZERO))?;
        let options = ImportOptions::new().ownership(self.ownership.into()).whiteouts(!self.no_whiteouts);
        let options = self.max_size.into_iter().fold(options, ImportOptions::max_size);
        let options = epoch.into_iter().fold(options, ImportOptions::newest);
        let mut told = Told::new("importing", &name, source.size());
        if let ([folder], false, None) = (sources, source.is_image(), source.size()) {
            told.measure(PathBuf::from(folder));
        }
        let ran = import(source, &volume, &path, &options, |event| told.hear(event));
        let ran = ran.map_err(|e| failure(&name, &e));
        let noted = told.finish();
        let told = self.stats.print(&volume, name.as_encoded_bytes());
        // Also after a failure: the members that were imported are complete.
        let closed = volume.close().map_err(|e| Failure::cannot("close", name.as_encoded_bytes(), e));
        ran.and(told).and(closed).and(noted.finish())
    }
}

/// Returns what the arguments mean: one source, or layers.
fn source(sources: &[OsString], platform: Option<&Platform>) -> Result<Source, Error> {
    let choice = platform.into_iter().cloned().fold(ImageChoice::new(), ImageChoice::platform);
    match (sources, platform) {
        ([one], None) if one == "-" => Source::archive("-", std::io::stdin()),
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
