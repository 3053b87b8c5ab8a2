//! `lanefs check`: whether a volume is consistent. Nothing is written to it.
//!
//! The command reads the volume as it is on the medium, and replays its log in memory. The volume
//! holds still meanwhile, even if it is in use: [`still`].

mod still;

use crate::failure::{Cause, Failure, Res};
use crate::location::{VolumeName, whole_volume};
use crate::output::Out;
use crate::quote::{JsonName, quoted};
use lanefs_check::{CheckError, Finding, Options, Report};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use still::Still;

/// Rules that the volume breaks, as fsck(8) has it for "errors left uncorrected".
const FINDINGS: u8 = 4;
/// The volume could not be checked, as fsck(8) has it for an operational error.
const NOT_CHECKED: u8 = 8;

/// Check a volume for consistency, without a change to it
///
/// A journal that was not replayed is replayed in memory first. Of a volume that lanefs has mounted
/// the state of its last commit is checked; syncs on the mount wait meanwhile, 30 seconds at most.
/// One that the kernel has mounted has to be frozen for the time of the check (fsfreeze). Exit
/// status: 0 if the volume is consistent, 4 if it is not, 8 if it could not be checked, 16 after
/// wrong arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Show at most this many findings; the others are counted
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    max_findings: usize,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    volume: JsonName,
    clean: bool,
    /// All findings, with those that are not shown.
    count: u64,
    findings: Vec<FindingRow>,
    /// Structures that were not looked into.
    unchecked: Vec<FindingRow>,
    /// Damage kept the check from looking at everything.
    cut_short: bool,
    /// The journal was replayed in memory.
    replayed: bool,
    /// The volume was in use.
    live: bool,
    orphans: u64,
    inodes: u64,
    directories: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct FindingRow {
    structure: &'static str,
    /// Which one it is, by name: group, inode, block, lblk, offset.
    #[serde(flatten)]
    numbers: BTreeMap<&'static str, u64>,
    rule: &'static str,
    text: String,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let (report, live) = self.check(&name).map_err(|failure| failure.code(NOT_CHECKED))?;
        if self.json {
            out.json(&Shown::new(&name, &report, live))?;
        } else {
            show(&name, &report, live, out)?;
        }
        if report.is_clean() { Ok(()) } else { Err(Failure::Silent(FINDINGS)) }
    }

    /// Returns the findings, and whether the volume is in use.
    fn check(&self, name: &VolumeName) -> Res<(Report, bool)> {
        let (device, still) = Still::open(name)?;
        let live = still.is_live();
        let options = Options::default().max_findings(self.max_findings).held(still.is_held());
        let checked = lanefs_check::check(Arc::clone(&device), &options);
        still.end(name, &*device)?;
        let failed = |e: CheckError| Failure::cannot("check", name.as_bytes(), Cause::text(e.to_string()));
        Ok((checked.map_err(failed)?, live))
    }
}

fn show(name: &VolumeName, report: &Report, live: bool, out: &mut Out) -> Res {
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    for finding in &report.unchecked {
        writeln!(out, "{finding}")?;
    }
    let name = quoted(name.as_bytes());
    let many = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    let mut notes = String::new();
    if live {
        notes.push_str("; in use: this is its last commit");
    }
    if report.replayed {
        notes.push_str("; journal replayed in memory");
    }
    if report.orphans > 0 {
        notes.push_str(&format!("; {} to finish", many(report.orphans, "orphan", "orphans")));
    }
    if report.cut_short {
        notes.push_str("; the damage hides the rest");
    }
    let verdict = match report.count {
        0 => "clean".to_owned(),
        n => many(n, "finding", "findings"),
    };
    let inodes = many(report.inodes, "inode", "inodes");
    let directories = many(report.directories, "directory", "directories");
    let blocks = many(report.blocks, "block", "blocks");
    writeln!(out, "{name}: {verdict}; {inodes} ({directories}), {blocks} in use{notes}")?;
    Ok(())
}

impl Shown {
    fn new(name: &VolumeName, report: &Report, live: bool) -> Self {
        let rows = |findings: &[Finding]| findings.iter().map(FindingRow::new).collect();
        Self {
            volume: JsonName::new(name.as_bytes()),
            clean: report.is_clean(),
            count: report.count,
            findings: rows(&report.findings),
            unchecked: rows(&report.unchecked),
            cut_short: report.cut_short,
            replayed: report.replayed,
            live,
            orphans: report.orphans,
            inodes: report.inodes,
            directories: report.directories,
            blocks: report.blocks,
        }
    }
}

impl FindingRow {
    fn new(finding: &Finding) -> Self {
        Self {
            structure: finding.structure.kind(),
            numbers: finding.structure.numbers().into_iter().collect(),
            rule: finding.rule.name(),
            text: finding.rule.to_string(),
        }
    }
}
