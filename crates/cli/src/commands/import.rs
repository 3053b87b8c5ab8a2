//! `lanefs import`: a folder's contents, a tar archive or the layers of an image into a directory
//! of a volume.

use super::source::SourceArgs;
use super::transfer::{TransferReporter, asked, failure};
use crate::failure::{Failure, Res};
use crate::location::Location;
use crate::output::Out;
use crate::stats::StatsArg;
use crate::volumes;
use lanefs_archive::import;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Fill a directory of a volume with the contents of a folder, a tar archive or an image
///
/// Owners, modes, times, attributes, ACLs, links, devices and holes arrive as they are, for every
/// user that runs this. A name that is there already is replaced, directories are joined. With
/// SOURCE_DATE_EPOCH no time is later than that, and the same source gives the same bytes.
///
/// An image is an OCI layout, as a folder or in a tar archive, or what docker save wrote; its
/// content says so. Its digests are checked before anything is written. Several archives are the
/// layers of an image, the lowest first. Whiteouts (.wh.NAME and .wh..wh..opq) take names of lower
/// layers away.
#[derive(Debug, clap::Args)]
#[command(override_usage = "lanefs import [OPTIONS] <SRC>... <VOLUME:/DIR>")]
pub(crate) struct Args {
    /// A folder, a tar archive (plain, or by gzip, zstd, xz or bzip2), an image (IMAGE or
    /// IMAGE:TAG), `-` for an archive or an image from standard input, or several archives: layers,
    /// the lowest first. Last the directory to fill, VOLUME:/DIR; it is made if it does not exist
    #[arg(value_name = "SRC", required = true)]
    // One list, so that options may stand between the sources and the directory.
    paths: Vec<OsString>,
    #[command(flatten)]
    from: SourceArgs,
    #[command(flatten)]
    stats: StatsArg,
}

impl Args {
    pub(crate) fn run(self, _: &mut Out) -> Res {
        let (destination, sources) = match &self.paths[..] {
            [sources @ .., destination] if !sources.is_empty() => (destination, sources),
            _ => return Err(Failure::new("nothing says where to: write lanefs import SRC VOLUME:/DIR")),
        };
        let (name, path) = Location::parse_inside(destination).in_volume(destination, "/DIR")?;
        let source = self.from.source(sources)?.map_err(|e| failure(&name, &e))?;
        let options = self.from.options()?;
        // All or nothing is asked for, and a timer would commit at other places each time.
        let volume = volumes::open_with(&name, true, |o| o.commit_interval(Duration::ZERO))?;
        let asked = asked()?;
        let mut reporter = TransferReporter::new("importing", &name, source.size()).until(&asked);
        if let ([folder], false, None) = (sources, source.is_image(), source.size()) {
            reporter.measure(PathBuf::from(folder));
        }
        let ran = import(source, &volume, &path, &options, |event| reporter.hear(event));
        let ran = ran.map_err(|e| match e.is_cancelled() {
            true => Failure::Silent(asked.load(Ordering::Relaxed) as u8),
            false => failure(&name, &e),
        });
        let noted = reporter.finish();
        let reporter = self.stats.print(&volume, name.as_encoded_bytes());
        // Also after a failure: the members that were imported are complete.
        let closed = volume.close().map_err(|e| Failure::cannot("close", name.as_encoded_bytes(), e));
        ran.and(reporter).and(closed).and(noted.finish())
    }
}
