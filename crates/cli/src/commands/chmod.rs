//! `lanefs chmod`: permission bits.

use super::cp::umask;
use crate::failure::{OrCannot, Res};
use crate::mode::{self, ModeChange};
use crate::output::Out;
use crate::quote::quoted_content;
use crate::side::{Meta, Side, shown};
use crate::volumes::{Spot, Volumes};
use crate::walk::{Walk, When};
use lanefs::AtSymlink;
use std::ffi::OsString;
use std::path::Path;

/// Change permission bits
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new mode, octal (0755) or symbolic (u=rwX,go-w)
    #[arg(allow_hyphen_values = true)]
    mode: ModeChange,
    /// Files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// Change directories and all files below them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print each change
    #[arg(short, long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let umask = umask();
        Volumes::default()
            .for_each(&self.paths, |volumes, path| self.tree(&volumes.inside(path, true)?, umask, out))
    }

    fn tree(&self, spot: &Spot, umask: u32, out: &mut Out) -> Res {
        let side = &*spot.side;
        if !self.recursive {
            let path = side.resolve(&spot.path).or_cannot("access", spot.shown())?;
            let meta = side.metadata(&path, AtSymlink::NoFollow).or_cannot("access", spot.shown())?;
            return self.one(side, &path, &meta, umask, out);
        }
        Walk::new(side, &spot.path, AtSymlink::Follow)?.each_step(|_, step| {
            if step.when == When::Leave || step.meta.is_symlink() {
                return Ok(());
            }
            self.one(side, &step.path, &step.meta, umask, out)
        })
    }

    fn one(&self, side: &dyn Side, path: &Path, meta: &Meta, umask: u32, out: &mut Out) -> Res {
        let old = meta.mode & 0o7777;
        let new = self.mode.apply(meta.mode, umask);
        if new != old {
            let set = side.node(path, Some(meta.id())).and_then(|node| node.set_mode(new));
            set.or_cannot("change permissions of", shown(side, path))?;
        }
        if self.verbose {
            let name = quoted_content(shown(side, path));
            let text = mode::shown(meta.kind() | new);
            let verb = if new == old { "retained as" } else { "changed to" };
            writeln!(out, "mode of {name} {verb} {new:04o} ({})", &text[1..])?;
        }
        Ok(())
    }
}
