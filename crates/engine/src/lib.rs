//! ext4 in user space: open, read and write real ext4 volumes, crash-safe through their journal.
//!
//! [`Volume`] is shaped like [`std::fs`]: a free function there is a method of the volume here,
//! with paths inside the volume. [`Dir`] and [`File`] are open directories and files. Threads share
//! all of them by reference.
//!
//! ```no_run
//! let volume = lanefs::Volume::open("disk.img")?;
//! volume.create_dir("/etc")?;
//! volume.write("/etc/hostname", b"lane\n")?;
//! assert_eq!(volume.read("/etc/hostname")?, b"lane\n");
//! volume.close()?;
//! # Ok::<(), lanefs::Error>(())
//! ```
//!
//! # Examples
//!
//! Each of these is a whole program in `examples/`.
//!
//! `fill_image` makes a volume in a new file and fills it:
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("disk.img");
//! use lanefs::{Volume, mkfs::Options};
//! let volume = Volume::create(&path, 64 << 20, &Options::default())?;
//! volume.create_dir_all("/srv/data")?;
//! volume.write("/srv/data/hello", b"world")?;
//! volume.close()?; // reports a failure; dropping the volume does not
//! # Ok::<(), lanefs::Error>(())
//! ```
//!
//! `append_log` makes each record durable before the next begins:
//!
//! ```
//! # let volume = lanefs::Volume::in_memory(16 << 20)?;
//! use lanefs::FileCursor;
//! use std::io::Write;
//! let log = volume.open_options().append(true).create(true).open("/log")?;
//! log.sync_all()?; // the name too
//! writeln!(FileCursor::new(&log), "a record")?;
//! log.sync_data()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `parallel_writers` writes one file from many threads. Writes of different bytes do not wait for
//! each other:
//!
//! ```
//! # let volume = lanefs::Volume::in_memory(16 << 20)?;
//! let file = volume.create_file("/shared")?;
//! std::thread::scope(|scope| {
//!     let file = &file;
//!     let write = move |n: u64| file.write_at(&[n as u8; 4096], n * 4096);
//!     let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || write(n))).collect();
//!     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
//! })?;
//! assert_eq!(file.metadata().len(), 4 * 4096);
//! # Ok::<(), lanefs::Error>(())
//! ```
//!
//! `untrusted_image` reads an image of which any byte may be wrong. Damage is an error that names
//! the structure and the rule, and nothing is written:
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("downloaded.img");
//! # std::fs::write(&path, [0; 8192]).unwrap();
//! use lanefs::{Error, Volume};
//! match Volume::open_read_only(&path).map_err(Error::into_kind) {
//!     Ok(volume) => println!("{} names", volume.read_dir("/")?.len()),
//!     Err(Error::Format(rule)) => println!("not ext4: {rule}"),
//!     Err(e) => return Err(e),
//! }
//! # Ok::<(), lanefs::Error>(())
//! ```
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

pub use api::mmp;
pub use api::{
    At, AtSymlink, Dir, DirEntry, DirEntryRef, Extents, File, FileCursor, FileOptions, Fragmentation,
    FreeRuns, Io, Mapped, Metadata, Node, Observer, Resize, Upkeep, Volume, VolumeInfo,
};
pub use error::{
    Corrupt, DirError, Error, IndirectError, MmpError, MmpHolder, OperationError, ResizeError, Result,
    VerityError, XattrError, Zone,
};
pub use fs::MmpWait;
pub use fs::data::{FallocMode, FiemapExtent, Placement, Verity};
pub use fs::namei::{Atime, Modifier, NewAttr, NewKind, RenameFlags, SetAttr, SetTime};
pub use fs::stats::{CacheUse, Counts, Stats, Times};
pub use fs::{IVersion, Locking, OpenOptions, Overwrite, Recovery, StatFs, WritebackMode};
#[doc(hidden)]
pub use fs::{MmpClock, WORDS_OF_DEFAULTS, WORDS_OF_HINTS, mount_words};
pub use lanefs_device as device;
pub use lanefs_format as format;
pub use lanefs_format::verity::VerityHash;
pub use lanefs_format::{DeviceNumber, FileType, Timestamp};
pub use lanefs_mkfs as mkfs;
pub use lanefs_stats::{Bucket, Snapshot};
pub use store::xattr::SetXattr;
