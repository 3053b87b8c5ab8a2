//! What a mount is doing, for a reader on another thread.
//!
//! A [`Monitor`] never keeps a volume open: [`Link::cut`] waits for readers that are in the mount,
//! and no reader finds the mount after that.

use crate::session::Shared;
use lanefs::Observer;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// What a mount has counted, and what it has open now.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MountStats {
    /// Counters of the volume.
    pub volume: lanefs::Stats,
    /// Requests of the kernel.
    pub requests: u64,
    /// Threads that serve.
    pub threads: u64,
    /// Threads that are at work.
    pub threads_busy: u64,
    /// Open files.
    pub open_files: u64,
    /// Inodes that the kernel knows.
    pub nodes: u64,
}

/// Reads what a mount is doing.
#[derive(Debug, Clone)]
pub struct Monitor {
    link: Link,
}

impl Monitor {
    pub(crate) fn new(link: Link) -> Self {
        Self { link }
    }

    /// Returns the counters. `None` when the mount is gone and its volume is being closed.
    pub fn read(&self) -> Option<MountStats> {
        self.link.with(Shared::stats)
    }

    /// Returns a handle that holds the device of the volume in one committed state. `None` when the
    /// mount is gone and its volume is being closed.
    pub fn observer(&self) -> Option<Observer> {
        self.link.with(Shared::observer)
    }
}

/// The way to a mount, as long as there is one.
#[derive(Debug, Clone)]
pub(crate) struct Link(Arc<Mutex<Weak<Shared>>>);

impl Link {
    pub(crate) fn to(shared: &Arc<Shared>) -> Self {
        Self(Arc::new(Mutex::new(Arc::downgrade(shared))))
    }

    /// Runs `act` on the mount, which cannot be closed meanwhile. Returns `None` when it is being
    /// closed.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Shared) -> T) -> Option<T> {
        let mount = self.0.lock();
        mount.upgrade().map(|shared| act(&shared))
    }

    /// Cuts the link, after waiting for threads in [`with`](Self::with). No thread holds the mount
    /// by this link after that.
    pub(crate) fn cut(&self) {
        *self.0.lock() = Weak::new();
    }
}
