//! The differences between two trees, as a comparison reports them.

use lanefs::FileType;
use lanefs_format::Timestamp;

/// A name that is in one of two trees only, or differs between them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The path from the compared directories, without `/` at either end. Empty: these themselves.
    pub path: Vec<u8>,
    /// What is different.
    pub change: Change,
}

/// How a name differs between an old and a new tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Only the old tree has the name. Entries below it are not reported.
    Removed(FileType),
    /// Only the new tree has the name. Entries below it are not reported.
    Added(FileType),
    /// Both trees have the name, and it differs in all of these, which are one or more.
    Changed(Vec<Aspect>),
}

/// In what a name differs: old and new value where there are such.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Aspect {
    /// The type. Nothing else is compared then, and nothing below it.
    Kind(FileType, FileType),
    /// The low 12 bits of the mode.
    Mode(u16, u16),
    /// The user.
    User(u32, u32),
    /// The group.
    Group(u32, u32),
    /// The time of the last change of the content.
    Modified(Timestamp, Timestamp),
    /// An extended attribute, by its whole name: its value, or that it is there.
    Xattr(Vec<u8>),
    /// The target of a symbolic link.
    Target(Vec<u8>, Vec<u8>),
    /// Major and minor number of a device.
    Device((u32, u32), (u32, u32)),
    /// The size of a file. Its bytes are not compared then.
    Size(u64, u64),
    /// The bytes of a file, from this offset on.
    Content(u64),
    /// With which names that both trees have it shares its inode.
    Links,
}

impl Difference {
    pub(crate) fn new(path: Vec<u8>, change: Change) -> Self {
        Self { path, change }
    }
}
