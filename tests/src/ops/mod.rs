//! Operations on files as values, so that the same ones can be done by lanefs and by the kernel.
//!
//! A path is relative to the root of the volume or absolute in it, on both sides: the kernel's side
//! works in a thread of its own whose root directory is the mount.

mod host;
mod lane;

pub use host::Host;
pub use lane::Lane;
pub(crate) use lane::kind;

use crate::Kind;
use lanefs::FallocMode;
use std::ffi::OsString;
use std::path::PathBuf;

/// One call, as a program makes it. What is a hole stays one in a copy, as `cp` has it; space is
/// asked of a regular file when all of it has its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the system call of that name says it")]
pub enum Op {
    Open { path: PathBuf, how: OpenHow, mode: u16 },
    Read { path: PathBuf, offset: u64, len: usize },
    Write { path: PathBuf, offset: u64, len: usize, fill: u8 },
    Append { path: PathBuf, len: usize, fill: u8 },
    Truncate { path: PathBuf, len: u64 },
    Fallocate { path: PathBuf, how: FallocMode, offset: u64, len: u64 },
    SeekData { path: PathBuf, offset: u64 },
    SeekHole { path: PathBuf, offset: u64 },
    CopyRange { from: PathBuf, offset: u64, to: PathBuf, to_offset: u64, len: u64 },
    Mkdir { path: PathBuf, mode: u16 },
    Rmdir { path: PathBuf },
    Unlink { path: PathBuf },
    Link { from: PathBuf, to: PathBuf },
    Symlink { target: OsString, path: PathBuf },
    ReadLink { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, how: RenameHow },
    Mknod { path: PathBuf, kind: Kind, device: (u32, u32), mode: u16 },
    Chmod { path: PathBuf, mode: u16 },
    Chown { path: PathBuf, uid: u32, gid: u32, follow: bool },
    Utimes { path: PathBuf, atime: (i64, u32), mtime: (i64, u32), follow: bool },
    SetXattr { path: PathBuf, name: OsString, value: Vec<u8>, how: XattrHow },
    GetXattr { path: PathBuf, name: OsString },
    RemoveXattr { path: PathBuf, name: OsString },
    Stat { path: PathBuf, follow: bool },
    Space { path: PathBuf },
    List { path: PathBuf },
}

/// Flags of open(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the flag of that name says it")]
pub struct OpenHow {
    pub write: bool,
    pub create: bool,
    pub excl: bool,
    pub trunc: bool,
    pub nofollow: bool,
}

/// Flags of renameat2(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the flag of that name says it")]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
}

/// Flags of setxattr(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the flag of that name says it")]
pub enum XattrHow {
    Any,
    Create,
    Replace,
}

/// The observation of a successful call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It shows nothing.
    Nothing,
    /// Content, a link's target, an attribute's value.
    Bytes(Vec<u8>),
    /// A place in a file, or how much was copied.
    Number(u64),
    /// Names of a directory, sorted, without "." and "..".
    Names(Vec<OsString>),
    /// Attributes that do not depend on time and place.
    Stat {
        /// File type.
        kind: Kind,
        /// The low 12 bits of the mode.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Hard links.
        nlink: u64,
        /// Bytes; 0 for directories.
        size: u64,
    },
    /// Space.
    Space(Sectors),
}

/// st_blocks of a file. The map of its extents is a part of it, and as large as the file is
/// fragmented: so two counts are equal if the difference is no more than the maps may have.
#[derive(Debug, Clone, Copy)]
pub struct Sectors {
    /// As stat(2) says.
    pub count: u64,
    /// Bytes of a block of the volume.
    pub block: u64,
}

impl Sectors {
    /// Blocks of the map of a file with so many blocks, at the worst.
    fn map_most(self) -> u64 {
        // An entry is 12 bytes, as is the head; a tree that has been split is half full. The kernel
        // keeps a leaf when a file shrinks.
        let leaf = (self.block / 12 - 1) / 2;
        1 + (self.count * 512 / self.block).div_ceil(leaf)
    }
}

impl PartialEq for Sectors {
    fn eq(&self, other: &Self) -> bool {
        let more = if self.count > other.count { self } else { other };
        self.count.abs_diff(other.count) <= more.map_most() * (self.block / 512)
    }
}

impl Eq for Sectors {}

/// The observation of a call, or its errno.
pub type Outcome = Result<Seen, i32>;

/// A target of operations.
pub trait Target {
    /// Does one.
    fn apply(&self, op: &Op) -> Outcome;

    /// Does all of them.
    ///
    /// # Panics
    /// If one fails.
    fn apply_all(&self, ops: &[Op]) {
        for (i, op) in ops.iter().enumerate() {
            if let Err(errno) = self.apply(op) {
                let error = std::io::Error::from_raw_os_error(errno);
                panic!("operation {i} of {}: {op:?}: {error}", ops.len());
            }
        }
    }
}

/// What a write of `len` bytes of `fill` at `offset` writes: no two blocks alike.
pub(crate) fn content(offset: u64, len: usize, fill: u8) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| {
            let x = (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(fill));
            (x >> (56 - at % 8 * 8)) as u8
        })
        .collect()
}

/// The longest read: more than that is cut on both sides.
pub(crate) const READ_MAX: usize = 1 << 20;
