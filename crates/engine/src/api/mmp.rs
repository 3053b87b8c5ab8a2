//! Shows, switches and clears the multiple mount protection (MMP) of a volume that no program has
//! open.
//!
//! A volume that has MMP is claimed by the host that opens it for writing. The claim is renewed
//! while the volume is open, without any call: see [`OpenOptions::on_mmp_wait`].
//!
//! ```
//! use lanefs::device::MemDevice;
//! use lanefs::{OpenOptions, mkfs, mmp};
//! use std::sync::Arc;
//!
//! let device = Arc::new(MemDevice::new(16 << 20));
//! mkfs::format(&*device, &mkfs::Options::default())?;
//! assert!(mmp::read(device.clone())?.is_none());
//! mmp::enable(device.clone(), OpenOptions::new(), 5)?;
//! assert_eq!(mmp::read(device)?.map(|info| info.update_interval), Some(5));
//! # Ok::<(), lanefs::Error>(())
//! ```

#[cfg(doc)]
use crate::error::MmpError;
use crate::error::{Error, Result};
use crate::fs::mmp::{HostClaim, MmpBlock, clear as clear_block};
use crate::fs::{Fs, OpenOptions};
use crate::store::read_super;
use lanefs_device::BlockDevice;
use lanefs_format::{FormatError, Mmp};
use std::ops::Range;
use std::sync::Arc;

/// The multiple mount protection of a volume, as it is on the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmpInfo {
    /// `s_mmp_block`.
    pub block: u64,
    /// Seconds between two updates.
    pub update_interval: u16,
    /// The block, or what is wrong with it.
    pub mmp: std::result::Result<Mmp, FormatError>,
}

/// Reads the MMP block of the volume on `device`, `None` if the volume has none. Another host may
/// have the volume open.
///
/// # Errors
/// [`MmpError::Place`]; a damaged superblock; the device's.
pub fn read(device: Arc<dyn BlockDevice>) -> Result<Option<MmpInfo>> {
    let sb = read_super(&*device)?;
    let (Some((block, update_interval)), Some(own)) = (sb.mmp(), MmpBlock::of(&device, &sb)?) else {
        return Ok(None);
    };
    let mmp = match own.read(&OpenOptions::new().mmp_clock) {
        Ok(mmp) => Ok(mmp),
        Err(Error::Format(why)) => Err(why),
        Err(e) => return Err(e),
    };
    Ok(Some(MmpInfo { block, update_interval, mmp }))
}

/// Gives the volume on `device` multiple mount protection with an update every `interval` seconds,
/// 1 to 300, or changes the interval of a volume that has it. The volume is recovered first.
///
/// # Errors
/// The errors of [`OpenOptions::open_device`] for writing; no free block.
pub fn enable(device: Arc<dyn BlockDevice>, options: OpenOptions, interval: u16) -> Result<()> {
    switch(device, options, |fs| fs.switch_mmp_on(interval))
}

/// Takes multiple mount protection from the volume on `device`, and frees its block. The volume is
/// recovered first. Does nothing to a volume without.
///
/// # Errors
/// The errors of [`OpenOptions::open_device`] for writing: another host uses the volume.
pub fn disable(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<()> {
    switch(device, options, Fs::switch_mmp_off)
}

fn switch(
    device: Arc<dyn BlockDevice>,
    options: OpenOptions,
    change: impl FnOnce(&Fs) -> Result<()>,
) -> Result<()> {
    let fs = Fs::open(device, options.write(true).threads(false))?;
    let changed = change(&fs);
    let closed = fs.close();
    changed.and(closed)
}

/// Marks the MMP block as clean, for a volume whose user is known to be gone: a host that has
/// crashed, or an e2fsck that was killed. Waits first, as an open does, whether the block changes;
/// not with `force`. Changes nothing else.
///
/// # Errors
/// [`MmpError::InUse`]: the block has changed. [`Error::Invalid`] for a volume without the feature;
/// the device's.
pub fn clear(device: Arc<dyn BlockDevice>, options: OpenOptions, force: bool) -> Result<()> {
    let sb = read_super(&*device)?;
    let (Some((_, interval)), Some(block)) = (sb.mmp(), MmpBlock::of(&device, &sb)?) else {
        return Err(Error::Invalid("the volume has no multiple mount protection"));
    };
    clear_block(&block, interval, &options, force)
}

/// Claims the volume on `device`, if it has multiple mount protection, for changes past its file
/// system. Runs `work` with the device to write to, and with the bytes of the MMP block, which have
/// to stay as they are. A device without an ext4 volume is not claimed.
///
/// # Errors
/// [`MmpError`](crate::MmpError): another host uses the volume, or has taken it meanwhile; those of
/// `work` and of the device.
pub fn claimed<T>(
    device: &Arc<dyn BlockDevice>,
    options: OpenOptions,
    work: impl FnOnce(&dyn BlockDevice, Option<Range<u64>>) -> Result<T>,
) -> Result<T> {
    let sb = match read_super(&**device) {
        Ok(sb) => sb,
        Err(Error::Format(_)) => return work(&**device, None),
        Err(e) => return Err(e),
    };
    let Some((fenced, claim)) = HostClaim::take(device, &sb, &options.write(true))? else {
        return work(&**device, None);
    };
    let block = u64::from(sb.block_size());
    let kept = sb.mmp().map(|(number, _)| number.saturating_mul(block));
    let done = work(&*fenced, kept.map(|start| start..start.saturating_add(block)));
    let released = claim.release();
    done.and_then(|done| released.map(|()| done))
}
