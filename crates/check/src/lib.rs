//! Checks an ext4 volume for consistency, read-only: whether every structure keeps its rules, and
//! whether the structures agree with each other.
//!
//! [`check`] reads a device that no process writes. It replays the log in memory, if needed, and
//! checks the volume as recovery would leave it. It shares the codec (`lanefs-format`) and the
//! replay of the log (`lanefs-journal`) with the rest of lanefs and nothing else, so that it can
//! judge the engine. It repairs nothing.
//!
//! The passes, in their order, each in a file of its own:
//!
//! 1. `superblock`, `log`, `groups`: the superblock, the log, the descriptors, and the
//!    blocks that fixed metadata takes.
//! 2. `orphans`, `inodes` with `contents` and `xattrs`: each inode, its map and its
//!    attributes; the blocks that it claims.
//! 3. `directories` with `htree`: each entry, and the index above them.
//! 4. `links`: whether each directory is reached from the root and each count of links is right.
//! 5. `bitmaps`: both bitmaps of each group and all counts of free things.
//!
//! Invariants:
//! - Nothing on the volume is trusted: no input makes a pass panic or run for ever. A block is
//!   read below a map or as a directory only by the structure that claims it first.
//! - Memory is bounded by the volume: its group descriptors and bitmaps, at most 2^20 runs of its
//!   log, twelve bytes for each inode of a group in use, the runs of the directories, eight bytes
//!   for each entry of one directory, and up to 64 bytes for each block of attributes and for each
//!   attribute whose value has an inode of its own.
#![forbid(unsafe_code)]

mod bitmaps;
mod block_map;
mod contents;
mod dir_body;
mod directories;
mod finding;
mod groups;
mod htree;
mod inode_map;
mod inodes;
mod io;
mod links;
mod log;
mod map;
mod orphans;
mod rule;
mod special;
mod superblock;
mod xattrs;

pub use finding::{Finding, Structure};
pub use rule::Rule;

use block_map::BlockMap;
use dir_body::{Dir, DirBody};
use finding::Findings;
use inode_map::InodeMap;
use io::Io;
use lanefs_device::{BlockDevice, DeviceError};
use lanefs_format::dirent::DirLayout;
use lanefs_format::{Checksummer, GroupDesc, InodeContext, Layout, Mmp, RoCompat, Superblock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xattrs::XattrUse;

/// Options of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Findings that are kept; the others are counted.
    pub max_findings: usize,
    /// The user of the volume holds it in one state: its MMP block says that it is in use, and may
    /// change.
    pub held: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_findings: 10_000, held: false }
    }
}

impl Options {
    /// Sets how many findings are kept.
    #[must_use]
    pub fn max_findings(self, max: usize) -> Self {
        Self { max_findings: max, ..self }
    }

    /// Sets whether the user of the volume holds it in one state.
    #[must_use]
    pub fn held(self, held: bool) -> Self {
        Self { held, ..self }
    }
}

/// The reason why a volume cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No ext2, ext3 or ext4 volume.
    #[error("{0}")]
    NotVolume(lanefs_format::FormatError),
    /// Features whose structures the check does not know.
    #[error("the volume has features that the check does not know: {0}")]
    Features(String),
    /// Another host changed its multiple-mount protection while the volume was checked.
    #[error("host '{host}' has the volume in use, as '{device}'")]
    InUse {
        /// Its name, as the volume has it.
        host: String,
        /// The name of the volume's device there.
        device: String,
    },
    /// The log needs, or may need, a replay that is not possible here.
    #[error("the log cannot be replayed: {0}")]
    Log(String),
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// The broken rules, in the order of the passes; at most [`Options::max_findings`].
    pub findings: Vec<Finding>,
    /// How many broken rules there are, including the findings that were not kept.
    pub count: u64,
    /// Structures that the check does not look into, with the reason.
    pub unchecked: Vec<Finding>,
    /// Whether damage kept later passes from running.
    pub cut_short: bool,
    /// Whether the log was replayed in memory.
    pub replayed: bool,
    /// Inodes that wait for their deletion or truncation on the next open.
    pub orphans: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Of them, directories.
    pub directories: u64,
    /// Blocks in use.
    pub blocks: u64,
}

impl Report {
    /// Returns whether no rule is broken.
    pub fn is_clean(&self) -> bool {
        self.count == 0
    }
}

/// Checks the volume on `device`, which no process may write meanwhile.
///
/// # Errors
/// Why the volume cannot be checked at all. Broken rules are in the report.
pub fn check(device: Arc<dyn BlockDevice>, options: &Options) -> Result<Report, CheckError> {
    let mut findings = Findings::new(options.max_findings);
    let mut report = Report::default();
    let Some(opened) = log::open(device, &mut findings)? else {
        report.cut_short = true;
        return Ok(report.with(findings));
    };
    report.replayed = opened.replayed;
    let mut check = Check::new(opened, findings);
    check.held = options.held;
    report.cut_short = !check.run()?;
    check.check_still()?;
    report.orphans = check.orphans.len() as u64;
    report.inodes = check.inodes_in_use;
    report.directories = check.dirs.len() as u64;
    report.blocks = check.blocks_in_use;
    Ok(report.with(check.findings))
}

impl Report {
    fn with(self, findings: Findings) -> Self {
        let Findings { kept, count, unchecked, .. } = findings;
        Self { findings: kept, count, unchecked, ..self }
    }
}

/// A volume that is being checked: what it says of itself, and what the passes have found out.
#[derive(Debug)]
struct Check {
    io: Io,
    sb: Superblock,
    layout: Layout,
    csum: Checksummer,
    inode_ctx: InodeContext,
    dir_layout: DirLayout,
    /// Was not closed: the free counts of the superblock are of before.
    unclean: bool,
    /// The descriptors that are not damaged.
    groups: BTreeMap<u32, GroupDesc>,
    findings: Findings,
    /// The blocks that something claims.
    blocks: BlockMap,
    inodes: InodeMap,
    /// By number.
    dirs: Vec<Dir>,
    /// Beside `dirs`, until they have been checked.
    dir_bodies: Vec<DirBody>,
    xattr_blocks: BTreeMap<u64, XattrUse>,
    /// Inodes that hold a value, and what leads to them.
    value_inodes: Vec<(Structure, u32)>,
    orphans: BTreeSet<u32>,
    /// The MMP block, and its content before the passes.
    mmp: Option<(u64, Mmp)>,
    /// The user of the volume holds it in one state.
    held: bool,
    /// A file is so large that it needs the feature `large_file`.
    large_file: bool,
    inodes_in_use: u64,
    blocks_in_use: u64,
}

impl Check {
    fn new(opened: log::Opened, findings: Findings) -> Self {
        let log::Opened { io, sb, unclean, .. } = opened;
        let layout = sb.layout();
        Self {
            csum: sb.checksummer(),
            inode_ctx: sb.inode_context(),
            dir_layout: DirLayout {
                block_size: layout.block_size() as usize,
                inodes_count: layout.inodes_count(),
                checksums: sb.has_ro(RoCompat::METADATA_CSUM),
                file_types: sb.has_in(lanefs_format::Incompat::FILETYPE),
            },
            unclean,
            groups: BTreeMap::new(),
            findings,
            blocks: BlockMap::new(layout),
            inodes: InodeMap::new(&layout),
            dirs: Vec::new(),
            dir_bodies: Vec::new(),
            xattr_blocks: BTreeMap::new(),
            value_inodes: Vec::new(),
            orphans: BTreeSet::new(),
            mmp: None,
            held: false,
            large_file: false,
            inodes_in_use: 0,
            blocks_in_use: 0,
            io,
            sb,
            layout,
        }
    }

    /// Runs all passes. Returns false if damage kept one from running.
    fn run(&mut self) -> Result<bool, CheckError> {
        self.check_superblock()?;
        self.check_groups()?;
        if self.groups.is_empty() {
            return Ok(false);
        }
        self.find_orphans()?;
        self.check_inodes()?;
        self.check_special_inodes()?;
        self.check_xattr_uses()?;
        self.check_directories()?;
        self.check_links();
        self.check_bitmaps()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
