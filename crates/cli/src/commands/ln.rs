//! `lanefs ln`: hard and symbolic links inside a volume.

use super::cp::Target;
use crate::failure::{Cause, Failure, Res};
use crate::location::Location;
use crate::output::Out;
use crate::quote::{quoted, quoted_content};
use crate::side::Outcome;
use crate::volumes::{Spot, Volumes};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::ffi::OsString;
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
        let link = |path: &Path| match self.force.then(|| names_of_both(old, new)).flatten() {
            None => {
                let meta = old.side.metadata(&old.path, AtSymlink::NoFollow)?;
                old.side.hard_link(&old.path, meta.id(), path)
            }
            // It is a link of this file already.
            Some(names) if names > 1 && !old.is_same_name(new) => Ok(()),
            Some(_) => Err(Cause::text("they are the same file")),
        };
        self.replace(new, link, "hard link", &old.shown(), out)
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
        let link = |path: &Path| new.side.symlink(&text, path).map(drop);
        self.replace(&new, link, "symbolic link", &shown, out)
    }

    /// Makes a link with `link`, in place of what is at `new` if that is wanted.
    fn replace(
        &self,
        new: &Spot,
        link: impl Fn(&Path) -> Outcome,
        what: &str,
        to: &[u8],
        out: &mut Out,
    ) -> Res {
        let mut made = link(&new.path);
        if self.force && made.as_ref().is_err_and(|e| e.is(Errno::EXIST)) && new.path.file_name().is_some() {
            made = link_over(new, link);
        }
        let (name, to) = (quoted_content(new.shown()), quoted_content(to));
        made.map_err(|e| Failure::new(format!("cannot create {what} {name} to {to}: {e}")))?;
        if self.verbose {
            writeln!(out, "{name} -> {to}")?;
        }
        Ok(())
    }
}

/// Returns how many names a file has, if both are names of it.
fn names_of_both(old: &Spot, new: &Spot) -> Option<u64> {
    let [old, new] = [old, new].map(|spot| spot.side.metadata(&spot.path, AtSymlink::NoFollow).ok());
    old.zip(new).filter(|(old, new)| old.id() == new.id()).map(|(old, _)| old.nlink)
}

/// Replaces what is at `new` by a link. It is there until the link is, whatever fails.
fn link_over(new: &Spot, link: impl Fn(&Path) -> Outcome) -> Outcome {
    if new.side.metadata(&new.path, AtSymlink::NoFollow)?.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    for path in (0..u32::MAX).map(|n| new.path.with_file_name(format!(".lanefs-{n}"))) {
        match link(&path) {
            Err(e) if e.is(Errno::EXIST) => {}
            Err(e) => return Err(e),
            Ok(()) => {
                return new.side.rename(&path, &new.path).inspect_err(|_| {
                    // The error that is told is that of the name.
                    let _ = new.side.remove_file(&path);
                });
            }
        }
    }
    Err(Errno::EXIST.into())
}

fn label(mut volume: OsString) -> OsString {
    volume.push(":");
    volume
}
