//! Whether a mount has become read-only since it was made.
//!
//! FUSE has no message for a remount. The kernel counts the changes of a mount namespace, and
//! poll(2) of its table of mounts reports a change that is complete: the table is read after
//! changes only.
//!
//! Hazard: a remount in another mount namespace is seen after the next change of the server's own.

use crate::table::{self, MountDevice};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::MountFlags;
use std::fs::File;
use std::io::{Read, Seek};

/// A mount and its table, if there is one that the server may read.
#[derive(Debug, Default)]
pub(crate) struct Remounts(Option<Mutex<Seen>>);

/// The table, and what it said last.
#[derive(Debug)]
struct Seen {
    table: File,
    device: MountDevice,
    changed: bool,
    read_only: bool,
}

impl Remounts {
    /// Returns the remounts of a mount that the calling thread sees.
    pub(crate) fn of(device: MountDevice) -> Self {
        let table = File::open("/proc/thread-self/mountinfo").ok();
        Self(table.map(|table| Mutex::new(Seen { table, device, changed: true, read_only: false })))
    }

    /// Returns whether the file system, or each mount of it, is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.0.as_ref().is_some_and(|seen| seen.lock().look())
    }
}

impl Seen {
    fn look(&mut self) -> bool {
        let mut table = [PollFd::new(&self.table, PollFlags::PRI)];
        self.changed |= poll(&mut table, Some(&Timespec::default())) != Ok(0);
        if self.changed
            && let Some(read_only) = self.read()
        {
            (self.changed, self.read_only) = (false, read_only);
        }
        self.read_only
    }

    /// Returns `None` if the table cannot be read, or does not have the mount.
    fn read(&mut self) -> Option<bool> {
        let mut text = Vec::new();
        self.table.rewind().and_then(|()| self.table.read_to_end(&mut text)).ok()?;
        let mut own = table::parse(&text).filter(|entry| entry.device == self.device).peekable();
        own.peek()?;
        Some(own.all(|entry| entry.flags.contains(MountFlags::RDONLY)))
    }
}
