//! `/dev/fuse`: requests come, answers go, each in one call.

use crate::buffers::{Inbox, Outbox};
use crate::fault::Answer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The connection of a mount.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
}

impl Channel {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Waits for a request. Returns how many bytes it has, `None` when the mount is gone.
    pub(crate) fn receive(&self, inbox: &mut Inbox) -> std::io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.device, inbox.space()) {
                Ok(n) => return Ok(Some(n)),
                // ENOENT: the request was taken back.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Returns whether a request is queued that no thread has taken.
    pub(crate) fn has_request(&self) -> bool {
        let mut poll = [PollFd::new(&self.device, PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec::default()))
            .is_ok_and(|_| poll[0].revents().contains(PollFlags::IN))
    }

    /// Returns whether the kernel still has the connection.
    pub(crate) fn is_connected(&self) -> bool {
        let mut poll = [PollFd::new(&self.device, PollFlags::empty())];
        rustix::event::poll(&mut poll, Some(&Timespec::default()))
            .is_ok_and(|_| !poll[0].revents().contains(PollFlags::ERR))
    }

    /// Writes a notification: see [`Notifier`](crate::notifier::Notifier).
    pub(crate) fn put(&self, notification: &[u8]) {
        // A node that the kernel has forgotten has nothing cached.
        let _ = rustix::io::write(&self.device, notification);
    }

    /// Answers. A request that was interrupted, or whose mount is gone, wants no answer: that is no
    /// failure.
    pub(crate) fn send(&self, unique: u64, outbox: &mut Outbox, answer: Answer) {
        let bytes = outbox.finish(unique, answer);
        if let Err(Errno::INVAL) = rustix::io::write(&self.device, bytes) {
            // The kernel refused the answer: the program that waits for it must not wait for ever.
            let _ = rustix::io::write(&self.device, outbox.finish(unique, Err(Errno::IO.into())));
        }
    }
}
