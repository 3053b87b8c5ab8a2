//! Makes a volume under a name, in a new file or over an old one.
//!
//! Invariants:
//! - The volume is planned for the size asked for before a file is created or emptied: options
//!   that cannot be had cost no data. A device, which is not emptied, is planned for again by its
//!   sectors.
//! - After a failure no new file is left. It is removed under the lock of its device.

use crate::plan::Plan;
use crate::{MkfsError, Options, PlannedDevice, Report, report};
use lanefs_device::{FileOptions, VolumeUrl, create_url};
use std::ffi::OsStr;

/// Creates a volume of `size` bytes in the file or device of that name (see [`VolumeUrl::parse`]).
/// Creates a file, or replaces the content of an existing one. A partition must have `size` bytes
/// at least.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("disk.img");
/// use lanefs_mkfs::{Options, create};
///
/// let report = create(&path, 16 << 20, &Options::default())?;
/// assert_eq!(report.blocks_count, 16 << 10);
/// # Ok::<(), lanefs_mkfs::MkfsError>(())
/// ```
///
/// # Errors
/// Options that cannot be had together or in this size: the file or device is as it was. The
/// device's failure, as [`create_url`] tells it. After a failure there is no new file.
pub fn create(name: impl AsRef<OsStr>, size: u64, options: &Options) -> Result<Report, MkfsError> {
    let name = name.as_ref();
    let options = Options { size: Some(options.size.unwrap_or(size)), ..options.clone() };
    let mut plan = Plan::new(PlannedDevice::of_file(size), &options)?;
    let new = VolumeUrl::parse(name)?.path().filter(|path| path.symlink_metadata().is_err());
    let device = create_url(name, size, &FileOptions::new())?;
    let planned = PlannedDevice { size, ..PlannedDevice::of(&*device) };
    if planned.sector > PlannedDevice::of_file(size).sector {
        plan = Plan::new(planned, &options)?;
    }
    let made = report(&plan, &*device, &options);
    if made.is_err()
        && let Some(new) = new
    {
        // Still locked: no other process has made a volume of it. That it cannot be removed is not
        // the failure to tell of.
        let _ = std::fs::remove_file(new);
    }
    made
}
