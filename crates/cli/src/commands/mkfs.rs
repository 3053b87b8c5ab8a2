//! `lanefs mkfs`: makes a volume, with the option letters of mke2fs.

use super::mmp;
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::whole_volume;
use crate::output::Out;
use crate::quote::{JsonName, quoted};
use crate::size;
use crate::streams::to_stderr;
use crate::volumes::{
    content_of, file_of, names_file, names_part, refuse_forgotten_slash, source_date_epoch,
};
use lanefs_archive::check_owner;
use lanefs_archive::content::Content;
use lanefs_device::{FileOptions, VolumeUrl, open_url};
use lanefs_format::features::FeatureEdit;
use lanefs_format::{Features, Incompat};
use lanefs_mkfs::{FsType, MkfsError, Options, Report};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use uuid::Uuid;

/// Make an ext4 volume, as mke2fs -t ext4 does
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file, block device or export of a server; a file is made if there is none
    volume: OsString,
    /// Size of the volume: 512M, 2G, 15T; without it, all of the file or device
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Make it whatever the file or device holds; else a terminal is asked, and a script refused
    #[arg(short = 'F', short_alias = 'f', long)]
    force: bool,
    /// Generation: ext2, ext3 or ext4
    #[arg(short = 't', value_name = "TYPE", default_value = "ext4", value_parser = fs_type)]
    fs_type: FsType,
    /// Bytes in a block: 1024, 2048, 4096 or more
    #[arg(short, value_name = "BYTES", value_parser = small::<u32>)]
    block_size: Option<u32>,
    /// Bytes in an inode
    #[arg(short = 'I', value_name = "BYTES", value_parser = small::<u16>)]
    inode_size: Option<u16>,
    /// An inode for every so many bytes of the volume
    #[arg(short = 'i', value_name = "BYTES", value_parser = small::<u32>)]
    inode_ratio: Option<u32>,
    /// How many inodes
    #[arg(short = 'N', value_name = "NUMBER")]
    inodes: Option<u32>,
    /// Name of the volume, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<OsString>,
    /// UUID: random, clear, or the UUID itself
    #[arg(short = 'U', value_name = "UUID", value_parser = uuid)]
    uuid: Option<Uuid>,
    /// Features to switch on and, with ^ before them, off: ^has_journal,metadata_csum_seed. On a
    /// server mmp is on
    #[arg(short = 'O', value_name = "FEATURE,...", value_parser = clap::value_parser!(FeatureEdit))]
    features: Option<FeatureEdit>,
    /// Percent of the blocks that only root may take
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved: Option<f64>,
    /// hash_seed=UUID, root_owner=UID:GID, nodiscard, mmp_update_interval=SECONDS;
    /// lazy_itable_init=0 and lazy_journal_init=0 are always so
    #[arg(short = 'E', value_name = "OPTION,...", value_parser = MkfsExtended::parse)]
    extended: Option<MkfsExtended>,
    /// size=MEGABYTES of the journal
    #[arg(short = 'J', value_name = "size=MEGABYTES", value_parser = journal_size)]
    journal: Option<u32>,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Say what was made as JSON
    #[arg(long)]
    json: bool,
}

/// A setting of -E.
#[derive(Debug, Clone, Default)]
struct MkfsExtended {
    hash_seed: Option<Uuid>,
    root_owner: Option<(u32, u32)>,
    keep: bool,
    mmp_update_interval: Option<u16>,
}

impl MkfsExtended {
    fn parse(text: &str) -> Result<Self, String> {
        let mut extended = Self::default();
        for option in text.split(',').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                // Everything is written now; nothing is left for the kernel to do later.
                "lazy_itable_init" | "lazy_journal_init" if matches!(value, "" | "0" | "1") => {}
                "discard" => extended.keep = false,
                "nodiscard" => extended.keep = true,
                "mmp_update_interval" => {
                    extended.mmp_update_interval =
                        Some(mmp::interval(value).map_err(|e| format!("mmp_update_interval={value}: {e}"))?);
                }
                "hash_seed" => extended.hash_seed = Some(uuid(value)?),
                "root_owner" if value.is_empty() => {
                    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                    extended.root_owner = Some(me);
                }
                "root_owner" => {
                    let bad = || format!("root_owner={value}: UID:GID, two numbers");
                    let (uid, gid) = value.split_once(':').ok_or_else(bad)?;
                    let (uid, gid) = (uid.parse().map_err(|_| bad())?, gid.parse().map_err(|_| bad())?);
                    check_owner(Some(uid), Some(gid)).map_err(|e| e.to_string())?;
                    extended.root_owner = Some((uid, gid));
                }
                _ => {
                    let known = "lazy_itable_init, lazy_journal_init, hash_seed, root_owner, discard, \
                                 nodiscard, mmp_update_interval";
                    return Err(format!("{}: lanefs knows {known}", quoted(option)));
                }
            }
        }
        Ok(extended)
    }
}

fn fs_type(text: &str) -> Result<FsType, String> {
    match text {
        "ext2" => Ok(FsType::Ext2),
        "ext3" => Ok(FsType::Ext3),
        "ext4" => Ok(FsType::Ext4),
        _ => Err("one of ext2, ext3, ext4".into()),
    }
}

/// Parses a size that fits into a smaller number.
pub(super) fn small<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    T::try_from(size::parse(text)?).map_err(|_| format!("'{text}' is too large"))
}

pub(super) fn uuid(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => Ok(Uuid::new_v4()),
        "clear" | "null" => Ok(Uuid::nil()),
        _ => text.parse().map_err(|_| format!("{} is not a UUID", quoted(text))),
    }
}

fn journal_size(text: &str) -> Result<u32, String> {
    let megabytes = text.strip_prefix("size=").ok_or("size=MEGABYTES")?;
    if let Ok(megabytes) = megabytes.parse() {
        return Ok(megabytes);
    }
    match size::parse(megabytes)? {
        bytes if bytes % (1 << 20) == 0 => {
            u32::try_from(bytes >> 20).map_err(|_| format!("'{text}' is too large"))
        }
        _ => Err(format!("'{text}' is not a whole number of megabytes")),
    }
}

#[derive(Serialize)]
pub(super) struct Made {
    #[serde(flatten)]
    volume: JsonName,
    uuid: String,
    block_size: u32,
    blocks: u64,
    inodes: u32,
    groups: u32,
    journal_blocks: u32,
    features: Vec<String>,
    /// Blocks that hold copies of the superblock.
    backups: Vec<u64>,
}

impl Made {
    pub(super) fn new(name: &OsString, report: Report) -> Self {
        Self {
            volume: JsonName::new(name.as_bytes()),
            uuid: Uuid::from_bytes(report.uuid).to_string(),
            block_size: report.block_size,
            blocks: report.blocks_count,
            inodes: report.inodes_count,
            groups: report.group_count,
            journal_blocks: report.journal_blocks,
            features: report.features.names(),
            backups: report.backups,
        }
    }
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        let name = whole_volume(&self.volume);
        let options = self.options()?;
        self.check_target(&name)?;
        let cannot = |e: MkfsError| {
            let cause = match e {
                MkfsError::Device(e) => {
                    let cause = Cause::from(lanefs::Error::from(e));
                    // A file is told by its own name, which may not be what was written.
                    match VolumeUrl::names_server(&name) {
                        true => cause.without(&format!("{}: ", name.to_string_lossy())),
                        false => cause,
                    }
                }
                e => Cause::text(e.to_string()),
            };
            Failure::cannot("make a volume in", name.as_bytes(), cause)
        };
        let made = match self.size {
            Some(size) => lanefs_mkfs::create(&name, size, &options),
            None => open_url(&name, &FileOptions::new())
                .map_err(MkfsError::from)
                .and_then(|device| lanefs_mkfs::format(&device, &options)),
        };
        self.say(&name, made.map_err(cannot)?, out)
    }

    fn options(&self) -> Res<Options> {
        let time = source_date_epoch()?.map(|t| t.sec.max(0).unsigned_abs());
        let extended = self.extended.clone().unwrap_or_default();
        // A volume that is to come out the same twice must not hash names with a random seed.
        let reproducible = if time.is_some() { self.uuid } else { None };
        Ok(Options {
            fs_type: self.fs_type,
            size: self.size,
            block_size: self.block_size,
            inode_size: self.inode_size,
            inode_ratio: self.inode_ratio,
            inode_count: self.inodes,
            label: self.label.as_ref().map(|l| l.as_bytes().to_vec()).unwrap_or_default(),
            uuid: self.uuid.map(Uuid::into_bytes),
            hash_seed: extended.hash_seed.or(reproducible).map(Uuid::into_bytes),
            features: self.features(),
            reserved_percent: self.reserved,
            journal_size: self.journal,
            usage: None,
            time,
            mmp_update_interval: extended.mmp_update_interval,
            root_owner: extended.root_owner.unwrap_or_default(),
            keep: extended.keep,
        })
    }

    /// Returns the features to switch. An export of a server may be reached by several hosts, and
    /// no lock keeps them apart.
    fn features(&self) -> FeatureEdit {
        let mut edit = self.features.unwrap_or_default();
        let mmp = Features { incompat: Incompat::MMP, ..Features::default() };
        let is_decided = edit.clear || edit.off.incompat.contains(Incompat::MMP);
        if VolumeUrl::names_server(&self.volume) && !is_decided {
            edit.on = edit.on.union(mmp);
        }
        edit
    }

    /// Refuses to overwrite a volume by accident, and a missing file without a size.
    fn check_target(&self, name: &OsString) -> Res {
        let refuse = |why: &str| Err(Failure::cannot("make a volume in", name.as_bytes(), Cause::text(why)));
        refuse_forgotten_slash(name)?;
        if (VolumeUrl::names_server(name) || VolumeUrl::is_stacked(name)) && !self.force {
            // As a device. That it cannot be opened is told when it is opened to write.
            return match content_of(name) {
                None | Some(Content::Data) => Ok(()),
                Some(there) => overwrite_anyway(name, there),
            };
        }
        // Without a file there is nothing to check here: opening the device does.
        if !names_file(name) {
            return Ok(());
        }
        match std::fs::metadata(file_of(name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.size.is_none() => {
                refuse("No such file or directory; --size 1G makes it")
            }
            Ok(meta) if meta.is_file() && meta.len() == 0 && self.size.is_none() => {
                refuse("the file is empty; --size 1G gives it a size")
            }
            Ok(meta) if !meta.is_dir() && !self.force => {
                let there = content_of(name);
                let is_device = meta.file_type().is_block_device() || names_part(name);
                match there {
                    // As mke2fs: a device that was used for something unknown is taken.
                    None => Ok(()),
                    Some(Content::Data) if is_device => Ok(()),
                    Some(there) => overwrite_anyway(name, there),
                }
            }
            _ => Ok(()),
        }
    }

    fn say(&self, name: &OsString, report: Report, out: &mut Out) -> Res {
        if self.json {
            return out.json(&Made::new(name, report));
        }
        if self.quiet {
            return Ok(());
        }
        describe(name, &report, out)
    }
}

/// Says in two lines what was made.
pub(super) fn describe(name: &OsString, report: &Report, out: &mut Out) -> Res {
    let bytes = |blocks: u64| size::human(blocks.saturating_mul(report.block_size.into()));
    writeln!(
        out,
        "{}: {}, {} blocks of {} bytes, {} inodes, journal {}",
        quoted(name.as_bytes()),
        bytes(report.blocks_count),
        report.blocks_count,
        report.block_size,
        report.inodes_count,
        if report.journal_blocks == 0 { "none".into() } else { bytes(report.journal_blocks.into()) },
    )?;
    writeln!(out, "UUID {}", Uuid::from_bytes(report.uuid))
}

/// Asks on a terminal whether the existing content may be overwritten. Refuses without a terminal.
fn overwrite_anyway(name: &OsString, there: Content) -> Res {
    let (shown, what) = (quoted(name.as_bytes()), there.name());
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let place = if there == Content::Ext { "a new one" } else { "a volume" };
        let why = format!("it holds {what}; --force makes {place} in its place");
        return Err(Failure::cannot("make a volume in", name.as_bytes(), Cause::text(why)));
    }
    to_stderr(&format!("{shown} holds {what}. Make a volume in its place? (y,N) "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).or_cannot("read", "-")?;
    if answer.trim_start().starts_with(['y', 'Y']) {
        return Ok(());
    }
    Err(Failure::new(format!("{shown} is as it was")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_mke2fs_reads() {
        assert_eq!(journal_size("size=64"), Ok(64));
        assert_eq!(journal_size("size=1G"), Ok(1024));
        assert!(journal_size("64").is_err());
        assert_eq!(uuid("clear"), Ok(Uuid::nil()));
        assert!(uuid("no").is_err());
        let e = MkfsExtended::parse("lazy_itable_init=0,root_owner=7:8,nodiscard").expect("options");
        assert_eq!((e.root_owner, e.keep), (Some((7, 8)), true));
        assert_eq!(
            MkfsExtended::parse("mmp_update_interval=9").expect("options").mmp_update_interval,
            Some(9)
        );
        assert!(
            MkfsExtended::parse("stride=4").is_err() && MkfsExtended::parse("mmp_update_interval=0").is_err()
        );
        assert_eq!(small::<u16>("65536"), Err("'65536' is too large".into()));
    }
}
