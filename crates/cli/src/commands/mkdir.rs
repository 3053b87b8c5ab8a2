//! `lanefs mkdir`: new directories.

use super::cp::umask;
use crate::failure::{Failure, OrCannot, Res};
use crate::mode::ModeChange;
use crate::output::Out;
use crate::quote::quoted_content;
use crate::volumes::{Spot, Volumes};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::ffi::OsString;
use std::path::Path;

/// Make directories
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directories to make, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/DIR")]
    dirs: Vec<OsString>,
    /// Make parent directories as needed; an existing directory is no error
    #[arg(short, long)]
    parents: bool,
    /// Mode of the new directories, as chmod has it
    #[arg(short, long)]
    mode: Option<ModeChange>,
    /// Print each new directory
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        Volumes::default().for_each(&self.dirs, |volumes, dir| self.one(&volumes.inside(dir, true)?, out))
    }

    fn one(&self, spot: &Spot, out: &mut Out) -> Res {
        let umask = umask();
        if self.parents {
            let mut above: Vec<&Path> =
                spot.path.ancestors().skip(1).filter(|p| p.file_name().is_some()).collect();
            above.reverse();
            for dir in above {
                // The owner of a parent directory must be able to make entries in it.
                self.make(&Spot { path: dir.into(), ..spot.clone() }, (0o777 & !umask) | 0o300, out)?;
            }
        }
        let mode = match &self.mode {
            Some(change) => change.apply(0o040777, umask),
            None => 0o777 & !umask,
        };
        self.make(spot, mode, out)
    }

    fn make(&self, spot: &Spot, mode: u32, out: &mut Out) -> Res {
        match spot.side.mkdir(&spot.path, mode) {
            Err(e) if self.parents && e.is(Errno::EXIST) => {
                match spot.side.metadata(&spot.path, AtSymlink::Follow) {
                    Ok(meta) if meta.is_dir() => return Ok(()),
                    _ => return Err(Failure::cannot("create directory", spot.shown(), e)),
                }
            }
            made => made.or_cannot("create directory", spot.shown())?,
        }
        // mkdir itself drops the set-id bits.
        if mode & 0o7000 != 0 {
            let set = spot.side.node(&spot.path, None).and_then(|node| node.set_mode(mode));
            set.or_cannot("set permissions of", spot.shown())?;
        }
        if self.verbose {
            writeln!(out, "created directory {}", quoted_content(spot.shown()))?;
        }
        Ok(())
    }
}
