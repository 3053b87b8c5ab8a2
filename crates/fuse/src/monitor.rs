//! What a mount is doing, for who looks from another thread.
//!
//! A [`Monitor`] never keeps a volume open: [`Link::cut`] waits for who is just looking, and nobody
//! finds the mount after that.

use crate::session::Shared;
use lanefs::Observer;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// What a mount counted, and how much there is now.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MountStats {
    /// Of the volume.
    pub volume: lanefs::Stats,
    /// Requests of the kernel.
    pub requests: u64,
    /// Threads that serve.
    pub threads: u64,
    /// Those of them that are at work.
    pub threads_busy: u64,
    /// Open files.
    pub open_files: u64,
    /// Inodes that the kernel knows.
    pub nodes: u64,
}

/// Looks at a mount.
#[derive(Debug, Clone)]
pub struct Monitor {
    link: Link,
}

impl Monitor {
    pub(crate) fn new(link: Link) -> Self {
        Self { link }
    }

    /// What there is to see. `None` when the mount is gone and its volume is being closed.
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

    /// Does something with the mount, which cannot be closed meanwhile. `None` when it is being
    /// closed.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Shared) -> T) -> Option<T> {
        let mount = self.0.lock();
        mount.upgrade().map(|shared| act(&shared))
    }

    /// When this returns nobody holds the mount by this link.
    pub(crate) fn cut(&self) {
        *self.0.lock() = Weak::new();
    }
}
