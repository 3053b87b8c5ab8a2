//! How a volume is opened.

use super::Fs;
use crate::Volume;
use crate::error::Result;
use lanefs_device::{BlockDevice, FileOptions};
use lanefs_format::Timestamp;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options for opening a volume, shaped like [`std::fs::OpenOptions`].
///
/// ```no_run
/// # fn main() -> Result<(), lanefs::Error> {
/// let volume = lanefs::OpenOptions::new().write(true).open("disk.img")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    pub(crate) write: bool,
    pub(crate) direct: bool,
    pub(crate) cache_bytes: usize,
    pub(crate) commit_interval: Duration,
    pub(crate) clock: Option<Timestamp>,
    pub(crate) use_reserved: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Read-only, 32 MiB of metadata cache, a commit every five seconds.
    pub fn new() -> Self {
        Self {
            write: false,
            direct: false,
            cache_bytes: 32 << 20,
            commit_interval: super::COMMIT_INTERVAL,
            clock: None,
            use_reserved: true,
        }
    }

    /// Opens for writing too. A journal that needs recovery is recovered on the volume; a
    /// volume opened for reading is recovered in memory only and never written.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Goes around the page cache of the system (O_DIRECT).
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Bytes of metadata that the cache keeps when nothing uses them.
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// How long a change may stay uncommitted when nobody syncs (`commit=` of the kernel).
    /// Zero: until somebody does.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Stamps every change with this time, for volumes that come out the same twice.
    pub fn clock(mut self, clock: Option<Timestamp>) -> Self {
        self.clock = clock;
        self
    }

    /// Whether the blocks reserved for root may be used: yes, unless said otherwise.
    pub fn use_reserved(mut self, yes: bool) -> Self {
        self.use_reserved = yes;
        self
    }

    /// Opens the volume in a file or block special file, and locks it against other openers.
    ///
    /// # Errors
    /// A file that cannot be opened or is in use; a volume that breaks a rule of the format or
    /// needs a feature that lanefs does not have.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Volume> {
        let device = FileOptions::new().read_only(!self.write).direct(self.direct).open(path.as_ref())?;
        self.open_device(Arc::new(device))
    }

    /// Opens the volume on a device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_device(self, device: Arc<dyn BlockDevice>) -> Result<Volume> {
        Ok(Volume::new(Fs::open(device, self)?))
    }
}
