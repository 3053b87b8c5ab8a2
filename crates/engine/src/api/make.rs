//! Making a volume, naming and tuning it.

use super::Volume;
use crate::error::{Error, OrCannot, Result};
use crate::fs::OpenOptions;
use lanefs_device::{BlockDevice, FileDevice, MemDevice};
use lanefs_format::{Superblock, Tuning};
use lanefs_mkfs::MkfsError;
use std::path::Path;
use std::sync::Arc;

impl Volume {
    /// Makes a volume of `size` bytes in a new file, and opens it for writing.
    ///
    /// [`lanefs::mkfs::format`](crate::mkfs::format) overwrites an existing file or device.
    ///
    /// # Errors
    /// [`Error::Device`]: EEXIST for a path that is taken, whose file is left alone; the system's
    /// reason. [`Error::Mkfs`]: options that cannot be had together or in a file of this size.
    /// After a failure there is no new file.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("disk.img");
    /// use lanefs::mkfs::Options;
    ///
    /// let volume = lanefs::Volume::create(&path, 64 << 20, &Options::default())?;
    /// volume.write("/hello", b"world")?;
    /// volume.close()?;
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn create(path: impl AsRef<Path>, size: u64, options: &lanefs_mkfs::Options) -> Result<Self> {
        let path = path.as_ref();
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::create_new(path, size)?);
        let made = Self::create_on(Arc::clone(&device), options);
        if made.is_err() {
            // Still locked: no other process has it.
            let _ = std::fs::remove_file(path);
        }
        Ok(made.or_cannot("create", path)?.named(path))
    }

    /// Makes a volume of `size` bytes in memory, and opens it for writing: for tests and examples.
    ///
    /// # Errors
    /// [`Error::Mkfs`]: it is too small for a volume.
    ///
    /// ```
    /// let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.create_dir("/etc")?;
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn in_memory(size: usize) -> Result<Self> {
        Self::create_on(Arc::new(MemDevice::new(size)), &lanefs_mkfs::Options::default())
    }

    fn create_on(device: Arc<dyn BlockDevice>, options: &lanefs_mkfs::Options) -> Result<Self> {
        lanefs_mkfs::format(&*device, options)?;
        OpenOptions::new().write(true).open_device(device)
    }

    /// Returns the label (`s_volume_name`), empty if the volume has none.
    pub fn label(&self) -> Vec<u8> {
        self.fs.sb.lock().label().to_vec()
    }

    /// Sets the label.
    ///
    /// # Errors
    /// [`Error::Tuning`] for more than 16 bytes or a zero byte; [`Error::ReadOnly`]; the journal's.
    ///
    /// ```
    /// let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.set_label(b"data")?;
    /// assert_eq!(volume.label(), b"data");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.tune(&Tuning { label: Some(label.to_vec()), ..Tuning::default() })
    }

    /// Changes what `tuning` names, in the superblock and its copies. It counts for the next open
    /// of the volume.
    ///
    /// # Errors
    /// [`Error::Tuning`] for what the superblock cannot have, or on which checksums depend; then
    /// nothing has changed. [`Error::ReadOnly`]; the journal's.
    ///
    /// ```
    /// use lanefs::format::{ErrorBehavior, Tuning};
    /// let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.tune(&Tuning { errors: Some(ErrorBehavior::RemountReadOnly), ..Tuning::default() })?;
    /// assert_eq!(volume.info().superblock.raw().s_errors, 2);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn tune(&self, tuning: &Tuning) -> Result<()> {
        self.whole("tune", self.write_tuning(tuning))
    }

    fn write_tuning(&self, tuning: &Tuning) -> Result<()> {
        // A growth writes the copies anew.
        let _one = self.fs.resizing.lock();
        let before = self.fs.sb.lock().clone();
        before.clone().tune(tuning)?;
        // The check above succeeded, and no other call can make it fail since.
        let change = |sb: &mut Superblock| {
            let _ = sb.tune(tuning);
        };
        self.fs.write_supers(&before, 0, change)
    }
}

impl From<MkfsError> for Error {
    fn from(e: MkfsError) -> Self {
        match e {
            MkfsError::Device(e) => Self::Device(e),
            e => Self::Mkfs(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_device::Op;
    use lanefs_mkfs::Options;
    use lanefs_sim::FailingDevice;

    #[test]
    fn a_volume_is_made_in_a_new_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let too_small = Volume::create(&path, 4096, &Options::default());
        assert!(matches!(too_small.as_ref().unwrap_err().kind(), Error::Mkfs(_)), "{too_small:?}");
        assert!(!path.exists());
        let volume = Volume::create(&path, 16 << 20, &Options::default()).unwrap();
        volume.set_label(b"sixteen bytes ok").unwrap();
        assert!(matches!(volume.set_label(b"seventeen bytes !").unwrap_err().kind(), Error::Tuning(_)));
        assert!(matches!(volume.set_label(b"a\0b").unwrap_err().kind(), Error::Tuning(_)));
        volume.close().unwrap();
        let before = std::fs::read(&path).unwrap();
        let taken = Volume::create(&path, 16 << 20, &Options::default()).unwrap_err();
        assert_eq!(taken.errno(), lanefs_device::errno::EEXIST, "{taken}");
        assert!(std::fs::read(&path).unwrap() == before);
        let volume = Volume::open_read_only(&path).unwrap();
        assert_eq!(volume.label(), b"sixteen bytes ok");
        assert!(matches!(volume.set_label(b"x").unwrap_err().kind(), Error::ReadOnly));
    }

    /// The superblock itself is in memory: the first read is that of a copy.
    #[test]
    fn a_copy_that_cannot_be_read_aborts_no_journal() {
        let device = Arc::new(FailingDevice::new(MemDevice::new(16 << 20)));
        let options = Options { block_size: Some(1024), ..Options::default() };
        lanefs_mkfs::format(&*device, &options).unwrap();
        let volume = Volume::open_device(device.clone()).unwrap();
        device.fail_once(Op::Read, 1, 5);
        assert_eq!(volume.set_label(b"label").unwrap_err().errno(), 5);
        assert!(volume.label().is_empty());
        volume.sync().unwrap();
        volume.set_label(b"label").unwrap();
        volume.close().unwrap();
    }
}
