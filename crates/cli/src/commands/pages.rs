//! `lanefs pages`: the manual pages and the completions of shells, as the arguments declare them.
//! Hidden: it is for the installation of lanefs.

use super::{MountHelper, UmountHelper, manual};
use crate::failure::{Cause, Failure, Res};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};

/// Write manual pages and completions of shells into a folder
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder: man1, man5, man8 and completions are made in it
    dir: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        write(&self.dir).map_err(|e| Failure::new(format!("{}: {}", self.dir.display(), Cause::from(e))))
    }
}

fn write(dir: &Path) -> io::Result<()> {
    let [man1, man5, man8, completions] = ["man1", "man5", "man8", "completions"].map(|sub| dir.join(sub));
    for dir in [&man1, &man5, &man8, &completions] {
        std::fs::create_dir_all(dir)?;
    }
    // `lanefs help COMMAND` prints what --help does: it needs no page.
    let command = crate::Args::command().disable_help_subcommand(true);
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    let names: Vec<String> = shown
        .flat_map(|c| {
            let nested = c.get_subcommands().map(|n| format!("{} {}", c.get_name(), n.get_name()));
            [c.get_name().to_owned()].into_iter().chain(nested.collect::<Vec<_>>())
        })
        .collect();
    clap_mangen::generate_to(command, &man1)?;
    append(&man1.join("lanefs.1"), "")?;
    for name in names {
        append(&man1.join(format!("lanefs-{}.1", name.replace(' ', "-"))), &name)?;
    }
    std::fs::write(man5.join("lanefs-mount-options.5"), manual::mount_options())?;
    helper::<MountHelper>(&man8)?;
    helper::<UmountHelper>(&man8)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut crate::Args::command(), "lanefs", &completions)?;
    }
    Ok(())
}

/// Adds to a command's page what its arguments do not say.
fn append(page: &Path, command: &str) -> io::Result<()> {
    let mut text = std::fs::read_to_string(page)?;
    text.push_str(&manual::sections(command));
    std::fs::write(page, text)
}

/// Writes the page of a program that mount(8) or umount(8) calls.
fn helper<P: Parser>(dir: &Path) -> io::Result<()> {
    let command = P::command();
    let name = command.get_name().to_owned();
    let page = clap_mangen::Man::new(command).section("8");
    let mut text = Vec::new();
    page.render(&mut text)?;
    text.extend_from_slice(manual::sections(&name).as_bytes());
    std::fs::write(dir.join(page.get_filename()), text)
}
