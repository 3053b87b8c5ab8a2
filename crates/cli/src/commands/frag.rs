//! `lanefs frag`: in how many pieces files lie, and what runs of free space are left.

use crate::failure::{Noted, OrCannot, Res};
use crate::location::Location;
use crate::output::Out;
use crate::quote::JsonName;
use crate::side::VolumeSide;
use crate::size;
use crate::volumes::Volumes;
use crate::walk::{Walk, When};
use lanefs::{AtSymlink, Extents, Fragmentation};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Show in how many pieces files lie
///
/// Of a whole volume: the sums over all files, and the runs of free space by size. Of VOLUME:/path:
/// each file at and below the path, with its extents and the fewest that it could have.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Volumes, or files and directories in them
    #[arg(required = true, value_name = "VOLUME[:/PATH]")]
    places: Vec<OsString>,
    /// As JSON: one array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FileRow {
    #[serde(flatten)]
    path: JsonName,
    blocks: u64,
    extents: u64,
    ideal: u64,
}

#[derive(Serialize)]
struct VolumeRow {
    #[serde(flatten)]
    volume: JsonName,
    block_size: u32,
    files: u64,
    fragmented: u64,
    blocks: u64,
    extents: u64,
    ideal: u64,
    most_extents: u64,
    /// The file with the most; 0 if there is none.
    most_inode: u32,
    free_blocks: u64,
    free_runs: u64,
    longest_free_run: u64,
    free: Vec<FreeRow>,
}

#[derive(Serialize)]
struct FreeRow {
    /// Blocks of the shortest and of the longest run of this size.
    from: u64,
    to: u64,
    runs: u64,
    blocks: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FragRow {
    File(FileRow),
    Volume(VolumeRow),
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        let mut noted = Noted::default();
        let mut rows = Vec::new();
        for place in &self.places {
            let done = match Location::parse(place) {
                Location::Volume { volume, path } => volumes
                    .volume(&volume, false)
                    .and_then(|side| self.below(&side, &path, out, &mut noted, &mut rows)),
                _ => volumes.volume(place, false).and_then(|side| {
                    let read = side.with(|v| Ok((v.fragmentation()?, v.statfs().block_size)));
                    let (found, block_size) = read.or_cannot("read", place.as_bytes())?;
                    let row = VolumeRow::new(JsonName::new(place.as_bytes()), &found, block_size);
                    if !self.json {
                        row.show(place, out)?;
                    }
                    rows.push(FragRow::Volume(row));
                    Ok(())
                }),
            };
            noted.note(done)?;
        }
        if self.json {
            out.json(&rows)?;
        }
        volumes.close()?;
        noted.finish()
    }

    /// Adds a row for each file at and below `path`.
    fn below(
        &self,
        side: &VolumeSide,
        path: &Path,
        out: &mut Out,
        noted: &mut Noted,
        rows: &mut Vec<FragRow>,
    ) -> Res {
        for step in Walk::new(side, path, AtSymlink::NoFollow)? {
            let step = match step {
                Ok(step) => step,
                Err(failure) => {
                    noted.note(Err(failure))?;
                    continue;
                }
            };
            if step.when == When::Leave || !step.meta.is_file() {
                continue;
            }
            let name = crate::side::shown(side, &step.path);
            let found = side.with(|v| v.extents(&step.path)).or_cannot("read the map of", name.clone());
            let Extents { blocks, extents, ideal } = match found {
                Ok(found) => found,
                Err(failure) => {
                    noted.note(Err(failure))?;
                    continue;
                }
            };
            if !self.json {
                out.write_all(&out.name(&name))?;
                writeln!(out, ": {}, ideal {ideal}", counted(extents, "extent"))?;
                continue;
            }
            rows.push(FragRow::File(FileRow { path: JsonName::new(&name), blocks, extents, ideal }));
        }
        Ok(())
    }
}

impl VolumeRow {
    fn new(volume: JsonName, found: &Fragmentation, block_size: u32) -> Self {
        let class = |(order, class): (usize, &lanefs::FreeRuns)| FreeRow {
            from: 1 << order,
            to: (2 << order) - 1,
            runs: class.runs,
            blocks: class.blocks,
        };
        Self {
            volume,
            block_size,
            files: found.files,
            fragmented: found.fragmented,
            blocks: found.extents.blocks,
            extents: found.extents.extents,
            ideal: found.extents.ideal,
            most_extents: found.most,
            most_inode: found.most_ino,
            free_blocks: found.free.iter().map(|c| c.blocks).sum(),
            free_runs: found.free.iter().map(|c| c.runs).sum(),
            longest_free_run: found.longest_free,
            free: found.free.iter().enumerate().filter(|(_, c)| c.runs > 0).map(class).collect(),
        }
    }

    fn show(&self, name: &OsString, out: &mut Out) -> Res {
        let bytes = |blocks: u64| size::human(blocks.saturating_mul(self.block_size.into()));
        let shown = out.name(name.as_bytes());
        out.write_all(&shown)?;
        writeln!(
            out,
            ": {} with {} in {}, ideal {}",
            counted(self.files, "file"),
            bytes(self.blocks),
            counted(self.extents, "extent"),
            self.ideal
        )?;
        if self.fragmented > 0 {
            let has = if self.fragmented == 1 { "has" } else { "have" };
            writeln!(out, "{} {has} more extents than needed", counted(self.fragmented, "file"))?;
        }
        if self.most_inode > 0 {
            writeln!(out, "most: {} (inode {})", counted(self.most_extents, "extent"), self.most_inode)?;
        }
        writeln!(
            out,
            "free: {} in {}, the longest {}",
            bytes(self.free_blocks),
            counted(self.free_runs, "run"),
            bytes(self.longest_free_run)
        )?;
        if self.free.is_empty() {
            return Ok(());
        }
        writeln!(out, "{:>8} {:>10} {:>10} {:>6}", "from", "runs", "free", "%")?;
        for class in &self.free {
            let percent = class.blocks as f64 * 100.0 / self.free_blocks.max(1) as f64;
            let (from, free) = (bytes(class.from), bytes(class.blocks));
            writeln!(out, "{from:>8} {:>10} {free:>10} {percent:>6.2}", class.runs)?;
        }
        Ok(())
    }
}

fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
