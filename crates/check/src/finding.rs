//! Findings: which structure breaks which rule, with the numbers.

use crate::rule::Rule;
use std::fmt;

/// A structure of the volume, with the number that tells which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are numbers of groups, inodes and blocks")]
pub enum Structure {
    Superblock,
    /// A copy of the superblock and the descriptors.
    Backup {
        group: u32,
    },
    GroupDescriptor {
        group: u32,
    },
    BlockBitmap {
        group: u32,
    },
    InodeBitmap {
        group: u32,
    },
    InodeTable {
        group: u32,
    },
    Inode {
        ino: u32,
    },
    /// A node of an extent tree; block 0 is the root in the inode.
    ExtentTree {
        ino: u32,
        block: u64,
    },
    /// A block of an indirect map; block 0 is `i_block`.
    IndirectMap {
        ino: u32,
        block: u64,
    },
    /// Extended attributes inside an inode.
    XattrInode {
        ino: u32,
    },
    /// A block of extended attributes.
    XattrBlock {
        block: u64,
    },
    Directory {
        ino: u32,
    },
    /// A leaf of a directory, by its logical block.
    DirBlock {
        ino: u32,
        lblk: u32,
    },
    /// An index block of a directory, by its logical block.
    Htree {
        ino: u32,
        lblk: u32,
    },
    /// A directory entry, by the logical block and the byte in it.
    Dirent {
        ino: u32,
        lblk: u32,
        offset: usize,
    },
    OrphanList,
    /// A block of the orphan file, by its place on the volume.
    OrphanFile {
        block: u64,
    },
    Journal,
    ResizeInode,
    Quota {
        ino: u32,
    },
    Mmp {
        block: u64,
    },
}

impl Structure {
    /// Returns the name of the kind, as JSON has it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Backup { .. } => "backup",
            Self::GroupDescriptor { .. } => "group descriptor",
            Self::BlockBitmap { .. } => "block bitmap",
            Self::InodeBitmap { .. } => "inode bitmap",
            Self::InodeTable { .. } => "inode table",
            Self::Inode { .. } => "inode",
            Self::ExtentTree { .. } => "extent tree",
            Self::IndirectMap { .. } => "indirect map",
            Self::XattrInode { .. } => "xattrs in inode",
            Self::XattrBlock { .. } => "xattr block",
            Self::Directory { .. } => "directory",
            Self::DirBlock { .. } => "directory block",
            Self::Htree { .. } => "htree",
            Self::Dirent { .. } => "dirent",
            Self::OrphanList => "orphan list",
            Self::OrphanFile { .. } => "orphan file",
            Self::Journal => "journal",
            Self::ResizeInode => "resize inode",
            Self::Quota { .. } => "quota",
            Self::Mmp { .. } => "mmp",
        }
    }

    /// Returns the numbers that identify the structure, by name: group, inode, block, logical
    /// block, offset.
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        match *self {
            Self::Superblock | Self::OrphanList | Self::Journal | Self::ResizeInode => vec![],
            Self::Backup { group }
            | Self::GroupDescriptor { group }
            | Self::BlockBitmap { group }
            | Self::InodeBitmap { group }
            | Self::InodeTable { group } => vec![("group", group.into())],
            Self::Inode { ino }
            | Self::XattrInode { ino }
            | Self::Directory { ino }
            | Self::Quota { ino } => {
                vec![("inode", ino.into())]
            }
            Self::ExtentTree { ino, block } | Self::IndirectMap { ino, block } => {
                vec![("inode", ino.into()), ("block", block)]
            }
            Self::XattrBlock { block } | Self::OrphanFile { block } | Self::Mmp { block } => {
                vec![("block", block)]
            }
            Self::DirBlock { ino, lblk } | Self::Htree { ino, lblk } => {
                vec![("inode", ino.into()), ("lblk", lblk.into())]
            }
            Self::Dirent { ino, lblk, offset } => {
                vec![("inode", ino.into()), ("lblk", lblk.into()), ("offset", offset as u64)]
            }
        }
    }
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::XattrInode { ino } => write!(f, "xattrs in inode {ino}"),
            Self::Directory { ino } => write!(f, "directory {ino}"),
            Self::ExtentTree { ino, block: 0 } => write!(f, "extent root of inode {ino}"),
            Self::ExtentTree { ino, block } => write!(f, "extent block {block} of inode {ino}"),
            Self::IndirectMap { ino, block: 0 } => write!(f, "i_block of inode {ino}"),
            Self::IndirectMap { ino, block } => write!(f, "indirect block {block} of inode {ino}"),
            Self::DirBlock { ino, lblk } => write!(f, "directory {ino}, block {lblk}"),
            Self::Htree { ino, lblk } => write!(f, "htree of directory {ino}, block {lblk}"),
            Self::Dirent { ino, lblk, offset } => {
                write!(f, "directory {ino}, block {lblk}, entry at {offset}")
            }
            Self::OrphanFile { block } => write!(f, "orphan file block {block}"),
            _ => {
                f.write_str(self.kind())?;
                self.numbers().iter().try_for_each(|(_, n)| write!(f, " {n}"))
            }
        }
    }
}

/// A rule that a structure of the volume breaks.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Which structure.
    pub structure: Structure,
    /// Which rule, with the values found and expected.
    pub rule: Rule,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rule.names_structure() {
            write!(f, "{}: ", self.structure)?;
        }
        self.rule.fmt(f)
    }
}

/// Findings, collected up to a bound, and a count of the rest.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) kept: Vec<Finding>,
    pub(crate) count: u64,
    pub(crate) unchecked: Vec<Finding>,
    max: usize,
}

impl Findings {
    pub(crate) fn new(max: usize) -> Self {
        Self { kept: Vec::new(), count: 0, unchecked: Vec::new(), max }
    }

    pub(crate) fn add(&mut self, structure: Structure, rule: impl Into<Rule>) {
        self.count += 1;
        if self.kept.len() < self.max {
            self.kept.push(Finding { structure, rule: rule.into() });
        }
    }

    /// Notes a structure that the check does not look into: neither right nor wrong.
    pub(crate) fn unchecked(&mut self, structure: Structure, what: &'static str) {
        if self.unchecked.len() < self.max {
            self.unchecked.push(Finding { structure, rule: Rule::NotChecked { what } });
        }
    }
}
