//! `lanefs export`: a directory of a volume into a folder or a tar archive.

use super::transfer::{Ownership, Told, failure};
use crate::failure::{Failure, Res};
use crate::location::Location;
use crate::output::Out;
use crate::quote::quoted;
use crate::volumes;
use lanefs_archive::{Cause, Compression, ExportOptions, Overwrite, Target, export, program_for};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;

/// Copy a directory of a volume into a folder or a tar archive
///
/// Modes, times, attributes, ACLs, links, devices and holes arrive as they are, as far as this user
/// may make them. With SOURCE_DATE_EPOCH no time is later than that.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory to copy
    #[arg(value_name = "VOLUME:/DIR")]
    source: OsString,
    /// A folder, which is made if it does not exist; an archive, by its name (.tar, .tar.gz, .tgz);
    /// or `-` for one to standard output
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Overwrite volumes, locked files and what is no archive too
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ownership: Ownership,
}

impl Args {
    pub(crate) fn run(self, _: &mut Out) -> Res {
        let Location::Volume { volume: name, path } = Location::parse_inside(&self.source) else {
            let text = format!(
                "{} is not inside a volume: write VOLUME:/DIR",
                quoted(self.source.as_encoded_bytes())
            );
            return Err(Failure::new(text));
        };
        volumes::refuse_forgotten_slash(&self.destination)?;
        if matches!(Location::parse(&self.destination), Location::Volume { .. }) {
            let text = format!(
                "{} is inside of a volume: lanefs cp -a copies between volumes",
                quoted(self.destination.as_encoded_bytes())
            );
            return Err(Failure::new(text));
        }
        let epoch = volumes::source_date_epoch()?;
        let volume = volumes::open(&name, false)?;
        let overwrite = if self.force { Overwrite::All } else { Overwrite::NoVolumes };
        let options = ExportOptions::new().ownership(self.ownership.into()).overwrite(overwrite);
        let options = epoch.into_iter().fold(options, ExportOptions::newest);
        let target = target(&self.destination);
        let to_stdout = self.destination == "-";
        let mut told = Told::new("exporting", &name, None);
        let ran = export(&volume, &path, target, &options, |event| told.hear(event));
        let ran = ran.map_err(|e| match e.cause() {
            // As for any other output: a reader that went away ends the command without a word.
            Cause::Io(io) if to_stdout && io.kind() == ErrorKind::BrokenPipe => Failure::Silent(141),
            _ => failure(&name, &e),
        });
        ran.and(told.finish().finish())
    }
}

/// Returns what an argument means: `-` is standard output, a name that ends as that of an archive
/// does, and is no folder, an archive.
fn target(arg: &OsStr) -> Target<'_> {
    let path = Path::new(arg);
    if arg == "-" {
        Target::archive("-", std::io::stdout(), Compression::None)
    } else if program_for(arg.as_encoded_bytes()).is_some() && !path.is_dir() {
        Target::file(path)
    } else {
        Target::folder(path)
    }
}
