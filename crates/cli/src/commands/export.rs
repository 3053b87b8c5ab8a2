//! `lanefs export`: a directory of a volume into a folder or a tar archive.

use super::transfer::{Ownership, Told, failure};
use crate::archive::Epoch;
use crate::export::{Options, Target, run};
use crate::failure::{Failure, Res};
use crate::host::Overwrite;
use crate::location::Location;
use crate::output::Out;
use crate::quote::quoted;
use crate::volumes;
use std::ffi::OsString;

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
        let options = Options {
            ownership: self.ownership.into(),
            epoch: Epoch(epoch.map(|t| t.sec)),
            overwrite: if self.force { Overwrite::All } else { Overwrite::NoVolumes },
        };
        let label = [name.as_encoded_bytes(), b":"].concat();
        let mut told = Told::new("exporting", None);
        let target = Target::parse(&self.destination);
        let ran = run(&volume, &path, &label, target, &options, &mut told).map_err(|problem| match target {
            // As for any other output: a reader that went away ends the command without a word.
            Target::Stdout if problem.cause == "Broken pipe" => Failure::Silent(141),
            _ => failure(problem),
        });
        ran.and(told.finish().finish())
    }
}
