//! `lanefs rm`: removes files and trees.

use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::{quoted, quoted_content};
use crate::side::shown;
use crate::volumes::{Spot, Volumes};
use crate::walk::{Walk, When};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Remove files and directories
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and directories to remove, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// Remove directories and their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Print each removed name
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        Volumes::default()
            .for_each(&self.paths, |volumes, path| self.one(&volumes.inside(path, true)?, path, out))
    }

    fn one(&self, spot: &Spot, written: &OsString, out: &mut Out) -> Res {
        let meta = match spot.side.metadata(&spot.path, AtSymlink::NoFollow) {
            Err(e) if self.force && (e.is(Errno::NOENT) || e.is(Errno::NOTDIR)) => return Ok(()),
            meta => meta.or_cannot("remove", spot.shown())?,
        };
        if !meta.is_dir() {
            spot.side.remove_file(&spot.path).or_cannot("remove", spot.shown())?;
            return say(self.verbose, "removed", &spot.shown(), out);
        }
        let last = written.as_bytes().rsplit(|b| *b == b'/').find(|part| !part.is_empty());
        if matches!(last, Some(b"." | b"..")) {
            return Err(Failure::new(format!(
                "refusing to remove '.' or '..' directory: skipping {}",
                quoted(spot.shown())
            )));
        }
        if self.recursive {
            if spot.path.file_name().is_none() {
                let text = format!(
                    "cannot remove the root of a volume, {}: to empty it, make it anew with lanefs mkfs",
                    quoted(spot.shown())
                );
                return Err(Failure::new(text));
            }
            return remove_tree(spot, self.verbose, out);
        }
        if !self.dir {
            return Err(Failure::cannot(
                "remove",
                spot.shown(),
                Cause::text("Is a directory; -r removes it with all that is in it"),
            ));
        }
        spot.side.remove_dir(&spot.path).or_cannot("remove", spot.shown())?;
        say(self.verbose, "removed directory", &spot.shown(), out)
    }
}

fn say(verbose: bool, what: &str, name: &[u8], out: &mut Out) -> Res {
    if verbose {
        writeln!(out, "{what} {}", quoted_content(name))?;
    }
    Ok(())
}

/// Removes the tree at `spot`. Reports each name that cannot be removed, and goes on.
pub(super) fn remove_tree(spot: &Spot, verbose: bool, out: &mut Out) -> Res {
    let side = &*spot.side;
    let mut progress = Progress::new("removing", None);
    Walk::new(side, &spot.path, AtSymlink::NoFollow)?.each_step(|_, step| {
        let name = || shown(side, &step.path);
        let removed = match (step.meta.is_dir(), step.when) {
            (true, When::Enter) => return Ok(()),
            (true, When::Leave) => side.remove_dir(&step.path).or_cannot("remove", name()),
            (false, _) => side.remove_file(&step.path).or_cannot("remove", name()),
        };
        progress.file();
        let what = if step.meta.is_dir() { "removed directory" } else { "removed" };
        removed.and_then(|()| say(verbose, what, &name(), out))
    })
}
