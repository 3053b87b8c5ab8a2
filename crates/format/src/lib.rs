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
mod error;
pub mod extent;
pub mod features;
mod geometry;
mod group_desc;
mod le;
mod superblock;
pub mod xattr;

pub use checksum::{Checksummer, ext4_chksum};
pub use error::{FormatError, Result};
pub use features::{Compat, Features, Incompat, RoCompat, Unsupported};
pub use geometry::{InodeSlot, Layout};
pub use group_desc::{GroupDesc, GroupFlags};
pub use superblock::{
    ErrorRecord, HashFlags, RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock,
};

#[cfg(test)]
mod testing;
