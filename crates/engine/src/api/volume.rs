//! An open volume: opening, figures, and what concerns it as a whole. `root` has its operations on
//! paths.

#[cfg(doc)]
use crate::error::Error;
use crate::error::{OrCannot, Result};
use crate::fs::stats::Stats;
use crate::fs::{Fs, OpenOptions, Recovery, StatFs};
use crate::store::alloc;
use lanefs_device::BlockDevice;
use lanefs_format::Superblock;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open volume. Paths are inside the volume, absolute or from its root. Shared between
/// threads by reference.
///
/// Dropping it closes the volume too, but reports no errors: call [`close`](Self::close).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("disk.img");
/// use lanefs::{Volume, mkfs};
///
/// let volume = Volume::create(&path, 64 << 20, &mkfs::Options::default())?;
/// volume.create_dir_all("/etc/ssl")?;
/// volume.write("/etc/motd", b"hello")?;
/// volume.close()?;
///
/// let volume = Volume::open(&path)?;
/// assert_eq!(volume.read("/etc/motd")?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Volume {
    pub(super) fs: Arc<Fs>,
    /// The path of the volume, where it was opened by one.
    name: Option<PathBuf>,
}

/// The state of the superblock and the journal of an open volume.
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    /// The superblock as it would be written now.
    pub superblock: Superblock,
    /// Journal counters since the volume was opened.
    pub journal: lanefs_journal::Stats,
    /// Whether the volume may be changed.
    pub writable: bool,
    /// What recovery did when the volume was opened.
    pub recovery: Recovery,
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Files that are still open keep it open.
        self.fs.flusher.pause();
        self.fs.release();
        self.fs.flusher.resume();
    }
}

impl Volume {
    pub(crate) fn new(fs: Arc<Fs>) -> Self {
        Self { fs, name: None }
    }

    pub(super) fn named(self, name: &Path) -> Self {
        let mut volume = self;
        volume.name = Some(name.to_owned());
        volume
    }

    /// Names the volume in a failure of an operation on all of it.
    pub(super) fn whole<T>(&self, operation: &'static str, done: Result<T>) -> Result<T> {
        match &self.name {
            Some(name) => done.or_cannot(operation, name),
            None => done,
        }
    }

    /// Opens the volume in a file or block device for reading and writing, recovers it if it was
    /// not closed, and locks it against other openers.
    ///
    /// # Errors
    /// [`Error::Device`] for a file that cannot be opened or is in use; a volume that breaks a rule
    /// of the format or needs a feature that lanefs does not have to write; the device's,
    /// and those of a damaged log.
    ///
    /// ```no_run
    /// let volume = lanefs::Volume::open("disk.img")?;
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().write(true).open(path)
    }

    /// Opens the volume for reading. It is not written, not even to recover it.
    ///
    /// # Errors
    /// [`Error::Device`] for a file that cannot be opened or is in use; a volume that breaks a rule
    /// of the format or needs a feature that lanefs does not have to read; the device's,
    /// and those of a damaged log.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("disk.img");
    /// # lanefs::Volume::create(&path, 16 << 20, &lanefs::mkfs::Options::default())?.close()?;
    /// let volume = lanefs::Volume::open_read_only(&path)?;
    /// assert!(volume.exists("/lost+found")?);
    /// assert!(volume.write("/file", b"").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().open(path)
    }

    /// Opens the volume on a device for reading and writing.
    ///
    /// # Errors
    /// A volume that breaks a rule of the format or needs a feature that lanefs does not have to
    /// write; the device's, and those of a damaged log.
    ///
    /// ```
    /// use lanefs::device::MemDevice;
    /// use std::sync::Arc;
    ///
    /// let device = Arc::new(MemDevice::new(16 << 20));
    /// lanefs::mkfs::format(&*device, &lanefs::mkfs::Options::default())?;
    /// let volume = lanefs::Volume::open_device(device)?;
    /// volume.write("/file", b"in memory")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_device(device: Arc<dyn BlockDevice>) -> Result<Self> {
        OpenOptions::new().write(true).open_device(device)
    }

    /// Runs `f` for an unprivileged user: without the blocks reserved for root
    /// (`s_r_blocks_count`). While `f` runs, this thread finds no space, on any volume, where only
    /// reserved blocks are left. A volume that was opened without [`OpenOptions::use_reserved`]
    /// keeps them from every caller.
    ///
    /// # Examples
    /// ```
    /// # let device = std::sync::Arc::new(lanefs::device::MemDevice::new(16 << 20));
    /// # lanefs::mkfs::format(&*device, &lanefs::mkfs::Options::default())?;
    /// let volume = lanefs::OpenOptions::new().write(true).open_device(device)?;
    /// lanefs::Volume::keeping_reserved(|| volume.write("/file", b"of a user"))?;
    /// # volume.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keeping_reserved<T>(f: impl FnOnce() -> T) -> T {
        alloc::keeping_reserved(true, f)
    }

    /// Returns the numbers of used and free blocks and inodes.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let before = volume.statfs().blocks_free;
    /// volume.write("/file", &[1; 100_000])?;
    /// assert!(volume.statfs().blocks_free < before);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }

    /// Tells the device which bytes of `range` are free (fstrim): runs of at least `least` bytes.
    /// Returns how many bytes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; the device's.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let told = volume.trim(0..u64::MAX, 1 << 20)?;
    /// assert!(told > 8 << 20 && told < 16 << 20);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn trim(&self, range: std::ops::Range<u64>, least: u64) -> Result<u64> {
        let size = u64::from(self.fs.block_size);
        let blocks = range.start.div_ceil(size)..range.end / size;
        let trimmed = alloc::trim(&self.fs, blocks, least.div_ceil(size));
        Ok(self.whole("trim", trimmed)? * size)
    }

    /// Returns what the superblock and the journal report.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let info = volume.info();
    /// println!("{} blocks of {} bytes", info.superblock.blocks_count(), info.superblock.block_size());
    /// assert!(info.writable && !info.recovery.journal.needed);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn info(&self) -> VolumeInfo {
        let superblock = self.fs.sb.lock().clone();
        VolumeInfo {
            superblock,
            journal: self.fs.journal.stats(),
            writable: !self.fs.is_read_only(),
            recovery: self.fs.recovery,
        }
    }

    /// Returns the counters and times since the volume was opened.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/ledger", b"100")?;
    /// volume.open_options().write(true).open("/ledger")?.sync_all()?;
    /// let stats = volume.stats();
    /// assert_eq!((stats.times.write.count, stats.times.fsync.count), (1, 1));
    /// println!("a commit takes {} ns at most", stats.journal.times.commit.max);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.fs.stats()
    }

    /// Makes every finished operation durable.
    ///
    /// # Errors
    /// The journal's or the device's.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/ledger", b"100")?;
    /// volume.sync()?; // after any crash from here on, the ledger says 100
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.whole("sync", self.fs.sync())
    }

    /// Makes everything durable, empties the journal and marks the volume as clean. Files and
    /// directories that are still open cannot change it any more.
    ///
    /// # Errors
    /// The journal's or the device's: the volume then needs recovery.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/file")?;
    /// volume.close()?;
    /// assert!(file.write_at(b"late", 0).is_err());
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn close(self) -> Result<()> {
        self.whole("close", self.fs.close())
    }
}
