//! `lanefs cat`: files to standard output.

use crate::copy::pour;
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::Location;
use crate::output::Out;
use crate::progress::Progress;
use crate::side::shown;
use crate::volumes::Volumes;
use lanefs::AtSymlink;
use std::ffi::OsString;
use std::io;

/// Write files to standard output
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files, as VOLUME:/path; `-` is standard input
    #[arg(required = true, value_name = "VOLUME:/FILE")]
    files: Vec<OsString>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        Volumes::default().for_each(&self.files, |volumes, file| one(volumes, Location::parse(file), out))
    }
}

fn one(volumes: &mut Volumes, location: Location, out: &mut Out) -> Res {
    let mut progress = Progress::new("reading", None);
    if location == Location::Stdio {
        let mut stdin = io::stdin().lock();
        let mut buf = vec![0; 1 << 16];
        loop {
            let n = io::Read::read(&mut stdin, &mut buf).or_cannot("read", "-")?;
            if n == 0 {
                return Ok(());
            }
            out.write_all(&buf[..n])?;
            // The reader of a pipe may be waiting for these bytes.
            out.flush()?;
        }
    }
    let spot = volumes.spot(location, false)?;
    let meta = spot.side.metadata(&spot.path, AtSymlink::Follow).or_cannot("open", spot.shown())?;
    if meta.is_dir() {
        return Err(Failure::cannot("read", spot.shown(), Cause::text("Is a directory")));
    }
    let source = spot.side.open(&spot.path).or_cannot("open", spot.shown())?;
    pour(&*source, out, &shown(&*spot.side, &spot.path), &mut progress)
}
