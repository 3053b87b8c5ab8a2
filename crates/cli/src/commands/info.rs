//! `lanefs info`: what the superblock and the group descriptors tell, read as they are on the
//! medium; or the partitions of a disk, or the exports of a server.
//!
//! Nothing is recovered for it, and a volume that lanefs cannot open still tells what it is.

mod exports;
mod groups;
mod partitions;

use super::mmp::Protection;
use crate::failure::{OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::quote::{JsonName, escaped};
use crate::size;
use crate::time::Time;
use crate::volumes;
use lanefs_device::{BlockDevice, Cached, PartitionTable, layers, without_password};
use lanefs_format::{Compat, Incompat, State, Superblock};
use owo_colors::Style;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Show what a volume is: size, features, journal, state, groups; or the partitions of a disk, or
/// the exports of a server (nbd://HOST)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// A line for each block group
    #[arg(short, long)]
    groups: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// All that is shown.
#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    volume: JsonName,
    label: String,
    uuid: String,
    state: Vec<&'static str>,
    features: Vec<String>,
    /// Features that make lanefs refuse the volume.
    unreadable: Vec<String>,
    /// Features that make lanefs open the volume read-only.
    unwritable: Vec<String>,
    block_size: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_reserved: u64,
    inode_size: u16,
    inodes: u32,
    inodes_free: u32,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    groups_per_flex: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<JournalInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mmp: Option<Protection>,
    last_mounted_on: String,
    mounts: u16,
    created: Option<Time>,
    written: Option<Time>,
    mounted: Option<Time>,
    checked: Option<Time>,
    errors: u32,
    io: String,
    /// The names of the devices below, for a device over another one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group_list: Vec<groups::Group>,
}

#[derive(Serialize)]
struct JournalInfo {
    inode: u32,
    /// Bytes, from the copy of the journal's inode in the superblock.
    size: Option<u64>,
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        if let Some(exports) = exports::of(&name)? {
            return if self.json { out.json(&exports) } else { exports.show(out) };
        }
        // As a program opens it that says nothing: what is chosen is shown.
        let device = volumes::device_cached(&name, Cached::SmallReads)?;
        let sb = match volumes::read_superblock(&*device, &name) {
            Ok(sb) => sb,
            Err(e) => {
                let Ok(Some(table)) = PartitionTable::read(&*device) else { return Err(e) };
                let table = partitions::TableRows::new(&*device, table, &name)?;
                return if self.json { out.json(&table) } else { table.show(out) };
            }
        };
        let mut info = Info::new(&name, &sb, &*device);
        // A block that does not exist is told by the commands that need it.
        info.mmp = lanefs::mmp::read(Arc::clone(&device)).ok().flatten().map(Protection::new);
        if self.groups {
            info.group_list = groups::read(&*device, &sb, &name)?;
        }
        if self.json {
            return out.json(&info);
        }
        info.show(&*device, out)?;
        if self.groups { groups::show(&info.group_list, out) } else { Ok(()) }
    }
}

impl Info {
    fn new(name: &OsString, sb: &Superblock, device: &dyn BlockDevice) -> Self {
        let raw = sb.raw();
        let unsupported = sb.unsupported();
        let [mounted, written, created, checked] = sb.times().map(|t| match i64::try_from(t) {
            Ok(sec) if sec != 0 => Some(Time { sec, nsec: 0 }),
            _ => None,
        });
        let layout = sb.layout();
        Self {
            volume: JsonName::new(name.as_bytes()),
            label: String::from_utf8_lossy(sb.label()).into_owned(),
            uuid: uuid::Uuid::from_bytes(raw.s_uuid).to_string(),
            state: state(sb),
            features: sb.features().names(),
            unreadable: unsupported.unreadable,
            unwritable: unsupported.unwritable,
            block_size: sb.block_size(),
            blocks: sb.blocks_count(),
            blocks_free: sb.free_blocks_count(),
            blocks_reserved: sb.reserved_blocks_count(),
            inode_size: sb.inode_size(),
            inodes: sb.inodes_count(),
            inodes_free: sb.free_inodes_count(),
            groups: layout.group_count(),
            blocks_per_group: raw.s_blocks_per_group.get(),
            inodes_per_group: raw.s_inodes_per_group.get(),
            groups_per_flex: layout.groups_per_flex(),
            journal: sb.has(Compat::HAS_JOURNAL).then(|| JournalInfo {
                inode: raw.s_journal_inum.get(),
                // The copy of i_block and i_size: 15 words, then the high and the low half of the
                // size.
                size: (raw.s_jnl_backup_type == 1).then(|| {
                    u64::from(raw.s_jnl_blocks[15].get()) << 32 | u64::from(raw.s_jnl_blocks[16].get())
                }),
            }),
            mmp: None,
            last_mounted_on: text(&raw.s_last_mounted),
            mounts: raw.s_mnt_count.get(),
            created,
            written,
            mounted,
            checked,
            errors: raw.s_error_count.get(),
            io: device.cached().map_or_else(|| "memory".into(), |cached| cached.to_string()),
            stack: stack(name),
            group_list: Vec::new(),
        }
    }

    fn show(&self, device: &dyn BlockDevice, out: &mut Out) -> Res {
        let bytes = |blocks: u64| size::human(blocks.saturating_mul(self.block_size.into()));
        let mut lines = vec![
            ("Label", if self.label.is_empty() { "none".into() } else { escaped(self.label.as_bytes()) }),
            ("UUID", self.uuid.clone()),
            ("State", self.state.join(", ")),
            (
                "Size",
                format!(
                    "{} ({} blocks of {} bytes), device {}",
                    bytes(self.blocks),
                    self.blocks,
                    self.block_size,
                    size::human(device.size())
                ),
            ),
            (
                "Free",
                format!(
                    "{} ({} blocks), of it reserved for root {}",
                    bytes(self.blocks_free),
                    self.blocks_free,
                    bytes(self.blocks_reserved)
                ),
            ),
            ("Inodes", format!("{} of {} bytes, {} free", self.inodes, self.inode_size, self.inodes_free)),
            (
                "Groups",
                format!(
                    "{} of {} blocks and {} inodes, {} to a flex group",
                    self.groups, self.blocks_per_group, self.inodes_per_group, self.groups_per_flex
                ),
            ),
            ("Journal", self.journal()),
            ("MMP", self.mmp.as_ref().map_or_else(|| "off".into(), Protection::line)),
            ("Features", self.features.join(" ")),
            ("I/O", self.io()),
        ];
        let below = self.stack.iter().map(|name| ("Over", escaped(name.as_bytes())));
        lines.extend(below);
        let mut more = |name, list: &[String]| {
            if !list.is_empty() {
                lines.push((name, list.join(" ")));
            }
        };
        more("Not readable", &self.unreadable);
        more("Read-only for", &self.unwritable);
        for (name, time) in [
            ("Created", self.created),
            ("Written", self.written),
            ("Mounted", self.mounted),
            ("Checked", self.checked),
        ] {
            lines.push((name, time.map_or_else(|| "never".into(), Time::seconds)));
        }
        lines.push(("Mounts", format!("{} since the last check", self.mounts)));
        if !self.last_mounted_on.is_empty() {
            lines.push(("Mounted on", escaped(self.last_mounted_on.as_bytes())));
        }
        if self.errors > 0 {
            lines.push(("Errors", format!("{} noted by the kernel; run e2fsck -f", self.errors)));
        }
        for (name, value) in lines {
            writeln!(out, "{} {value}", out.paint(&format!("{name:<13}"), Style::new().bold()))?;
        }
        Ok(())
    }

    /// Returns how a volume is reached that is opened without the option `io=`.
    fn io(&self) -> String {
        let what = match &*self.io {
            "mixed" => "past the page cache of the system, but for small reads",
            "buffered" => "through the page cache of the system",
            "direct" => "past the page cache of the system",
            _ => "no page cache of the system",
        };
        format!("{} ({what})", self.io)
    }

    fn journal(&self) -> String {
        match &self.journal {
            None => "none".into(),
            Some(JournalInfo { inode: 0, .. }) => "on another device".into(),
            Some(JournalInfo { inode, size: Some(bytes) }) => {
                format!("{} (inode {inode})", size::human(*bytes))
            }
            Some(JournalInfo { inode, size: None }) => format!("inode {inode}"),
        }
    }
}

/// Returns the names below a name that stacks devices, the uppermost first.
fn stack(name: &OsString) -> Vec<String> {
    layers(name).skip(1).map(|name| without_password(name).to_string_lossy().into_owned()).collect()
}

/// Returns what `s_state` and the features say of the volume's health.
fn state(sb: &Superblock) -> Vec<&'static str> {
    let mut words = Vec::new();
    if sb.has_in(Incompat::RECOVER) {
        words.push("needs recovery");
    } else if sb.state().contains(State::VALID_FS) {
        words.push("clean");
    } else {
        words.push("not clean");
    }
    if sb.state().contains(State::ERROR_FS) {
        words.push("with errors");
    }
    if sb.last_orphan() != 0 || sb.has_ro(lanefs_format::RoCompat::ORPHAN_PRESENT) {
        words.push("with orphans");
    }
    words
}

/// Returns a field of bytes up to its first zero.
fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field.split(|b| *b == 0).next().unwrap_or(field)).into_owned()
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.iso())
    }
}

/// Fails with the volume's name if `result` does.
fn of_volume<T>(result: lanefs_format::Result<T>, name: &OsString) -> Res<T> {
    result.map_err(lanefs::Error::from).or_cannot("read", name.as_bytes())
}
