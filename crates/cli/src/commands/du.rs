//! `lanefs du`: the space that trees take.

use crate::failure::Res;
use crate::location::Location;
use crate::output::Out;
use crate::quote::JsonName;
use crate::side::{Meta, shown};
use crate::size;
use crate::volumes::{Spot, Volumes};
use crate::walk::{Step, Walk, When};
use lanefs::AtSymlink;
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;

/// Show the space that directories and all below them take
///
/// In KiB of blocks; a file with several names counts once.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Directories and files, as VOLUME:/path
    #[arg(required = true, value_name = "VOLUME[:/PATH]")]
    paths: Vec<OsString>,
    /// A line for each argument only
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,
    /// Lines for files too, not only for directories
    #[arg(short, long)]
    all: bool,
    /// Lines for what lies at most DEPTH levels below an argument
    #[arg(short = 'd', long, value_name = "DEPTH")]
    max_depth: Option<usize>,
    /// Count the sizes of files (i_size), not the blocks that they occupy
    #[arg(long)]
    apparent_size: bool,
    /// As --apparent-size, in bytes
    #[arg(short, long)]
    bytes: bool,
    /// In K, M, G
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// A line with the sum of all arguments
    #[arg(short = 'c', long)]
    total: bool,
    /// One JSON array of the lines
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A line as JSON has it.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    name: JsonName,
    size: u64,
}

/// The sums that were counted so far.
#[derive(Default)]
struct Counted {
    /// Inodes with several names, and directories, by device and number.
    seen: HashSet<(u64, u64)>,
    total: u64,
    lines: Vec<Line>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut counted = Counted::default();
        let done = Volumes::default().for_each(&self.paths, |volumes, path| {
            let spot = volumes.spot(Location::parse_inside(path), false)?;
            self.tree(&spot, &mut counted, out)
        });
        if self.total {
            self.line(b"total".to_vec(), counted.total, &mut counted.lines, out)?;
        }
        if self.json {
            out.json(&counted.lines)?;
        }
        done
    }

    fn tree(&self, spot: &Spot, counted: &mut Counted, out: &mut Out) -> Res {
        let side = &*spot.side;
        // Bytes of each directory that was entered and not left.
        let mut sums: Vec<u64> = Vec::new();
        Walk::new(side, &spot.path, AtSymlink::NoFollow)?.each_step(|walk, step| {
            let bytes = match step.when {
                When::Leave => sums.pop().unwrap_or(0),
                When::Enter if !counted.is_new(&step.meta) => {
                    walk.stay_out();
                    return Ok(());
                }
                When::Enter => self.size_of(&step.meta),
            };
            if step.meta.is_dir() && step.when == When::Enter {
                sums.push(bytes);
                return Ok(());
            }
            let sum = sums.last_mut().unwrap_or(&mut counted.total);
            // Sizes are the volume's author's.
            *sum = sum.saturating_add(bytes);
            if self.is_shown(&step) {
                self.line(shown(side, &step.path), bytes, &mut counted.lines, out)?;
            }
            Ok(())
        })
    }

    fn is_shown(&self, step: &Step) -> bool {
        let depth = if self.summarize { Some(0) } else { self.max_depth };
        let below = depth.is_none_or(|depth| step.depth <= depth);
        step.depth == 0 || below && (self.all || step.meta.is_dir())
    }

    fn size_of(&self, meta: &Meta) -> u64 {
        if self.apparent_size || self.bytes { meta.size } else { meta.blocks.saturating_mul(512) }
    }

    fn line(&self, name: Vec<u8>, bytes: u64, lines: &mut Vec<Line>, out: &mut Out) -> Res {
        if self.json {
            lines.push(Line { name: JsonName::new(&name), size: bytes });
            return Ok(());
        }
        let size = match () {
            () if self.human_readable => size::human(bytes),
            () if self.bytes => bytes.to_string(),
            () => bytes.div_ceil(1024).to_string(),
        };
        let name = out.name(&name);
        out.write_all(&[size.as_bytes(), b"\t", &name, b"\n"].concat())
    }
}

impl Counted {
    /// Returns whether the inode is met by its first name.
    fn is_new(&mut self, meta: &Meta) -> bool {
        meta.nlink < 2 && !meta.is_dir() || self.seen.insert(meta.id())
    }
}
