//! `lanefs recover`: the journal replayed, unlinked files removed, the volume marked clean.

use crate::failure::{OrCannot, Res};
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
    /// Whether the volume had been left without being closed.
    needed: bool,
    transactions: u32,
    /// Blocks written in place from the journal.
    blocks: u64,
    /// Old copies that revoke records kept from being written.
    revoked: u64,
    /// Files that were unlinked or being truncated, and are finished now.
    orphans: u32,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let before = volumes::read_superblock(&volumes::device(&name)?, &name)?;
        let mut volumes = Volumes::default();
        let side = volumes.volume(&name, true)?;
        let recovery = side.with(|v| Ok(v.info().recovery)).or_cannot("recover", name.as_bytes())?;
        drop(side);
        volumes.close()?;
        let report = Report {
            volume: JsonName::new(name.as_bytes()),
            needed: was_left_open(&before) || recovery != lanefs::Recovery::default(),
            transactions: recovery.journal.transactions,
            blocks: recovery.journal.blocks,
            revoked: recovery.journal.revoked,
            orphans: recovery.orphans,
        };
        if self.json {
            return out.json(&report);
        }
        let name = quoted(name.as_bytes());
        if !report.needed {
            return Ok(writeln!(out, "{name}: clean, nothing to recover")?);
        }
        let many = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        Ok(writeln!(
            out,
            "{name}: {} replayed ({}, {} revoked), {} finished; the volume is clean",
            many(report.transactions.into(), "transaction", "transactions"),
            many(report.blocks, "block", "blocks"),
            report.revoked,
            many(report.orphans.into(), "orphan", "orphans"),
        )?)
    }
}

/// Returns whether the volume was left open: its last user did not close it.
fn was_left_open(sb: &Superblock) -> bool {
    sb.has_in(Incompat::RECOVER) || !sb.state().contains(State::VALID_FS) || sb.last_orphan() != 0
}
