//! The activity of a mount, for a reader on another thread.
//!
//! A [`Monitor`] never keeps a volume open: [`Link::cut`] waits for readers that are in the mount,
//! and no reader finds the mount after that.

use crate::server::{MountStats, Server};
use lanefs::Observer;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

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
        self.link.with(Server::stats)
    }

    /// Returns a handle that holds the device of the volume in one committed state. `None` when the
    /// mount is gone and its volume is being closed.
    pub fn observer(&self) -> Option<Observer> {
        self.link.with(Server::observer)
    }
}

/// The way to a mount, as long as there is one.
#[derive(Debug, Clone)]
pub(crate) struct Link(Arc<Mutex<Weak<Server>>>);

impl Link {
    pub(crate) fn to(server: &Arc<Server>) -> Self {
        Self(Arc::new(Mutex::new(Arc::downgrade(server))))
    }

    /// Runs `act` on the mount, which cannot be closed meanwhile. Returns `None` when it is being
    /// closed.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Server) -> T) -> Option<T> {
        let mount = self.0.lock();
        mount.upgrade().map(|server| act(&server))
    }

    /// Cuts the link, after waiting for threads in [`with`](Self::with). No thread holds the mount
    /// by this link after that.
    pub(crate) fn cut(&self) {
        *self.0.lock() = Weak::new();
    }
}
