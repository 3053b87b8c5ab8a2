//! `lanefs pages`: the manual pages and the completions of shells, as the arguments declare them. Hidden: it is for who installs
//! lanefs.

use super::{MountHelper, UmountHelper};
use crate::failure::{Cause, Failure, Res};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};

/// Write manual pages and completions of shells into a folder
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder: man1, man8 and completions are made in it
    dir: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        write(&self.dir).map_err(|e| Failure::new(format!("{}: {}", self.dir.display(), Cause::from(e))))
    }
}

fn write(dir: &Path) -> io::Result<()> {
    let [man1, man8, completions] = ["man1", "man8", "completions"].map(|sub| dir.join(sub));
    for dir in [&man1, &man8, &completions] {
        std::fs::create_dir_all(dir)?;
    }
    clap_mangen::generate_to(crate::Args::command(), &man1)?;
    helper::<MountHelper>(&man8)?;
    helper::<UmountHelper>(&man8)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut crate::Args::command(), "lanefs", &completions)?;
    }
    Ok(())
}

/// The page of a program that mount(8) or umount(8) calls.
fn helper<P: Parser>(dir: &Path) -> io::Result<()> {
    let page = clap_mangen::Man::new(P::command()).section("8");
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(dir.join(page.get_filename()), text)
}
