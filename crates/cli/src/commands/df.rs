//! `lanefs df`: how full volumes are.

use crate::failure::{Noted, OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::quote::{JsonName, listed};
use crate::size;
use crate::volumes::Volumes;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Show how full volumes are
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Volumes
    #[arg(required = true, value_name = "VOLUME")]
    volumes: Vec<OsString>,
    /// Sizes in K, M, G
    #[arg(short = 'h')]
    human: bool,
    /// Inodes instead of blocks
    #[arg(short)]
    inodes: bool,
    /// As JSON, in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Serialize)]
struct DfRow {
    #[serde(flatten)]
    volume: JsonName,
    /// Bytes that files can have in all.
    size: u64,
    used: u64,
    /// Free and not reserved for root.
    available: u64,
    /// Free, with the reserve.
    free: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let mut volumes = Volumes::default();
        let mut noted = Noted::default();
        let (mut rows, mut json) = (Vec::new(), Vec::new());
        volumes.visit(&self.volumes, &mut noted, |volumes, arg| {
            let name = whole_volume(arg);
            let side = volumes.volume(&name, false)?;
            let s = side.with(|v| Ok(v.statfs())).or_cannot("read", name.as_bytes())?;
            let bytes = |blocks: u64| blocks.saturating_mul(s.block_size.into());
            let row = DfRow {
                volume: JsonName::new(name.as_bytes()),
                size: bytes(s.blocks),
                used: bytes(s.blocks.saturating_sub(s.blocks_free)),
                available: bytes(s.blocks_available),
                free: bytes(s.blocks_free),
                inodes: s.inodes,
                inodes_free: s.inodes_free,
            };
            rows.push(self.cells(&row, listed(name.as_bytes())));
            json.push(row);
            Ok(())
        })?;
        if self.json {
            out.json(&json)?;
        } else if !rows.is_empty() {
            self.table(rows, out)?;
        }
        volumes.close()?;
        noted.finish()
    }

    fn cells(&self, row: &DfRow, name: String) -> [String; 5] {
        let (all, used, available) = if self.inodes {
            (row.inodes, row.inodes.saturating_sub(row.inodes_free), row.inodes_free)
        } else {
            (row.size, row.used, row.available)
        };
        // Of what ordinary users can have, rounded up, as df has it.
        let usable = u128::from(used) + u128::from(available);
        let percent = match usable {
            0 => "-".into(),
            _ => format!("{}%", (u128::from(used) * 100).div_ceil(usable)),
        };
        let show = |n: u64| match () {
            () if self.human => size::human(n),
            () if self.inodes => n.to_string(),
            () => n.div_ceil(1024).to_string(),
        };
        [name, show(all), show(used), show(available), percent]
    }

    fn table(&self, mut rows: Vec<[String; 5]>, out: &mut Out) -> Res {
        let heading = match () {
            () if self.inodes => ["Volume", "Inodes", "IUsed", "IFree", "IUse%"],
            () if self.human => ["Volume", "Size", "Used", "Avail", "Use%"],
            () => ["Volume", "1K-blocks", "Used", "Available", "Use%"],
        };
        rows.insert(0, heading.map(String::from));
        let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
        let widths = [0, 1, 2, 3, 4].map(width);
        for row in &rows {
            let [name, all, used, available, percent] = row;
            let [w0, w1, w2, w3, w4] = widths;
            writeln!(out, "{name:w0$} {all:>w1$} {used:>w2$} {available:>w3$} {percent:>w4$}")?;
        }
        Ok(())
    }
}
