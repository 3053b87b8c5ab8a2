//! Changing the size of a volume.

use super::Volume;
use crate::error::Result;
use crate::fs::mmp::HostClaim;
use crate::fs::{Fs, OpenOptions};
use crate::store::read_super;
use crate::store::resize::{Resizing, fit};
use lanefs_device::BlockDevice;
use lanefs_format::Superblock;
use std::sync::Arc;

/// A volume that no program has open, to be given another size.
///
/// A crash at any moment leaves the volume sound: with its size of before, the new one, or, if the
/// growth takes more than one transaction, one between them. The recovery has to be that of lanefs
/// or e2fsck: the kernel takes the counts of the superblock before it replays the log. Without a
/// journal a crash leaves a volume that a check has to repair, as after any other change.
///
/// ```
/// use lanefs::device::MemDevice;
/// use lanefs::{OpenOptions, Resize, Volume, mkfs};
/// use std::sync::Arc;
///
/// let device = Arc::new(MemDevice::new(64 << 20));
/// let options = mkfs::Options { size: Some(16 << 20), ..mkfs::Options::default() };
/// mkfs::format(&*device, &options)?;
///
/// let mut resize = Resize::open(device.clone(), OpenOptions::new())?;
/// assert_eq!(resize.size(), 16 << 20);
/// resize.grow(64 << 20, None)?;
/// assert_eq!(resize.size(), 64 << 20);
/// Volume::open_device(device)?.close()?;
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug)]
pub struct Resize {
    volume: Resizing,
    claim: Option<HostClaim>,
}

impl Drop for Resize {
    fn drop(&mut self) {
        if let Some(claim) = &self.claim {
            // A block that is not marked clean makes the next open wait.
            let _ = claim.release();
        }
    }
}

impl Resize {
    /// Takes the volume on `device`, after its recovery. Of `options` the clock counts.
    ///
    /// # Errors
    /// The errors of [`OpenOptions::open_device`] for writing;
    /// [`ResizeError::Unsound`](crate::ResizeError::Unsound).
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Self> {
        let (clock, options) = (options.clock, options.write(true));
        let sb = read_super(&*device)?;
        let (device, claim) = match HostClaim::take(&device, &sb, &options)? {
            Some((fenced, claim)) => (fenced, Some(claim)),
            None => (device, None),
        };
        Fs::open_claimed(Arc::clone(&device), options.threads(false))?.close()?;
        Ok(Self { volume: Resizing::new(device, clock)?, claim })
    }

    /// Returns the superblock, up to date.
    pub fn superblock(&self) -> &Superblock {
        self.volume.superblock()
    }

    /// Returns the block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.volume.superblock().block_size()
    }

    /// Returns the number of blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.volume.superblock().blocks_count()
    }

    /// Returns the size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.blocks() * u64::from(self.block_size())
    }

    /// Returns the size of the volume's device in bytes.
    pub fn device_size(&self) -> u64 {
        self.volume.device_size()
    }

    /// Returns the number of block groups of the volume.
    pub fn groups(&self) -> u32 {
        self.volume.superblock().layout().group_count()
    }

    /// Returns the number of inodes of the volume.
    pub fn inodes(&self) -> u32 {
        self.volume.superblock().inodes_count()
    }

    /// Returns what [`fit`](Self::fit) does, for a volume that is open elsewhere and has
    /// `superblock`.
    ///
    /// # Errors
    /// [`ResizeError`](crate::ResizeError): block or inode numbers do not reach so far.
    pub fn fit_of(superblock: &Superblock, size: u64) -> Result<u64> {
        fit(superblock, size)
    }

    /// Returns the bytes that the volume has after it is asked for `size` bytes: whole blocks, and
    /// no last group that is too short for its own structures.
    ///
    /// # Errors
    /// [`ResizeError`](crate::ResizeError): block or inode numbers do not reach so far.
    pub fn fit(&self, size: u64) -> Result<u64> {
        let block_size = u64::from(self.block_size());
        Ok(self.volume.fit(size / block_size)? * block_size)
    }

    /// Returns the fewest bytes that one [`shrink`](Self::shrink) can give the volume. The result
    /// may have a smaller minimum: inode tables of groups that went away leave room. Reads all
    /// inodes and bitmaps.
    ///
    /// # Errors
    /// A damaged volume; the device's.
    pub fn minimum(&self) -> Result<u64> {
        Ok(self.volume.minimum()? * u64::from(self.block_size()))
    }

    /// Shrinks the volume to `size` bytes, as [`fit`](Self::fit) rounds it; does nothing to a
    /// volume of that size or less. What lies behind the new end moves before it: the log, inodes,
    /// which get other numbers, and blocks of files. Bitmaps and inode tables of groups that stay
    /// do not move. The device keeps its length.
    ///
    /// # Errors
    /// [`ResizeError`](crate::ResizeError): the volume is as it was. After an error of the journal
    /// or the device, recovery leaves a sound volume with its old size or the new one.
    ///
    /// ```
    /// # use lanefs::device::MemDevice;
    /// # use lanefs::{OpenOptions, Resize, mkfs};
    /// # let device = std::sync::Arc::new(MemDevice::new(64 << 20));
    /// # mkfs::format(&*device, &mkfs::Options::default())?;
    /// let mut resize = Resize::open(device, OpenOptions::new())?;
    /// resize.shrink(resize.minimum()?)?;
    /// assert!(resize.size() < 16 << 20);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn shrink(&mut self, size: u64) -> Result<()> {
        self.volume.shrink(size / u64::from(self.block_size()))
    }

    /// Grows the volume to `size` bytes, as [`fit`](Self::fit) rounds it; does nothing to a volume
    /// of that size or more. The device must have the bytes already. If those from `zeros_from` on
    /// are known to be zero, as in a file that was just made longer, they are not zeroed again.
    ///
    /// # Errors
    /// [`ResizeError`](crate::ResizeError): the volume is as it was, or has one of the sizes
    /// between. After an error of the journal or the device, recovery leaves such a volume.
    pub fn grow(&mut self, size: u64, zeros_from: Option<u64>) -> Result<()> {
        let blocks = self.fit(size)? / u64::from(self.block_size());
        self.volume.grow(blocks, zeros_from.unwrap_or(u64::MAX))
    }
}

impl Volume {
    /// Grows the volume to `size` bytes while it is open, beside threads that use it, without a
    /// last group that is too short for its own structures. Returns the bytes that it has then. The
    /// device must have the bytes already; a file that another process has made longer is looked at
    /// again. Threads that change metadata wait twice, for about the time of a commit.
    ///
    /// A crash at any moment leaves the volume sound: with its size of before, the new one, or, if
    /// the growth takes more than one transaction, one between them. Without a journal a check has
    /// to repair it, as after any other change.
    ///
    /// # Errors
    /// [`ResizeError`](crate::ResizeError): the volume has its old size, or one between the two.
    /// [`Error::ReadOnly`](crate::Error::ReadOnly). After an error of the journal or the device,
    /// recovery leaves a volume with one of these sizes.
    ///
    /// ```
    /// use lanefs::device::MemDevice;
    /// use lanefs::{Volume, mkfs};
    /// use std::sync::Arc;
    ///
    /// let device = Arc::new(MemDevice::new(64 << 20));
    /// let options = mkfs::Options { size: Some(16 << 20), ..mkfs::Options::default() };
    /// mkfs::format(&*device, &options)?;
    ///
    /// let volume = Volume::open_device(device)?;
    /// let file = volume.create_file("/open")?;
    /// assert_eq!(volume.grow(64 << 20)?, 64 << 20);
    /// file.write_at(&[7; 40 << 20], 0)?;
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn grow(&self, size: u64) -> Result<u64> {
        let block_size = u64::from(self.fs.block_size);
        let grown = self.fs.check_writable().and_then(|()| self.fs.grow(size / block_size));
        self.whole("grow", grown)?;
        Ok(self.fs.layout().blocks_count() * block_size)
    }
}
