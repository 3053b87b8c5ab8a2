//! `lanefs tune`: settings in the superblock, with the option letters of tune2fs.

use super::mkfs::uuid;
use crate::failure::{OrCannot, Res};
use crate::location::whole_volume;
use crate::quote::quoted;
use crate::volumes::Volumes;
use lanefs::format::hash::HashVersion;
use lanefs::format::{BitEdit, ErrorBehavior, Tuning};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uuid::Uuid;

/// Change settings of a volume, as tune2fs does
///
/// Changes that would rewrite other structures of the volume are refused: use tune2fs for them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Settings {
    /// Label of the volume, at most 16 bytes; '' removes it
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<OsString>,
    /// UUID: random, clear, or the UUID itself; checksums of metadata need metadata_csum_seed first
    #[arg(short = 'U', value_name = "UUID", value_parser = uuid)]
    uuid: Option<Uuid>,
    /// Features: metadata_csum_seed or ^metadata_csum_seed
    #[arg(short = 'O', value_name = "FEATURE", value_parser = feature)]
    checksum_seed: Option<bool>,
    /// Percent of the blocks that only root may take, at most 50
    #[arg(short = 'm', value_name = "PERCENT", value_parser = percent, conflicts_with = "reserved_blocks")]
    reserved: Option<f64>,
    /// Blocks that only root may take, at most half of all
    #[arg(short = 'r', value_name = "BLOCKS")]
    reserved_blocks: Option<u64>,
    /// The user besides root that may take them: a number or a name of this host
    #[arg(short = 'u', value_name = "USER", value_parser = user)]
    reserved_uid: Option<u16>,
    /// The group that may take them
    #[arg(short = 'g', value_name = "GROUP", value_parser = group)]
    reserved_gid: Option<u16>,
    /// The kernel's behaviour on errors: continue, remount-ro, panic
    #[arg(short = 'e', value_name = "BEHAVIOR", value_parser = errors)]
    errors: Option<ErrorBehavior>,
    /// Mounts after which e2fsck checks the volume; 0 or -1 is never
    #[arg(short = 'c', value_name = "MOUNTS", value_parser = mounts, allow_hyphen_values = true)]
    max_mount_count: Option<u16>,
    /// Time after which e2fsck checks the volume: days, or with s, d, w, m seconds, days, weeks,
    /// months; 0 is never
    #[arg(short = 'i', value_name = "TIME", value_parser = interval)]
    check_interval: Option<u32>,
    /// Default mount options to switch on and, with ^ before them, off: acl, user_xattr, discard
    #[arg(short = 'o', value_name = "OPTION,...", value_parser = mount_bits)]
    default_mount_options: Option<BitEdit>,
    /// mount_opts=OPTIONS for mounts by the kernel; hash_alg=half_md4, tea or legacy for new
    /// directories. An option per -E, for mount options have commas too
    #[arg(short = 'E', value_name = "OPTION", value_parser = TuneExtended::parse)]
    extended: Vec<TuneExtended>,
}

/// A setting of -E.
#[derive(Debug, Clone)]
enum TuneExtended {
    MountOptions(String),
    HashAlgorithm(HashVersion),
}

impl TuneExtended {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Ok(match (name, value) {
            ("mount_opts", _) => Self::MountOptions(value.into()),
            ("hash_alg", "half_md4") => Self::HashAlgorithm(HashVersion::HalfMd4),
            ("hash_alg", "tea") => Self::HashAlgorithm(HashVersion::Tea),
            ("hash_alg", "legacy") => Self::HashAlgorithm(HashVersion::Legacy),
            ("hash_alg", _) => return Err("hash_alg is half_md4, tea or legacy".into()),
            _ => {
                return Err(format!(
                    "{}: lanefs knows mount_opts and hash_alg, tune2fs others",
                    quoted(text)
                ));
            }
        })
    }
}

fn feature(text: &str) -> Result<bool, String> {
    match text {
        "mmp" | "^mmp" => Err("lanefs mmp on and lanefs mmp off switch multiple mount protection".into()),
        "metadata_csum_seed" => Ok(true),
        "^metadata_csum_seed" => Ok(false),
        _ => Err(format!(
            "{} needs more of the volume to be written than its superblock, or cannot be undone: tune2fs -O \
             sets it; lanefs sets metadata_csum_seed only",
            quoted(text)
        )),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=50.0).contains(&percent) => Ok(percent),
        _ => Err("a number from 0 to 50".into()),
    }
}

fn user(text: &str) -> Result<u16, String> {
    small_id(crate::owner::user(text)?)
}

fn group(text: &str) -> Result<u16, String> {
    small_id(crate::owner::group(text)?)
}

/// Checks that a user or group number fits in 16 bits: older kernels and e2fsprogs know no more.
fn small_id(id: u32) -> Result<u16, String> {
    u16::try_from(id).map_err(|_| format!("{id} is above 65535"))
}

fn errors(text: &str) -> Result<ErrorBehavior, String> {
    match text {
        "continue" => Ok(ErrorBehavior::Continue),
        "remount-ro" => Ok(ErrorBehavior::RemountReadOnly),
        "panic" => Ok(ErrorBehavior::Panic),
        _ => Err("continue, remount-ro or panic".into()),
    }
}

fn mounts(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(-1 | 0) => Ok(u16::MAX),
        Ok(count @ 1..=16000) => Ok(count as u16),
        _ => Err("a number from -1 to 16000".into()),
    }
}

fn interval(text: &str) -> Result<u32, String> {
    const DAY: u64 = 86_400;
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let unit = match unit {
        "s" => 1,
        "" | "d" => DAY,
        "w" => 7 * DAY,
        "m" => 30 * DAY,
        _ => return Err(format!("{} is not a unit: s, d, w, m", quoted(unit))),
    };
    let count: u64 = count.parse().map_err(|_| format!("{} is not a time: try 180d", quoted(text)))?;
    count.checked_mul(unit).and_then(|s| u32::try_from(s).ok()).ok_or_else(|| "more than 136 years".into())
}

/// Bits of `s_default_mount_opts` by the names that tune2fs has for them.
fn mount_bits(text: &str) -> Result<BitEdit, String> {
    const JOURNAL: u32 = 0x60;
    let mut edit = BitEdit::default();
    for word in text.split(',') {
        let (off, name) = word.strip_prefix('^').map_or((false, word), |name| (true, name));
        // The modes of the journal share two bits, as a number.
        let (bits, mask) = match name {
            "debug" => (1, 1),
            "bsdgroups" => (2, 2),
            "user_xattr" => (4, 4),
            "acl" => (8, 8),
            "uid16" => (0x10, 0x10),
            "journal_data" => (0x20, JOURNAL),
            "journal_data_ordered" => (0x40, JOURNAL),
            "journal_data_writeback" => (0x60, JOURNAL),
            "nobarrier" => (0x100, 0x100),
            "block_validity" => (0x200, 0x200),
            "discard" => (0x400, 0x400),
            "nodelalloc" => (0x800, 0x800),
            _ => return Err(format!("{} is no default mount option that tune2fs knows", quoted(word))),
        };
        edit.clear |= mask;
        edit.set = edit.set & !mask | if off { 0 } else { bits };
    }
    Ok(edit)
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let name = whole_volume(&self.volume);
        let mut volumes = Volumes::default();
        let side = volumes.volume(&name, true)?;
        let blocks = side.with(|v| Ok(v.info().superblock.blocks_count()));
        let tuning = self.settings.tuning(blocks.or_cannot("tune", name.as_bytes())?);
        side.with(|v| v.tune(&tuning)).or_cannot("tune", name.as_bytes())?;
        volumes.close()
    }
}

impl Settings {
    fn tuning(self, blocks: u64) -> Tuning {
        let mut tuning = Tuning {
            label: self.label.map(|label| label.as_bytes().to_vec()),
            uuid: self.uuid.map(Uuid::into_bytes),
            checksum_seed: self.checksum_seed,
            // As tune2fs rounds.
            reserved_blocks: self
                .reserved
                .map(|p| (p * blocks as f64 / 100.0) as u64)
                .or(self.reserved_blocks),
            reserved_uid: self.reserved_uid,
            reserved_gid: self.reserved_gid,
            errors: self.errors,
            max_mount_count: self.max_mount_count,
            check_interval: self.check_interval,
            default_mount_options: self.default_mount_options,
            ..Tuning::default()
        };
        for option in self.extended {
            match option {
                TuneExtended::MountOptions(options) => tuning.mount_options = Some(options.into_bytes()),
                TuneExtended::HashAlgorithm(version) => tuning.hash_version = Some(version),
            }
        }
        tuning
    }
}
