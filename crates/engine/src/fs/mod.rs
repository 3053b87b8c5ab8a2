//! An open volume: its store, and the state that its threads share above it.
//!
//! [`Fs`] adds to the [`Store`] the inodes in use, the page cache, the flusher, and the state that
//! one operation leaves for another. [`open`](mod@open) recovers the volume and makes its `Fs`;
//! [`Fs::close`] ends it.

mod admission;
mod close;
pub(crate) mod data;
mod dirty_times;
pub(crate) mod file;
mod flusher;
pub(crate) mod inode;
pub(crate) mod mmp;
mod modes;
mod mount_options;
pub(crate) mod namei;
mod open;
mod options;
mod orphans;
mod statfs;
pub(crate) mod stats;
mod writers;

pub use mmp::{MmpClock, MmpWait};
pub use modes::{IVersion, Locking, Overwrite, WritebackMode};
pub use mount_options::{WORDS_OF_DEFAULTS, WORDS_OF_HINTS, mount_words};
pub use options::OpenOptions;
pub use statfs::StatFs;

use crate::error::{Error, Result};
use crate::store::Store;
use data::Combiner;
use dirty_times::{DirtyTimes, Round};
use file::cache::{Background, PageCache};
use flusher::Flusher;
use inode::InodeCache;
use lanefs_format::State;
use lanefs_journal::Ticket;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use mmp::HostClaim;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use writers::Writer;
use writers::Writers;

/// The longest time between a change and its commit without a sync.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// What recovery did when a volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// What was replayed from the journal.
    pub journal: lanefs_journal::recovery::Report,
    /// Files that were being deleted or truncated when the volume was left. A volume that is open
    /// for writing finishes them.
    pub orphans: u32,
}

/// An open volume.
#[derive(Debug)]
pub(crate) struct Fs {
    store: Store,
    pub(crate) inodes: InodeCache,
    pub(crate) options: OpenOptions,
    /// Held by a rename between directories, which may change the tree's shape.
    pub(crate) topology: Mutex<()>,
    state_at_open: State,
    pub(crate) recovery: Recovery,
    pub(crate) pages: Arc<PageCache>,
    pub(crate) flusher: Flusher,
    pub(crate) combiner: Combiner,
    dirty_times: DirtyTimes,
    writers: Writers,
    /// Held by the thread that closes the volume.
    closing: Mutex<()>,
    /// Held by the writer that writes out what all have left to a remote device. It holds no other
    /// lock then.
    clearing: Mutex<()>,
    /// The flush that covers data of files whose inodes were evicted since.
    unflushed: AtomicU64,
    /// The opener and all uses of inodes: the last release closes the volume.
    users: AtomicUsize,
    /// The claim of a volume with multiple mount protection.
    claim: Option<HostClaim>,
}

/// An open volume has the structures of its store.
impl Deref for Fs {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Fs {
    /// Checks that the volume may be changed. From the begin of a close on it may not, although the
    /// close itself still changes its store.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writers.are_refused() {
            return Err(Error::Closed);
        }
        if let Some(why) = self.claim.as_ref().and_then(HostClaim::lost) {
            // Nothing of it would reach the device.
            self.journal.abort(&why.to_string());
            return Err(why.clone().into());
        }
        self.store.check_writable()
    }

    /// Lets the caller, which has locked the bytes of a file, begin a change of its content.
    ///
    /// # Errors
    /// [`Error::Closed`] from the begin of a close on.
    pub(crate) fn enter(&self) -> Result<Writer<'_>> {
        self.writers.enter().ok_or(Error::Closed)
    }

    /// Adds a reference that keeps the volume open.
    pub(crate) fn retain(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops such a reference. The last one closes the volume, and errors are not reported.
    pub(crate) fn release(&self) {
        // The count never falls to 0: inodes that closing uses, or the flusher at the same moment,
        // must not close the volume again.
        let fewer = |users: usize| users.checked_sub(1).filter(|rest| *rest > 0);
        if self.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_err() {
            let _ = self.close();
        }
    }

    /// Keeps the ticket of a file whose inode is evicted.
    pub(crate) fn keep_unflushed(&self, ticket: Ticket) {
        // Most files leave nothing that is newer than what the volume knows of.
        if ticket.to_u64() > self.unflushed.load(Ordering::Acquire) {
            self.unflushed.fetch_max(ticket.to_u64(), Ordering::AcqRel);
        }
    }

    /// Returns the ticket that covers what was written to a file before its inode was cached.
    pub(crate) fn unflushed(&self) -> Ticket {
        Ticket::from_u64(self.unflushed.load(Ordering::Acquire))
    }

    /// Notes that the last change of a file is not in its inode yet; `raise` makes the change
    /// pending.
    pub(crate) fn note_dirty_times(&self, ino: u32, raise: impl FnOnce()) {
        self.dirty_times.add(ino, raise);
        self.flusher.stir();
    }

    /// Returns the number of files whose last change is not in their inodes yet.
    pub(crate) fn dirty_times(&self) -> usize {
        self.dirty_times.len()
    }

    /// Lists the files whose last change is not in their inodes yet.
    pub(crate) fn list_dirty_times(&self) -> Vec<(u32, Round)> {
        self.dirty_times.list()
    }

    /// Takes a file off that list, once its inode has the changes that were pending in `round`.
    pub(crate) fn forget_dirty_times(&self, ino: u32, round: Round) {
        self.dirty_times.remove(ino, round);
    }

    /// Returns the state of a flusher that begins. Pages are written out at the age at which
    /// changes are committed, because cached content is lost with the process.
    pub(crate) fn background_jobs(&self) -> Background {
        let age = self.options.commit_interval;
        Background::new((!age.is_zero()).then_some(age))
    }

    /// Returns whether the background is to write the pending times of these files now.
    pub(crate) fn times_are_due(&self) -> bool {
        self.dirty_times.are_due(self.options.commit_interval)
    }
}
