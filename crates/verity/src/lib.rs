//! The hash tree of dm-verity: makes it, verifies a volume against it, and reads its superblock.
//! The hash tree of fs-verity, for one file ([`FileTree`]).
//!
//! A hash area is a superblock ([`Header`]) and, from the next block on, the levels of the tree,
//! the top first. A block of level 0 has the digests of as many data blocks as fit, one of level 1
//! those of level 0. The digest of the top block is the root hash, which vouches for all of them.
//!
//! [`format()`] and [`verify`] split a level between all processors. Each thread has a buffer of at
//! most a few MiB, whatever the size of the volume.
//!
//! ```
//! use lanefs_device::MemDevice;
//! use lanefs_verity::{Header, format, verify};
//!
//! let volume = MemDevice::from_bytes(vec![7; 1 << 20]);
//! let header = Header { data_blocks: 256, ..Header::default() };
//! let hashes = MemDevice::new(header.area_size()? as usize);
//! let root = format(&volume, &hashes, 0, &header, &|_| true)?;
//! verify(&volume, &hashes, 0, Some(&root), &|_| true)?;
//! # Ok::<(), lanefs_verity::VerityError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod file;
mod hash;
mod header;
mod level;
mod tree;

pub use error::VerityError;
pub use file::FileTree;
pub use hash::Algorithm;
pub use header::Header;
pub use tree::{format, verify};
