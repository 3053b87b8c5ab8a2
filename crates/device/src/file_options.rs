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

/// Options to open or create a [`FileDevice`].
///
/// The defaults are reading and writing, through the page cache. `open`, `create` and `create_new`
/// use the options, as those of [`std::fs::OpenOptions`] are used.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, FileOptions};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("disk.img");
/// FileOptions::new().create_new(&path, 1 << 20)?;
/// let device = FileOptions::new().read_only(true).open(&path)?;
/// assert!(device.read_only());
/// assert!(device.write_at(b"refused", 0).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FileOptions {
    pub(crate) read_only: bool,
    pub(crate) cached: Cached,
    pub(crate) io_uring: IoUring,
    pub(crate) confined: bool,
    pub(crate) unlocked: bool,
    pub(crate) keeps_content: bool,
    pub(crate) window: Option<Range<u64>>,
}

impl FileOptions {
    /// Returns the defaults: reading and writing, through the page cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the device is for reading only: writes fail, and other readers may share the
    /// file.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Sets whether all I/O bypasses the page cache (O_DIRECT).
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

    /// Sets whether the open makes everything that later calls need, such as rings of io_uring. A
    /// process that confines itself after the open may not make them later.
    pub fn confined(mut self, yes: bool) -> Self {
        self.confined = yes;
        self
    }

    /// Sets whether a device for reading takes no lock. The caller knows that a writer beside it
    /// changes nothing meanwhile. A device for writing always takes the lock.
    pub fn unlocked(mut self, yes: bool) -> Self {
        self.unlocked = yes;
        self
    }

    /// Sets whether `create` refuses a file that has content (EEXIST). This is looked at under the
    /// lock: two processes may find no file, or an empty one, at the same time.
    pub(crate) fn keeps_content(mut self, yes: bool) -> Self {
        self.keeps_content = yes;
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
    /// Opens a regular file or a block special file for reading and writing.
    ///
    /// The file is locked until the device is dropped. A second opener fails, in this process or in
    /// another one. [`FileOptions`] has more ways to open a file.
    ///
    /// # Errors
    /// [`Op::Open`](crate::Op::Open) for a file that is missing, not permitted, empty, or of
    /// another kind; [`Op::Lock`](crate::Op::Lock) (EBUSY) while another opener or a mount uses it.
    /// See [`FileOptions::open`].
    ///
    /// # Examples
    /// ```
    /// use lanefs_device::{BlockDevice, FileDevice, errno};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("disk.img");
    /// std::fs::write(&path, vec![0; 1 << 20])?;
    /// let device = FileDevice::open(&path)?;
    /// device.write_at(b"durable", 4096)?;
    /// device.flush()?;
    /// assert_eq!(FileDevice::open(&path).unwrap_err().errno(), errno::EBUSY);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        FileOptions::new().open(path)
    }

    /// Opens a file as [`open`](Self::open) does, but for reading, beside any number of other
    /// readers.
    ///
    /// # Errors
    /// The errors of [`FileOptions::open`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        FileOptions::new().read_only(true).open(path)
    }

    /// Creates a sparse file of `size` zero bytes, and drops the content of an existing file.
    ///
    /// # Errors
    /// The errors of [`FileOptions::create`].
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        FileOptions::new().create(path, size)
    }

    /// Creates a sparse file of `size` zero bytes, and leaves an existing file alone.
    ///
    /// # Errors
    /// EEXIST if the file exists, and the other errors of [`FileOptions::create_new`].
    pub fn create_new(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        FileOptions::new().create_new(path, size)
    }
}
