//! One metadata block in the cache.
//!
//! The content is an `Arc` under a lock. A writer copies it out (`Arc::make_mut`) when somebody
//! else, a commit or a checkpoint, still holds the old content; so those run on copies and
//! nobody waits for them.

use lanefs_device::AlignedBuf;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::Tid;

/// A block of metadata in the cache. Clones share the block; a clone keeps it in memory.
#[derive(Clone)]
pub struct Buffer(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) block: u64,
    pub(crate) data: RwLock<Arc<AlignedBuf>>,
    /// The transaction that last changed the block and has not been committed.
    pub(crate) owner: Mutex<Option<Tid>>,
    pub(crate) ready: AtomicBool,
    /// Held while the content is being read from the device.
    pub(crate) loading: Mutex<()>,
    pub(crate) referenced: AtomicBool,
    verified: AtomicU32,
}

/// Shared access to the bytes of a block.
pub struct ReadGuard<'a>(RwLockReadGuard<'a, Arc<AlignedBuf>>);

/// Exclusive access to the bytes of a block, inside a transaction.
pub struct WriteGuard<'a>(RwLockWriteGuard<'a, Arc<AlignedBuf>>);

impl Buffer {
    pub(crate) fn new(block: u64, block_size: usize) -> Self {
        Self(Arc::new(Inner {
            block,
            data: RwLock::new(Arc::new(AlignedBuf::zeroed(block_size))),
            owner: Mutex::new(None),
            ready: AtomicBool::new(false),
            loading: Mutex::new(()),
            referenced: AtomicBool::new(true),
            verified: AtomicU32::new(0),
        }))
    }

    /// The block's number on the volume.
    pub fn block(&self) -> u64 {
        self.0.block
    }

    /// The bytes as they are now. Waits while a writer holds the block.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard(self.0.data.read())
    }

    pub(crate) fn write(&self) -> WriteGuard<'_> {
        WriteGuard(self.0.data.write())
    }

    /// Whether the content was [marked](Self::set_verified) as a good `kind` since it was loaded.
    /// `kind` is the caller's number for a sort of structure, below 32.
    pub fn verified(&self, kind: u8) -> bool {
        self.0.verified.load(Ordering::Acquire) & (1 << (kind & 31)) != 0
    }

    /// Marks the content as a good `kind`: checksum and shape were looked at and are right.
    pub fn set_verified(&self, kind: u8) {
        self.0.verified.fetch_or(1 << (kind & 31), Ordering::Release);
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
