//! `lanefs chown`: owners and groups.

use crate::failure::{OrCannot, Res};
use crate::output::Out;
use crate::owner::Owner;
use crate::quote::quoted_content;
use crate::side::{Meta, Side, shown};
use crate::volumes::{Spot, Volumes};
use crate::walk::{Walk, When};
use lanefs::AtSymlink;
use std::ffi::OsString;
use std::path::Path;

/// Change owner and group
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// USER, USER:GROUP or :GROUP; numbers, or names of this host
    owner: Owner,
    /// Files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// Change directories and all files below them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change a symbolic link itself, not its target
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print each change
    #[arg(short, long)]
    verbose: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        Volumes::default().for_each(&self.paths, |volumes, path| self.tree(&volumes.inside(path, true)?, out))
    }

    fn tree(&self, spot: &Spot, out: &mut Out) -> Res {
        let side = &*spot.side;
        if !self.recursive {
            let follow = !self.no_dereference;
            let path = if follow { side.resolve(&spot.path) } else { Ok(spot.path.clone()) };
            let path = path.or_cannot("access", spot.shown())?;
            let meta = side.metadata(&path, AtSymlink::NoFollow).or_cannot("access", spot.shown())?;
            return self.one(side, &path, &meta, out);
        }
        // Links met on the way are changed themselves: what they lead to may be anywhere.
        Walk::new(side, &spot.path, AtSymlink::NoFollow)?.each_step(|_, step| match step.when {
            When::Enter => self.one(side, &step.path, &step.meta, out),
            When::Leave => Ok(()),
        })
    }

    fn one(&self, side: &dyn Side, path: &Path, meta: &Meta, out: &mut Out) -> Res {
        let uid = self.owner.uid.unwrap_or(meta.uid);
        let gid = self.owner.gid.unwrap_or(meta.gid);
        side.node(path, Some(meta.id()))
            .and_then(|node| node.set_owner(self.owner.uid, self.owner.gid))
            .or_cannot("change ownership of", shown(side, path))?;
        if self.verbose {
            let name = quoted_content(shown(side, path));
            if (uid, gid) == (meta.uid, meta.gid) {
                writeln!(out, "ownership of {name} retained as {uid}:{gid}")?;
            } else {
                writeln!(out, "changed ownership of {name} from {}:{} to {uid}:{gid}", meta.uid, meta.gid)?;
            }
        }
        Ok(())
    }
}
