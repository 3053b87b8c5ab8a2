//! `lanefs mmp`: multiple mount protection, by which two hosts never write one volume.

use crate::failure::{OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::quote::{JsonName, escaped, quoted};
use crate::time::Time;
use crate::volumes::{self, mmp_options, writable_device};
use lanefs::format::mmp::EXT4_MMP_MAX_UPDATE_INTERVAL;
use lanefs::format::{Mmp, MmpState};
use lanefs::mmp::MmpInfo;
use owo_colors::Style;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Multiple mount protection: keeps two hosts from writing one volume
///
/// A volume that has it is claimed when it is opened for writing, by lanefs, the kernel and e2fsck
/// alike. The first opener after a crash waits for some seconds, to see whether the volume is still
/// in use.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: MmpAction,
}

#[derive(Debug, clap::Subcommand)]
enum MmpAction {
    /// Show whether a volume has it, and which host uses the volume
    Show {
        /// The volume; it may be in use
        volume: OsString,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Switch it on, or change its interval; nothing may use the volume
    On {
        /// The volume
        volume: OsString,
        /// Seconds between two updates, 1 to 300: after a crash the next opener waits for about
        /// eight times as long, and at least 22 seconds
        #[arg(short, long, value_name = "SECONDS", default_value_t = 5, value_parser = interval)]
        interval: u16,
    },
    /// Switch it off; nothing may use the volume
    Off {
        /// The volume
        volume: OsString,
    },
    /// Mark the volume as not in use, after its host has died, or an e2fsck was killed
    Clear {
        /// The volume
        volume: OsString,
        /// Do not wait whether the host is alive: if it is, both destroy the volume
        #[arg(short, long)]
        force: bool,
    },
}

/// Takes the seconds between two updates.
pub(super) fn interval(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(seconds) if (1..=EXT4_MMP_MAX_UPDATE_INTERVAL).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from 1 to {EXT4_MMP_MAX_UPDATE_INTERVAL}")),
    }
}

/// The protection of a volume, as it is on the medium.
#[derive(Debug, Serialize)]
pub(super) struct Protection {
    block: u64,
    /// Seconds.
    update_interval: u16,
    /// What is wrong with the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    #[serde(flatten)]
    holder: Option<Holder>,
}

/// What the block says.
#[derive(Debug, Serialize)]
struct Holder {
    state: &'static str,
    sequence: u32,
    /// Seconds.
    check_interval: u16,
    host: String,
    device: String,
    updated: Option<Time>,
}

impl Holder {
    fn new(mmp: &Mmp) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            state: match mmp.state() {
                MmpState::Clean => "clean",
                MmpState::Held => "in use",
                MmpState::Fsck => "e2fsck",
                MmpState::Unknown => "unknown",
            },
            sequence: mmp.seq,
            check_interval: mmp.check_interval,
            host: text(&mmp.nodename),
            device: text(&mmp.bdevname),
            updated: i64::try_from(mmp.time).ok().filter(|sec| *sec != 0).map(|sec| Time { sec, nsec: 0 }),
        }
    }
}

impl Protection {
    pub(super) fn new(info: MmpInfo) -> Self {
        let MmpInfo { block, update_interval, mmp } = info;
        let (holder, damage) = match mmp {
            Ok(mmp) => (Some(Holder::new(&mmp)), None),
            Err(why) => (None, Some(why.to_string())),
        };
        Self { block, update_interval, damage, holder }
    }

    /// Returns it in one line.
    pub(super) fn line(&self) -> String {
        let Some(holder) = &self.holder else {
            return format!("on, its block {} is damaged", self.block);
        };
        match holder.state {
            "clean" => "on, not in use".into(),
            state => format!("on, {state}: {}", holder.user()),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Protection", format!("on, block {}", self.block)),
            ("Updates", format!("every {} s", self.update_interval)),
        ];
        if let Some(damage) = &self.damage {
            lines.push(("Damage", damage.clone()));
        }
        if let Some(holder) = &self.holder {
            lines.push(("State", format!("{} (sequence {:#010x})", holder.state, holder.sequence)));
            let what = if holder.state == "clean" { "Last used by" } else { "Used by" };
            if !holder.host.is_empty() {
                lines.push((what, holder.user()));
            }
        }
        lines
    }
}

impl Holder {
    fn user(&self) -> String {
        let name = |name: &str| quoted(escaped(name.as_bytes()).as_bytes());
        let time = self.updated.map_or_else(|| "never".into(), Time::seconds);
        format!("host {}, device {}, last seen {time}", name(&self.host), name(&self.device))
    }
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    volume: JsonName,
    enabled: bool,
    #[serde(flatten)]
    protection: Option<Protection>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        match self.action {
            MmpAction::Show { volume, json } => show(&volume, json, out),
            MmpAction::On { volume, interval } => {
                let name = whole_volume(&volume);
                let switched = lanefs::mmp::enable(writable_device(&name)?, mmp_options(&name)?, interval);
                switched.or_cannot("switch multiple mount protection on in", name.as_bytes())
            }
            MmpAction::Off { volume } => {
                let name = whole_volume(&volume);
                let switched = lanefs::mmp::disable(writable_device(&name)?, mmp_options(&name)?);
                switched.or_cannot("switch multiple mount protection off in", name.as_bytes())
            }
            MmpAction::Clear { volume, force } => {
                let name = whole_volume(&volume);
                let cleared = lanefs::mmp::clear(writable_device(&name)?, mmp_options(&name)?, force);
                cleared.or_cannot("clear multiple mount protection of", name.as_bytes())
            }
        }
    }
}

fn show(volume: &OsString, json: bool, out: &mut Out) -> Res {
    let name = whole_volume(volume);
    let read = lanefs::mmp::read(volumes::unlocked_device(&name)?);
    let protection = read.or_cannot("read multiple mount protection of", name.as_bytes())?;
    let protection = protection.map(Protection::new);
    if json {
        let volume = JsonName::new(name.as_bytes());
        return out.json(&Report { volume, enabled: protection.is_some(), protection });
    }
    let lines = match &protection {
        Some(protection) => protection.lines(),
        None => vec![("Protection", "off".into())],
    };
    for (name, value) in lines {
        writeln!(out, "{} {value}", out.paint(&format!("{name:<13}"), Style::new().bold()))?;
    }
    Ok(())
}
