//! `lanefs tree`: draws the tree below a directory.

use crate::entry::Entry;
use crate::failure::{OrCannot, Res};
use crate::location::Location;
use crate::output::{Out, file_style};
use crate::side::{Meta, shown};
use crate::size;
use crate::volumes::{Spot, Volumes};
use crate::walk::{Walk, When};
use lanefs::AtSymlink;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Show directories as a tree
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Directories, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME[:/DIR]")]
    dirs: Vec<OsString>,
    /// Go at most DEPTH levels down
    #[arg(short = 'L', long, value_name = "DEPTH")]
    level: Option<usize>,
    /// Directories only
    #[arg(short)]
    dirs_only: bool,
    /// Show the size of each file
    #[arg(short)]
    size: bool,
    /// With -s: sizes in K, M, G
    #[arg(short = 'h')]
    human: bool,
    /// One JSON array of all files
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Default)]
struct Counts {
    dirs: u64,
    files: u64,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut counts = Counts::default();
        let mut entries = Vec::new();
        let done = Volumes::default().for_each(&self.dirs, |volumes, dir| {
            let spot = volumes.spot(Location::parse_inside(dir), false)?;
            self.draw(&spot, out, &mut counts, &mut entries)
        });
        if self.json {
            out.json(&entries)?;
        } else {
            let dirs = if counts.dirs == 1 { "directory" } else { "directories" };
            let files = if counts.files == 1 { "file" } else { "files" };
            if self.dirs_only {
                writeln!(out, "\n{} {dirs}", counts.dirs)?;
            } else {
                writeln!(out, "\n{} {dirs}, {} {files}", counts.dirs, counts.files)?;
            }
        }
        done
    }

    fn draw(&self, spot: &Spot, out: &mut Out, counts: &mut Counts, entries: &mut Vec<Entry>) -> Res {
        let side = &*spot.side;
        // Whether each directory on the way down was the last of its siblings.
        let mut lasts: Vec<bool> = Vec::new();
        let mut walk = Walk::new(side, &spot.path, AtSymlink::Follow)?;
        if self.dirs_only {
            walk.keep_dirs_only();
        }
        walk.each_step(|walk, step| {
            if step.when == When::Leave {
                return Ok(());
            }
            if step.meta.is_dir() {
                counts.dirs += u64::from(step.depth > 0);
                if self.level == Some(step.depth) {
                    walk.stay_out();
                }
            } else {
                counts.files += 1;
            }
            if self.json {
                entries.push(Entry::new(side, &step.path, &step.meta));
                return Ok(());
            }
            let (mut line, mut unread) = (Vec::new(), Ok(()));
            if step.depth == 0 {
                let name = out.name(&spot.shown());
                line.extend(out.styled(name, file_style(step.meta.mode)));
            } else {
                lasts.truncate(step.depth - 1);
                for last in &lasts {
                    line.extend(if *last { "    " } else { "│   " }.bytes());
                }
                lasts.push(step.last);
                line.extend(if step.last { "└── " } else { "├── " }.bytes());
                if self.size {
                    line.extend(self.size_of(&step.meta).bytes());
                }
                let name = out.name(step.path.file_name().unwrap_or_default().as_bytes());
                line.extend(out.styled(name, file_style(step.meta.mode)));
                if step.meta.is_symlink() {
                    let target = side.read_link(&step.path);
                    match target.or_cannot("read symbolic link", shown(side, &step.path)) {
                        Ok(target) => line.extend([b" -> ", out.name(target.as_bytes()).as_slice()].concat()),
                        Err(failure) => unread = Err(failure),
                    }
                }
            }
            line.push(b'\n');
            out.write_all(&line)?;
            unread
        })
    }

    fn size_of(&self, meta: &Meta) -> String {
        if self.human {
            format!("[{:>5}]  ", size::human(meta.size))
        } else {
            format!("[{:>11}]  ", meta.size)
        }
    }
}
