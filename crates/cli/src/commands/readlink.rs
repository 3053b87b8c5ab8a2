//! `lanefs readlink`: what symbolic links lead to.

use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::Location;
use crate::output::Out;
use crate::side::{Outcome, Side};
use crate::volumes::{Spot, Volumes};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Links that a path goes through at most, as the kernel counts.
const LINKS_MAX: usize = 40;

/// Print what symbolic links lead to
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Links, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// The path inside the volume without any link, . or ..; all of it but its last name must exist
    #[arg(short = 'f', long)]
    canonicalize: bool,
    /// As -f, and the last name must exist too
    #[arg(short = 'e', long)]
    canonicalize_existing: bool,
    /// No newline behind a single path
    #[arg(short, long)]
    no_newline: bool,
    /// Zero bytes instead of newlines
    #[arg(short, long)]
    zero: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let end: &[u8] = match (self.zero, self.no_newline && self.paths.len() == 1) {
            (_, true) => b"",
            (true, _) => b"\0",
            _ => b"\n",
        };
        Volumes::default().for_each(&self.paths, |volumes, path| {
            let spot = volumes.spot(Location::parse_inside(path), false)?;
            let target = self.target(&spot)?;
            let target = target.as_bytes();
            let shown = if self.zero { target.to_vec() } else { out.name(target) };
            out.write_all(&[shown.as_slice(), end].concat())
        })
    }

    fn target(&self, spot: &Spot) -> Res<OsString> {
        if self.canonicalize || self.canonicalize_existing {
            let path = canonical(&*spot.side, &spot.path, self.canonicalize_existing);
            return Ok(path.or_cannot("resolve", spot.shown())?.into());
        }
        spot.side.read_link(&spot.path).map_err(|e| {
            let e = if e.is(Errno::INVAL) { Cause::text("it is not a symbolic link") } else { e };
            Failure::cannot("read", spot.shown(), e)
        })
    }
}

/// Returns the path that `path` leads to, free of links.
fn canonical(side: &dyn Side, path: &Path, existing: bool) -> Outcome<PathBuf> {
    let mut at = PathBuf::from("/");
    // The last name to look up is at the bottom.
    let mut left = names(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        match name.as_bytes() {
            b"." => continue,
            b".." => {
                at.pop();
                continue;
            }
            _ => {}
        }
        let next = at.join(&name);
        match side.metadata(&next, AtSymlink::NoFollow) {
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                let target = PathBuf::from(side.read_link(&next)?);
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                left.extend(names(&target));
            }
            Ok(meta) if !left.is_empty() && !meta.is_dir() => return Err(Errno::NOTDIR.into()),
            Err(e) if existing || !left.is_empty() || !e.is(Errno::NOENT) => return Err(e),
            _ => at = next,
        }
    }
    Ok(at)
}

/// Returns the names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.as_os_str().as_bytes().split(|b| *b == b'/');
    names.rev().filter(|name| !name.is_empty()).map(|name| OsStr::from_bytes(name).into()).collect()
}
