//! How a volume is opened.

use super::mmp::{HostClock, MmpClock, MmpWait, Waiting};
use super::modes::{IVersion, Locking, Modes, Overwrite, WritebackMode};
use lanefs_device::{Cached, FileOptions, IoUring, memory_size};
use lanefs_format::Timestamp;
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
    pub(crate) cached: Cached,
    pub(crate) io_uring: IoUring,
    pub(crate) confined: bool,
    pub(crate) noload: bool,
    pub(crate) commit_interval: Duration,
    pub(crate) clock: Option<Timestamp>,
    pub(crate) tick_times: bool,
    pub(crate) use_reserved: bool,
    pub(crate) modes: Modes,
    pub(crate) cache_bytes: Option<usize>,
    pub(crate) metadata_cache_bytes: Option<usize>,
    pub(crate) release_memory: bool,
    pub(crate) threads: bool,
    pub(crate) past_cache: usize,
    pub(crate) mmp: bool,
    pub(crate) mmp_clock: HostClock,
    pub(crate) mmp_waiting: Waiting,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Returns the defaults: read-only, a quarter of memory as cache, a commit every five seconds.
    pub fn new() -> Self {
        Self {
            write: false,
            cached: Cached::SmallReads,
            io_uring: IoUring::default(),
            confined: false,
            noload: false,
            commit_interval: super::COMMIT_INTERVAL,
            clock: None,
            tick_times: false,
            use_reserved: true,
            modes: Modes::default(),
            cache_bytes: None,
            metadata_cache_bytes: None,
            release_memory: false,
            threads: true,
            past_cache: 128 << 10,
            mmp: true,
            mmp_clock: HostClock::default(),
            mmp_waiting: Waiting::default(),
        }
    }

    /// Opens for writing too. Then a journal that needs recovery is replayed on the volume. A
    /// volume that is opened for reading is recovered in memory only and never written.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Goes past the page cache of the system (O_DIRECT).
    pub fn direct(self, direct: bool) -> Self {
        self.cached(if direct { Cached::Nothing } else { Cached::All })
    }

    /// Sets which I/O uses the system's page cache. The default is small reads, where the file
    /// below allows that ([`Cached::SmallReads`]). [`Stats::cached`](crate::Stats::cached) says
    /// what was chosen.
    pub fn cached(mut self, what: Cached) -> Self {
        self.cached = what;
        self
    }

    /// Sets the bound of the volume's memory in bytes, for the content of files and for metadata
    /// together: a quarter of the machine's memory, at least 64 MiB, unless said otherwise. Inodes
    /// in use come on top.
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Sets how many of the [`cache_bytes`](Self::cache_bytes) metadata may take: cached blocks,
    /// blocks that transactions have changed, and blocks that are committed and not checkpointed,
    /// whatever the size of the journal. Half of them, but 4 to 128 MiB, unless said otherwise.
    /// Changed blocks may number 2048 in any case.
    pub fn metadata_cache_bytes(mut self, bytes: usize) -> Self {
        self.metadata_cache_bytes = Some(bytes);
        self
    }

    /// Sets how long a change may stay uncommitted without a sync (`commit=` of the kernel). Zero:
    /// until a sync.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Stamps every change with this time, for volumes that are the same each time they are made.
    pub fn clock(mut self, clock: Option<Timestamp>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets whether changes are stamped with the time of the kernel's last tick. The kernel stamps
    /// what it caches so: a mount then agrees with it.
    pub fn tick_times(mut self, yes: bool) -> Self {
        self.tick_times = yes;
        self
    }

    /// Sets whether the blocks reserved for root may be used: yes, unless said otherwise.
    pub fn use_reserved(mut self, yes: bool) -> Self {
        self.use_reserved = yes;
        self
    }

    /// Gives memory back, for programs with a cache of their own above. The page cache is emptied
    /// whenever all written content is on the device. All other memory that is not in use is freed
    /// after five to ten seconds without any use, with free memory of the process's allocator. No,
    /// unless said otherwise.
    pub fn release_memory_when_idle(mut self, yes: bool) -> Self {
        self.release_memory = yes;
        self
    }

    /// Sets whether threads commit, checkpoint and write out in the background: yes, unless said
    /// otherwise. For simulators with one thread, which run [`Upkeep`](crate::Upkeep) themselves.
    #[doc(hidden)]
    pub fn threads(mut self, yes: bool) -> Self {
        self.threads = yes;
        self
    }

    /// Sets from how many bytes on a transfer of a caller with its own cache (`File::write_late`)
    /// goes past the page cache: 128 KiB, unless said otherwise. For simulators of small files.
    #[doc(hidden)]
    pub fn past_cache(mut self, bytes: usize) -> Self {
        self.past_cache = bytes;
        self
    }

    /// Sets whether a volume with multiple mount protection (feature `mmp`) is claimed when it is
    /// opened for writing: yes, unless said otherwise. No is for a device that no other host can
    /// reach, as a private copy of a volume.
    pub fn mmp(mut self, yes: bool) -> Self {
        self.mmp = yes;
        self
    }

    /// Sets a function that an open calls when it begins to wait, because another host may use the
    /// volume ([`MmpWait`]). A wait of a second, which every open of a volume with multiple mount
    /// protection has, is not told.
    pub fn on_mmp_wait(mut self, told: impl Fn(&MmpWait) + Send + Sync + 'static) -> Self {
        self.mmp_waiting = Waiting(Some(Arc::new(told)));
        self
    }

    /// Sets the clock of multiple mount protection: CLOCK_BOOTTIME, unless said otherwise. For
    /// simulators, which do not wait.
    #[doc(hidden)]
    pub fn mmp_clock(mut self, clock: Arc<dyn MmpClock>) -> Self {
        self.mmp_clock = HostClock::simulated(clock);
        self
    }

    /// Returns the bound of metadata in bytes.
    pub(super) fn metadata_cache(&self) -> usize {
        let half = usize::try_from(self.cache() / 2).unwrap_or(usize::MAX);
        self.metadata_cache_bytes.unwrap_or(half.clamp(4 << 20, 128 << 20))
    }

    /// Computes the bound of all caches once: each file that is used asks for it.
    pub(super) fn fix_cache(&mut self) {
        self.cache_bytes = usize::try_from(self.cache()).ok();
    }

    /// Returns the bound of all caches in bytes.
    pub(crate) fn cache(&self) -> u64 {
        const LEAST: u64 = 64 << 20;
        self.cache_bytes.map_or_else(|| (memory_size() / 4).max(LEAST), |bytes| bytes as u64)
    }

    /// Sets what a read or write of a file's content locks (`locking=`).
    pub fn locking(mut self, locking: Locking) -> Self {
        self.modes.locking = locking;
        self
    }

    /// Sets whether a direct overwrite starts a journal handle (`overwrite=`).
    pub fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.modes.overwrite = overwrite;
        self
    }

    /// Sets when i_version changes (`i_version=`).
    pub fn i_version(mut self, i_version: IVersion) -> Self {
        self.modes.i_version = i_version;
        self
    }

    /// Sets how holes are filled (`mapafter`, `dioread_lock`, `dioread_nolock`).
    pub fn writeback(mut self, writeback: WritebackMode) -> Self {
        self.modes.writeback = writeback;
        self
    }

    /// Sets whether blocks are allocated when pages are written out, and not when they become dirty
    /// (`delalloc`, `nodelalloc`): yes, unless said otherwise.
    pub fn delalloc(mut self, yes: bool) -> Self {
        self.modes.delalloc = yes;
        self
    }

    /// Sets whether freed blocks are discarded on the device (`discard`, `nodiscard`): no, unless
    /// said otherwise.
    pub fn discard(mut self, yes: bool) -> Self {
        self.modes.discard = yes;
        self
    }

    /// Sets whether the content of files goes past the page cache where the device is memory
    /// ([`BlockDevice::mapped`](lanefs_device::BlockDevice::mapped): `dax=always`, `dax=never`):
    /// yes, unless said otherwise.
    pub fn dax(mut self, yes: bool) -> Self {
        self.modes.dax = yes;
        self
    }

    /// Sets whether POSIX ACLs count (`acl`, `noacl`): yes, unless said otherwise. Otherwise those
    /// that are stored stay as they are, no new inode inherits any, and they are neither listed nor
    /// read nor set ([`Error::NotSupported`](crate::Error::NotSupported)).
    pub fn acl(mut self, yes: bool) -> Self {
        self.modes.acl = yes;
        self
    }

    /// Ignores the journal (`noload`): changes in it are not seen. For reading only, to look at a
    /// volume whose journal is damaged.
    pub fn noload(mut self, yes: bool) -> Self {
        self.noload = yes;
        self
    }

    /// Makes the device set up at once what it would set up on first use: for a process that gives
    /// up the right to, once [`device`](Self::device) has returned.
    pub fn confined(mut self, yes: bool) -> Self {
        self.confined = yes;
        self
    }

    /// Sets when batches of requests go to the device by io_uring: where it pays, unless said
    /// otherwise.
    pub fn io_uring(mut self, when: IoUring) -> Self {
        self.io_uring = when;
        self
    }

    /// Returns the options by which the volume's file is opened.
    pub(crate) fn file_options(&self) -> FileOptions {
        FileOptions::new()
            .read_only(!self.write)
            .cached(self.cached)
            .io_uring(self.io_uring)
            .confined(self.confined)
    }
}
