//! `lanefs recover`: the journal replayed, unlinked files removed, the volume marked clean.

use crate::failure::Res;
use crate::location::whole_volume;
use crate::output::Out;
use crate::quote::{JsonName, quoted};
use crate::volumes::{self, Volumes};
use lanefs_format::{Incompat, State, Superblock};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Bring a volume that was not closed to its last committed state
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    volume: JsonName,
    /// Whether the journal held transactions to replay.
    needed: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let before = volumes::read_superblock(&volumes::device(&name)?, &name)?;
        let mut volumes = Volumes::default();
        volumes.volume(&name, true)?;
        volumes.close()?;
        let report = Report { volume: JsonName::new(name.as_bytes()), needed: needs_recovery(&before) };
        if self.json {
            return out.json(&report);
        }
        let name = quoted(name.as_bytes());
        if report.needed {
            writeln!(out, "{name}: journal replayed, volume is clean")?;
        } else {
            writeln!(out, "{name}: clean, nothing to recover")?;
        }
        Ok(())
    }
}

/// Whether a volume was left without being closed.
fn needs_recovery(sb: &Superblock) -> bool {
    sb.has_in(Incompat::RECOVER) || !sb.state().contains(State::VALID_FS) || sb.last_orphan() != 0
}
