//! ext4 in user space: open, read and write real ext4 volumes, crash-safe through their journal.
//!
//! [`Volume`] is shaped like [`std::fs`]: a free function there is a method of the volume here,
//! with paths inside the volume. [`Dir`] and [`File`] are open directories and files. Threads share
//! all of them by reference.
//!
//! ```no_run
//! # fn main() -> Result<(), lanefs::Error> {
//! let volume = lanefs::Volume::open("disk.img")?;
//! volume.create_dir("/etc")?;
//! volume.write("/etc/hostname", b"lane\n")?;
//! assert_eq!(volume.read("/etc/hostname")?, b"lane\n");
//! volume.close()?;
//! # Ok(()) }
//! ```
//!
//! Programs in `examples/`: `fill_image`, `append_log` (each record durable before the next),
//! `parallel_writers` of one file, and `untrusted_image`.
//!
//! Durability: a change is durable after [`File::sync_all`] or [`Volume::sync`]. Without a sync,
//! changes of names and attributes become durable within the commit interval, in the order in which
//! they were made, and content within two intervals.
//!
//! Systems: Linux, where it is tested. On macOS and Windows it compiles, and opens image files
//! through the page cache of the system; names are Unicode there, and one that is not reads as
//! U+FFFD.
#![forbid(unsafe_code)]

mod api;
mod error;
mod fs;
mod store;

pub use api::{
    At, AtSymlink, Dir, DirEntry, DirEntryRef, Extents, File, FileCursor, FileOptions, Fragmentation,
    FreeRuns, Io, Mapped, Metadata, Node, Observer, Resize, Upkeep, Volume, VolumeInfo,
};
pub use error::{
    Corrupt, DirError, Error, IndirectError, OperationError, ResizeError, Result, VerityError, XattrError,
    Zone,
};
pub use fs::data::{FallocMode, FiemapExtent, Verity};
pub use fs::namei::{Atime, Modifier, NewAttr, NewKind, RenameFlags, SetAttr, SetTime};
pub use fs::stats::{CacheUse, Counts, Stats, Times};
pub use fs::{IVersion, Locking, OpenOptions, Overwrite, Recovery, StatFs, WritebackMode};
#[doc(hidden)]
pub use fs::{WORDS_OF_DEFAULTS, WORDS_OF_HINTS, mount_words};
pub use lanefs_device as device;
pub use lanefs_format as format;
pub use lanefs_format::verity::VerityHash;
pub use lanefs_format::{DeviceNumber, FileType, Timestamp};
pub use lanefs_mkfs as mkfs;
pub use lanefs_stats::{Bucket, Snapshot};
pub use store::xattr::SetXattr;
