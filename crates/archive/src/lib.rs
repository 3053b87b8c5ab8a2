//! Trees into ext4 volumes and out of them: folders of this machine, tar archives and images of
//! containers, without a mount and without root.
//!
//! - [`import`] takes a [`Source`] into a directory of a [`lanefs::Volume`].
//! - [`export`] takes a directory of a volume into a [`Target`].
//! - [`build`] makes a volume that fits what it is filled with.
//! - [`export_image`] makes an image for containers.
//! - [`diff`] compares two trees.
//!
//! Each reports its steps to the caller ([`Event`]), which shows progress, decides what a name
//! means that cannot be taken over, and may cancel. Nothing is printed.
//!
//! # Example
//! A file system image out of a root file system in an archive:
//!
//! ```
//! use lanefs_archive::{Event, ImportOptions, Ownership, Source, import};
//! use std::ops::ControlFlow;
//!
//! # let made = lanefs::Volume::in_memory(16 << 20)?;
//! # made.write("/hostname", b"lane\n")?;
//! # let mut archive = Vec::new();
//! # let target = lanefs_archive::Target::archive("", &mut archive, Default::default());
//! # let go_on = |_| ControlFlow::Continue(());
//! # lanefs_archive::export(&made, "/", target, &Default::default(), go_on)?;
//! let volume = lanefs::Volume::in_memory(64 << 20)?;
//! let source = Source::archive("rootfs.tar.zst", std::io::Cursor::new(archive))?;
//! let options = ImportOptions::new().ownership(Ownership::new().user(0).group(0));
//! let mut skipped = Vec::new();
//! import(source, &volume, "/", &options, |event| {
//!     if let Event::Skipped(error) = event {
//!         skipped.push(error);
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! assert!(skipped.is_empty());
//! volume.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is not trusted
//! - **An archive**: names that go up are left out, headers and maps have bounds, data is passed
//!   through and not collected, and nothing is written through a symbolic link.
//! - **An image**: nothing is written before all of its layers have the digests that it says
//!   ([`ImageError`]), its documents are bounded, and its names lead nowhere.
//! - **A volume**: a directory that is its own ancestor is entered once, and a name that could lead
//!   out of the target is left out.
//! - **The folder of an export**: it is written by open directories and through no link that is in
//!   it ([`host`]); a volume or a locked file there is not overwritten.
//!
//! Folders need Linux; archives need what `lanefs` needs.
#![forbid(unsafe_code)]

mod acl_text;
mod android;
mod build;
mod compress;
pub mod content;
mod diff;
mod difference;
mod error;
mod event;
mod excerpt;
mod export;
#[cfg(target_os = "linux")]
pub mod host;
mod ids;
mod image;
mod import;
mod limit;
mod member;
mod path;
mod pipe;
mod places;
mod tarball;
mod temporary_name;
mod unfinished;
pub mod walk;
mod zeroing;

pub use android::android_sparse;
pub use build::{BuildOptions, Built, VerityOptions, VolumeSize, VolumeSizeError, build};
pub use compress::{Compression, program_for};
pub use diff::{DiffOptions, diff};
pub use difference::{Aspect, Change, Difference};
pub use error::{Action, Cause, Error, Place};
pub use event::Event;
pub use export::{ExportOptions, ImageOptions, ImageTarget, Target, export, export_image, export_layer};
#[cfg(target_os = "linux")]
pub use host::Overwrite;
pub use ids::{IdRange, IdRangeError, OwnerError, Ownership, check_owner};
pub use image::{ImageChoice, ImageError, Platform, PlatformError, Text};
pub use import::{ImportOptions, Source, import};
pub use places::PATH_MAX;
pub use zeroing::Zeroing;
