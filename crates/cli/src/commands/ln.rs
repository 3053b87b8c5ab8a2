//! `lanefs ln`: hard and symbolic links inside a volume.

use super::cp::Target;
use crate::failure::{Failure, Res};
use crate::location::Location;
use crate::output::Out;
use crate::quote::quoted;
use crate::volumes::{Spot, Volumes};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Make links
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Targets of the links: VOLUME:/path; with -s any text
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// The new link, or a directory for it: VOLUME:/path
    #[arg(value_name = "VOLUME:/LINK")]
    link: OsString,
    /// Symbolic instead of hard links
    #[arg(short, long)]
    symbolic: bool,
    /// Replace existing files
    #[arg(short, long)]
    force: bool,
    /// The last argument is the link, not a directory for it
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Print each link
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        let place = Target::find(volumes.inside(&self.link, true)?, &self.link, self.no_target_directory)?;
        place.check(self.targets.len())?;
        volumes.for_each(&self.targets, |volumes, target| {
            if self.symbolic {
                return self.symbolic(target, &place, out);
            }
            let old = volumes.inside(target, true)?;
            self.hard(&old, &place.for_source(&old, target), out)
        })
    }

    fn hard(&self, old: &Spot, new: &Spot, out: &mut Out) -> Res {
        if old.side.place() != new.side.place() {
            let text = format!(
                "cannot link {} to {}: a hard link stays inside one volume",
                quoted(new.shown()),
                quoted(old.shown())
            );
            return Err(Failure::new(text));
        }
        self.replace(new, || old.side.hard_link(&old.path, &new.path), "hard link", &old.shown(), out)
    }

    /// Makes a symbolic link. A target `VOLUME:/path` of the link's own volume means the path; any
    /// other is kept as it is written.
    fn symbolic(&self, target: &OsString, place: &Target, out: &mut Out) -> Res {
        let text = match Location::parse(target) {
            Location::Volume { volume, path } if *place.spot.side.label() == label(volume.clone()) => path,
            _ => PathBuf::from(target),
        };
        let new = match text.file_name() {
            Some(name) if place.is_dir => place.spot.join(name),
            _ => place.spot.clone(),
        };
        let shown = text.as_os_str().as_encoded_bytes().to_vec();
        self.replace(&new, || new.side.symlink(&text, &new.path).map(drop), "symbolic link", &shown, out)
    }

    fn replace(
        &self,
        new: &Spot,
        link: impl Fn() -> crate::side::Outcome,
        what: &str,
        to: &[u8],
        out: &mut Out,
    ) -> Res {
        let mut made = link();
        if self.force
            && made.as_ref().is_err_and(|e| e.is(Errno::EXIST))
            && Path::new(&new.path).file_name().is_some()
        {
            made = new.side.remove_file(&new.path).and_then(|()| link());
        }
        let (name, to) = (quoted(new.shown()), quoted(to));
        made.map_err(|e| Failure::new(format!("cannot create {what} {name} to {to}: {e}")))?;
        if self.verbose {
            writeln!(out, "{name} -> {to}")?;
        }
        Ok(())
    }
}

fn label(mut volume: OsString) -> OsString {
    volume.push(":");
    volume
}
