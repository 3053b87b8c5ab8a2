//! Making a volume, and naming it.

use super::Volume;
use crate::error::{Error, Result};
use crate::fs::OpenOptions;
use crate::store::txn::credits;
use lanefs_device::{BlockDevice, FileDevice, MemDevice};
use lanefs_format::Superblock;
use lanefs_mkfs::MkfsError;
use std::path::Path;
use std::sync::Arc;

/// Bytes of `s_volume_name`.
const LABEL_MAX: usize = 16;

impl Volume {
    /// Makes a volume of `size` bytes in a new file, and opens it for writing.
    ///
    /// [`lanefs::mkfs::format`](crate::mkfs::format) makes one over what a file or device holds.
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
        made
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
    /// [`Error::Invalid`] for more than 16 bytes or a zero byte; [`Error::ReadOnly`]; the
    /// journal's.
    ///
    /// ```
    /// let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.set_label(b"data")?;
    /// assert_eq!(volume.label(), b"data");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_MAX || label.contains(&0) {
            return Err(Error::Invalid("a label of more than 16 bytes, or with a zero byte"));
        }
        let name = |sb: &mut Superblock| sb.set_label(label);
        self.fs.transact(credits::SUPER, |txn| txn.store().write_super(txn, name))
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
    use lanefs_mkfs::Options;

    #[test]
    fn a_volume_is_made_in_a_new_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let too_small = Volume::create(&path, 4096, &Options::default());
        assert!(matches!(too_small, Err(Error::Mkfs(_))), "{too_small:?}");
        assert!(!path.exists());
        let volume = Volume::create(&path, 16 << 20, &Options::default()).unwrap();
        volume.set_label(b"sixteen bytes ok").unwrap();
        assert!(matches!(volume.set_label(b"seventeen bytes !"), Err(Error::Invalid(_))));
        assert!(matches!(volume.set_label(b"a\0b"), Err(Error::Invalid(_))));
        volume.close().unwrap();
        let before = std::fs::read(&path).unwrap();
        let taken = Volume::create(&path, 16 << 20, &Options::default()).unwrap_err();
        assert_eq!(taken.errno(), lanefs_device::errno::EEXIST, "{taken}");
        assert!(std::fs::read(&path).unwrap() == before);
        let volume = Volume::open_read_only(&path).unwrap();
        assert_eq!(volume.label(), b"sixteen bytes ok");
        assert!(matches!(volume.set_label(b"x"), Err(Error::ReadOnly)));
    }
}
