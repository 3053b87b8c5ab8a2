//! ext4 on disk: bytes to checked types and back. No I/O.
//!
//! Bytes of a volume are not trusted until a `parse` has made a type of them; every rule that
//! they can break is a variant of [`FormatError`] with the numbers in it. Nothing here panics on
//! any input. A checksum is verified by `parse` and made by `encode`. Names of fields and
//! features are the kernel's and e2fsprogs' own.
#![forbid(unsafe_code)]

pub mod acl;
pub mod bitmap;
pub mod checksum;
pub mod dirent;
mod error;
pub mod extent;
pub mod features;
mod file_type;
mod geometry;
mod group_desc;
pub mod hash;
pub mod htree;
mod inode;
pub mod jbd2;
mod le;
pub mod mmp;
pub mod orphan_file;
mod superblock;
mod time;
pub mod verity;
pub mod xattr;

pub use checksum::{Checksummer, ext4_chksum};
pub use error::{FormatError, Result};
pub use features::{Compat, Features, Incompat, RoCompat, Unsupported};
pub use file_type::{DeviceNumber, FileType, S_IFMT, S_ISGID, S_ISUID};
pub use geometry::{InodeSlot, Layout};
pub use group_desc::{GroupDesc, GroupFlags};
pub use inode::{
    EXT4_JOURNAL_INO, EXT4_LINK_MAX, EXT4_RESIZE_INO, EXT4_ROOT_INO, GOOD_OLD_INODE_SIZE, Inode,
    InodeContext, InodeFlags, InodeUse,
};
pub use mmp::{EXT4_MMP_SEQ_CLEAN, EXT4_MMP_SEQ_FSCK, EXT4_MMP_SEQ_MAX, Mmp, MmpState};
pub use superblock::{
    BitEdit, ErrorBehavior, HashFlags, RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock,
    Tuning, TuningError,
};

pub use time::Timestamp;

#[cfg(test)]
mod testing;
