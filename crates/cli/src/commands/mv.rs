//! `lanefs mv`: renames within a volume, moves between volumes and the host.

use super::cp::{Target, refuse_host_to_host};
use super::rm::remove_tree;
use crate::copy::{Copier, Options};
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::Location;
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::quoted_content;
use crate::volumes::{Spot, Volumes};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::ffi::OsString;

/// Rename or move files and directories
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and directories to move: VOLUME:/path, or a path of the host
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,
    /// The new name or directory: VOLUME:/path, or a path of the host
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Do not overwrite existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// DST is the new name, not a directory to move into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Exchange SRC and DST, which are in one volume
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// Print each move
    #[arg(short, long)]
    verbose: bool,
    /// Accepted and ignored: the command never asks
    #[arg(short, long, hide = true)]
    force: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        let destination = Location::parse(&self.destination);
        for location in self.sources.iter().map(|s| Location::parse(s)).chain([destination.clone()]) {
            volumes.open_for_writing(&location)?;
        }
        refuse_host_to_host("mv", &self.sources, &self.destination)?;
        let target = volumes.spot(destination, true)?;
        let no_directory = self.no_target_directory || self.exchange;
        let target = Target::find_for_trees(target, &self.destination, no_directory);
        target.check(self.sources.len())?;
        let options = Options {
            recursive: true,
            preserve: true,
            archive: true,
            replace: true,
            several: self.sources.len() > 1,
            ..Options::default()
        };
        let mut copier = Copier::new(options, Progress::new("moving", None), out);
        volumes.for_each(&self.sources, |volumes, source| {
            let src = volumes.spot(Location::parse(source), true)?;
            target.check_source(&src, AtSymlink::NoFollow)?;
            let dst = target.for_source(&src, source);
            let mut rename = || self.one(&src, &dst, &mut copier);
            if self.no_clobber { rename() } else { target.make(&src, &dst, rename) }
        })
    }

    fn one(&self, src: &Spot, dst: &Spot, copier: &mut Copier<'_>) -> Res {
        let (src_shown, dst_shown) = (quoted_content(src.shown()), quoted_content(dst.shown()));
        let same_place = src.side.place() == dst.side.place();
        let failed = |cause: Cause| Failure::new(format!("cannot move {src_shown} to {dst_shown}: {cause}"));
        if self.exchange {
            if !same_place {
                return Err(failed(Cause::text("they are not in one volume")));
            }
            src.side.exchange(&src.path, &dst.path).map_err(failed)?;
        } else {
            let meta = src.side.metadata(&src.path, AtSymlink::NoFollow).or_cannot("stat", src.shown())?;
            let there = dst.side.metadata(&dst.path, AtSymlink::NoFollow).ok();
            if self.no_clobber && there.is_some() {
                return Ok(());
            }
            let same_file = same_place && there.as_ref().is_some_and(|there| there.id() == meta.id());
            if same_file && (meta.is_dir() || meta.nlink == 1 || src.is_same_name(dst)) {
                return Err(Failure::new(format!("{src_shown} and {dst_shown} are the same file")));
            }
            let is_full = || dst.side.read_dir(&dst.path).is_ok_and(|names| !names.is_empty());
            let renamed = match same_place {
                // A rename changes nothing between two names of one file.
                true if same_file => src.side.remove_file(&src.path),
                true => src.side.rename(&src.path, &dst.path),
                false if meta.is_dir() && there.as_ref().is_some_and(|there| there.is_dir()) && is_full() => {
                    Err(Errno::NOTEMPTY.into())
                }
                false => Err(Errno::XDEV.into()),
            };
            match renamed {
                Err(e) if e.is(Errno::XDEV) => copy_and_remove(src, dst, copier)?,
                Err(e) if e.is(Errno::INVAL) && meta.is_dir() && dst.path.starts_with(&src.path) => {
                    let text = format!("cannot move {src_shown} to a subdirectory of itself, {dst_shown}");
                    return Err(Failure::new(text));
                }
                renamed => renamed.map_err(failed)?,
            }
        }
        if self.verbose {
            writeln!(copier.out, "renamed {src_shown} -> {dst_shown}")?;
        }
        Ok(())
    }
}

/// Removes the source only if all of it has been copied.
fn copy_and_remove(src: &Spot, dst: &Spot, copier: &mut Copier<'_>) -> Res {
    let copied = copier.copy(src, dst);
    // Ends the progress of this copy: the removal has its own.
    copier.progress = Progress::new("moving", None);
    copied?;
    dst.side.sync().or_cannot("write", dst.shown())?;
    remove_tree(src, false, copier.out)
}
