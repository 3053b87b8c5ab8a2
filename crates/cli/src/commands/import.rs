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
use lanefs_archive::{Error, ImportOptions, Source, import};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Fill a directory of a volume with the contents of a folder, a tar archive or an image
///
/// Owners, modes, times, attributes, ACLs, links, devices and holes arrive as they are, whoever
/// runs this. A name that is there already is replaced, directories are joined. With
/// SOURCE_DATE_EPOCH no time is later than that, and the same source gives the same bytes.
///
/// Several archives are the layers of an image, the lowest first: whiteouts (.wh.NAME and
/// .wh..wh..opq) take names of lower layers away.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder, a tar archive (plain, or by gzip, zstd, xz or bzip2), `-` for an archive from
    /// standard input, or several archives: layers, the lowest first
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<OsString>,
    /// The directory to fill; it is made if it does not exist
    #[arg(value_name = "VOLUME:/DIR")]
    destination: OsString,
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
        let Location::Volume { volume: name, path } = Location::parse_inside(&self.destination) else {
            let text = format!(
                "{} is not inside a volume: write VOLUME:/DIR",
                quoted(self.destination.as_encoded_bytes())
            );
            return Err(Failure::new(text));
        };
        let epoch = volumes::source_date_epoch()?;
        let source = source(&self.sources).map_err(|e| failure(&name, &e))?;
        // All or nothing is asked for, and a timer would commit at other places each time.
        let volume = volumes::open_with(&name, true, |o| o.commit_interval(Duration::ZERO))?;
        let options = ImportOptions::new().ownership(self.ownership.into()).whiteouts(!self.no_whiteouts);
        let options = self.max_size.into_iter().fold(options, ImportOptions::max_size);
        let options = epoch.into_iter().fold(options, ImportOptions::newest);
        let mut told = Told::new("importing", &name, source.size());
        if let ([folder], None) = (&self.sources[..], source.size()) {
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
fn source(sources: &[OsString]) -> Result<Source, Error> {
    match sources {
        [one] if one == "-" => Source::archive("-", std::io::stdin()),
        [one] => Source::open(one),
        layers => Source::layers(layers),
    }
}
