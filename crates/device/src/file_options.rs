//! Options to open a file as a device, on every system.

use crate::{FileDevice, Result};
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// The I/O that uses the kernel's page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cached {
    /// All.
    #[default]
    All,
    /// Reads of less than 128 KiB use the page cache, which reads ahead for them. Larger reads and
    /// all writes bypass it, which avoids a second copy. All I/O uses the page cache on a block
    /// special file, and on a file system without direct I/O or not known (as ext4 and XFS are) to
    /// keep direct and cached I/O coherent.
    SmallReads,
    /// Nothing (O_DIRECT).
    Nothing,
}

/// The value of the mount option `io=`.
impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "buffered",
            Self::SmallReads => "mixed",
            Self::Nothing => "direct",
        })
    }
}

/// When batches of requests use io_uring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Where the kernel has it and it is faster than a loop of calls: several runs of direct I/O.
    #[default]
    Auto,
    /// Never.
    Off,
    /// For every batch. To open a device fails where the kernel refuses it.
    On,
}

/// Options to open a [`FileDevice`]. The default is reading and writing through the page cache.
#[derive(Debug, Clone, Default)]
pub struct FileOptions {
    pub(crate) read_only: bool,
    pub(crate) cached: Cached,
    pub(crate) io_uring: IoUring,
    pub(crate) confined: bool,
    pub(crate) unlocked: bool,
    pub(crate) window: Option<Range<u64>>,
}

impl FileOptions {
    /// Returns the defaults: reading and writing, through the page cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for reading only: writes fail, and other readers may share the file.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Bypasses the page cache (O_DIRECT).
    pub fn direct(self, yes: bool) -> Self {
        self.cached(if yes { Cached::Nothing } else { Cached::All })
    }

    /// Sets which I/O uses the kernel's page cache. The default is all of it.
    pub fn cached(mut self, what: Cached) -> Self {
        self.cached = what;
        self
    }

    /// Sets when batches use io_uring. The default is where it is faster than single calls.
    pub fn io_uring(mut self, when: IoUring) -> Self {
        self.io_uring = when;
        self
    }

    /// Makes at open what would be made when it is needed: for a process that gives up the right to
    /// after the open.
    pub fn confined(mut self, yes: bool) -> Self {
        self.confined = yes;
        self
    }

    /// Opens for reading without the lock: beside a writer that is known to hold still meanwhile.
    /// Writing is always locked.
    pub fn unlocked(mut self, yes: bool) -> Self {
        self.unlocked = yes;
        self
    }

    /// Limits the device to these bytes: they alone are locked, and direct I/O must fit them.
    pub(crate) fn window(mut self, bytes: Option<Range<u64>>) -> Self {
        self.window = bytes;
        self
    }

    /// Returns the bytes that will be used, `None` for all.
    #[cfg(target_os = "linux")]
    pub(crate) fn used(&self) -> Option<Range<u64>> {
        self.window.clone()
    }
}

impl FileDevice {
    /// Opens `path` for reading and writing. See [`FileOptions::open`].
    ///
    /// # Errors
    /// The errors of [`FileOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        FileOptions::new().open(path)
    }

    /// Opens `path` for reading, beside any number of other readers.
    ///
    /// # Errors
    /// The errors of [`FileOptions::open`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        FileOptions::new().read_only(true).open(path)
    }

    /// Makes a sparse file of `size` bytes. See [`FileOptions::create`].
    ///
    /// # Errors
    /// The errors of [`FileOptions::create`].
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        FileOptions::new().create(path, size)
    }

    /// Creates a new sparse file of `size` bytes. Fails if the file exists. See
    /// [`FileOptions::create_new`].
    ///
    /// # Errors
    /// The errors of [`FileOptions::create_new`].
    pub fn create_new(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        FileOptions::new().create_new(path, size)
    }
}
