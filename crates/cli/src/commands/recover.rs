//! `lanefs recover`: the journal replayed, unlinked files removed, the volume marked clean.

use crate::failure::{OrCannot, Res};
use crate::location::{VolumeName, whole_volume};
use crate::output::Out;
use crate::quote::{JsonName, quoted};
use crate::volumes::{self, Volumes};
use lanefs_format::{Incompat, State, Superblock};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Bring a volume that was not closed to its last committed state
///
/// Without a journal there is no such state: e2fsck mends the volume.
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
    /// Whether the volume is sound now, as far as `s_state` tells.
    clean: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        // `None` for one that a power cut has torn, which the open mends.
        let before = volumes::read_superblock(&volumes::device(&name)?, &name).ok();
        let mut volumes = Volumes::default();
        let side = volumes.volume(&name, true)?;
        let recovery = side.with(|v| Ok(v.info().recovery)).or_cannot("recover", name.as_bytes())?;
        drop(side);
        volumes.close()?;
        // Without the lock, for which the next program may have waited.
        let after = volumes::read_superblock(&*volumes::unlocked_device(&name)?, &name)?;
        let left = left_to_mend(&after);
        let report = Report {
            volume: JsonName::new(name.as_bytes()),
            needed: before.is_none_or(|sb| was_left_open(&sb)) || recovery != lanefs::Recovery::default(),
            transactions: recovery.journal.transactions,
            blocks: recovery.journal.blocks,
            revoked: recovery.journal.revoked,
            orphans: recovery.orphans,
            clean: left.is_none(),
        };
        if self.json {
            return out.json(&report);
        }
        report.show(&name, left, out)
    }
}

impl Report {
    fn show(&self, name: &VolumeName, left: Option<&str>, out: &mut Out) -> Res {
        let name = quoted(name.as_bytes());
        if !self.needed {
            match left {
                Some(left) => writeln!(out, "{name}: nothing to recover; {left}")?,
                None => writeln!(out, "{name}: clean, nothing to recover")?,
            }
            return Ok(());
        }
        let many = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        writeln!(
            out,
            "{name}: {} replayed ({}, {} revoked), {} finished; {}",
            many(self.transactions.into(), "transaction", "transactions"),
            many(self.blocks, "block", "blocks"),
            self.revoked,
            many(self.orphans.into(), "orphan", "orphans"),
            left.unwrap_or("the volume is clean"),
        )
    }
}

/// Returns whether the volume was left open: its last user did not close it.
fn was_left_open(sb: &Superblock) -> bool {
    sb.has_in(Incompat::RECOVER) || !sb.state().contains(State::VALID_FS) || sb.last_orphan() != 0
}

/// Returns what recovery leaves to mend, and by what, if `s_state` tells of it.
fn left_to_mend(sb: &Superblock) -> Option<&'static str> {
    let state = sb.state();
    if state.contains(State::ERROR_FS) {
        return Some("the volume has errors: run e2fsck -f");
    }
    (!state.contains(State::VALID_FS)).then_some("the volume may have errors: run e2fsck -f")
}
