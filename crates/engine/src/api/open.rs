//! Opening a volume with options.

use super::Volume;
use crate::error::{OrCannot, Result};
use crate::fs::{Fs, OpenOptions};
use lanefs_device::{BlockDevice, open_url};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

impl OpenOptions {
    /// Opens the volume in a file or block special file, and locks it against other openers.
    ///
    /// # Errors
    /// A file that cannot be opened or is in use; a volume that breaks a rule of the format or
    /// needs a feature that lanefs does not have.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Volume> {
        let path = path.as_ref();
        let device = self.file_options().open(path)?;
        Ok(self.open_device(Arc::new(device)).or_cannot("open", path)?.named(path))
    }

    /// Opens the volume with this name: a path, a partition (`disk.raw@2`), or the URL of a mapped
    /// file, an NBD export, an RBD image, an overlay or a cache.
    /// [`VolumeUrl`](crate::device::VolumeUrl) has the forms.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for a malformed name, and for a device that cannot
    /// be opened or is in use; a volume that breaks a rule of the format or needs a feature that
    /// lanefs does not have.
    pub fn open_url(self, name: impl AsRef<OsStr>) -> Result<Volume> {
        let name = Path::new(&name);
        let opened = self.device(name).and_then(|device| self.open_device(device));
        Ok(opened.or_cannot("open", name)?.named(name))
    }

    /// Opens and locks the device of the volume with this name, without reading it.
    /// [`open_device`](Self::open_device) on it returns the same as [`open_url`](Self::open_url).
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device); a name that is none.
    pub fn device(&self, name: impl AsRef<OsStr>) -> Result<Arc<dyn BlockDevice>> {
        Ok(open_url(name, &self.file_options())?)
    }

    /// Opens the volume on a device.
    ///
    /// # Errors
    /// A volume that breaks a rule of the format or needs a feature that lanefs does not have; the
    /// device's.
    pub fn open_device(self, device: Arc<dyn BlockDevice>) -> Result<Volume> {
        Ok(Volume::new(Fs::open(device, self)?))
    }
}
