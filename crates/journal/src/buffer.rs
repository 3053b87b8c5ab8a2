//! One metadata block in the cache.
//!
//! The content is an `Arc` under a lock. A handle that writes copies it (`Arc::make_mut`) if a
//! commit or a checkpoint still holds the old content. So commits and checkpoints run on snapshots,
//! and no handle waits for them.
//!
//! Invariants:
//! - A block belongs to the transaction that last changed it until the committer has taken its
//!   content. The next transaction first freezes the old content for the committer.
//! - At most one transaction is committing, so there is at most one frozen content. That
//!   transaction has no open handles by then ([`gate`](crate::gate)), so the content is final.

use crate::Tid;
use lanefs_device::AlignedBuf;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use lanefs_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A block's content, shared between the cache, the log and the checkpoint.
pub(crate) type Content = Arc<AlignedBuf>;

/// A block of metadata in the cache. Clones share the block; a clone keeps it in memory.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

/// Shares no cache line with another block: threads change blocks of their own at the same time.
#[repr(align(64))]
struct Inner {
    block: u64,
    data: RwLock<Content>,
    /// Taken before `data`.
    owner: Mutex<Owner>,
    /// The content has been loaded.
    ready: AtomicBool,
    /// Held while the content is being read from the device.
    loading: Mutex<()>,
    /// Used since the clock last came by.
    referenced: AtomicBool,
    verified: AtomicU32,
}

#[derive(Default)]
struct Owner {
    /// The transaction that last changed the block and whose committer has not taken it.
    tid: Option<Tid>,
    /// The content as the transaction before `tid` left it, if its committer has not taken it.
    frozen: Option<Content>,
}

/// Shared access to the bytes of a block.
pub struct ReadGuard<'a>(RwLockReadGuard<'a, Content>);

/// Exclusive access to the bytes of a block, inside a transaction.
pub struct WriteGuard<'a>(RwLockWriteGuard<'a, Content>);

impl Buffer {
    /// Returns a buffer without content.
    pub(crate) fn empty(block: u64) -> Self {
        Self(Arc::new(Inner {
            block,
            data: RwLock::new(Arc::new(AlignedBuf::zeroed(0))),
            owner: Mutex::default(),
            ready: AtomicBool::new(false),
            loading: Mutex::new(()),
            referenced: AtomicBool::new(true),
            verified: AtomicU32::new(0),
        }))
    }

    /// Returns the block's number on the volume.
    pub fn block(&self) -> u64 {
        self.0.block
    }

    /// Returns the bytes as they are now. Waits while a writer holds the block.
    #[cfg_attr(lanefs_schedule, track_caller)]
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard(self.0.data.read())
    }

    /// Returns whether the content was [marked](Self::set_verified) as a good `kind` since it was
    /// loaded. `kind` is the caller's number for a sort of structure, below 32.
    pub fn verified(&self, kind: u8) -> bool {
        self.0.verified.load(Ordering::Acquire) & (1 << (kind & 31)) != 0
    }

    /// Marks the content as a good `kind`: checksum and shape were looked at and are right.
    pub fn set_verified(&self, kind: u8) {
        self.0.verified.fetch_or(1 << (kind & 31), Ordering::Release);
    }

    #[cfg_attr(lanefs_schedule, track_caller)]
    pub(crate) fn write(&self) -> WriteGuard<'_> {
        WriteGuard(self.0.data.write())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
    }

    /// Fills a buffer that has no content yet. Of concurrent callers one runs `load` and the others
    /// wait for it. `load` runs again only if it failed.
    pub(crate) fn load<E>(&self, load: impl FnOnce() -> Result<Content, E>) -> Result<(), E> {
        if self.is_ready() {
            return Ok(());
        }
        let _one = self.0.loading.lock();
        if !self.is_ready() {
            self.set_content(load()?);
        }
        Ok(())
    }

    /// Takes the load lock of a buffer that has no content. `None` if it has some, or another
    /// thread loads it.
    pub(crate) fn begin_load(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_ready() {
            return None;
        }
        self.0.loading.try_lock().filter(|_| !self.is_ready())
    }

    /// Gives the buffer its first content. The caller holds the load lock.
    pub(crate) fn set_content(&self, content: Content) {
        *self.0.data.write() = content;
        self.0.ready.store(true, Ordering::Release);
    }

    /// Marks the buffer as used.
    pub(crate) fn touch(&self) {
        if !self.0.referenced.load(Ordering::Relaxed) {
            self.0.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether there is a reference besides the cache's.
    pub(crate) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns whether the cache holds the only reference and no thread has touched the buffer
    /// since the last call.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_used() && !self.0.referenced.swap(false, Ordering::Relaxed)
    }

    /// Makes the block a part of transaction `tid`, in which the caller has a handle. Returns
    /// whether it was not part of it before.
    #[cfg_attr(lanefs_schedule, track_caller)]
    pub(crate) fn join(&self, tid: Tid) -> bool {
        let mut owner = self.0.owner.lock();
        match owner.tid {
            Some(mine) if mine == tid => return false,
            // The older transaction has no open handles, so no thread holds the content for
            // writing.
            Some(_) => owner.frozen = Some(Arc::clone(&self.0.data.read())),
            None => {}
        }
        owner.tid = Some(tid);
        true
    }

    /// Removes the block from transaction `tid`. A frozen content of an older transaction stays.
    pub(crate) fn disown(&self, tid: Tid) {
        let mut owner = self.0.owner.lock();
        if owner.tid == Some(tid) {
            owner.tid = None;
        }
    }

    /// Returns the content as the closed transaction `tid` left it; `None` if the block was freed
    /// by it.
    pub(crate) fn snapshot(&self, tid: Tid) -> Option<Content> {
        let mut owner = self.0.owner.lock();
        if owner.tid == Some(tid) {
            owner.tid = None;
            return Some(Arc::clone(&self.0.data.read()));
        }
        owner.frozen.take()
    }

    pub(crate) fn clear_verified(&self) {
        self.0.verified.store(0, Ordering::Release);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.0.block)
    }
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let content: &mut AlignedBuf = Arc::make_mut(&mut *self.0);
        content
    }
}
