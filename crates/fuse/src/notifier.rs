//! Notifications to the kernel: a queue, and the one thread that empties it.
//!
//! Hazard: a notification waits for pages that a request may hold. A serving thread that sends one,
//! or waits for the notifying thread, hangs the mount. Only requests that hold no page are handed
//! over: no read or write of the kernel's cache.

use crate::channel::Channel;
use crate::request::Received;
use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, OutHeader};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::mem::size_of;
use zerocopy::IntoBytes;

/// A notice of what the kernel has to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The cached attributes of a node.
    Attributes(u64),
    /// The cached pages of a node from `offset` on, `len` bytes or, if 0, all. Dirty pages are
    /// written back first.
    Content { node: u64, offset: u64, len: u64 },
}

/// A job of the notifying thread.
#[derive(Debug)]
pub(crate) enum NoticeJob {
    /// To send a notice.
    Notify(Notice),
    /// To send a notice, and then to serve a request.
    Serve { notice: Notice, received: Received<'static> },
    /// To send a notice, and then the answer to a request that was served.
    Answer { notice: Notice, unique: u64, content: Vec<u8> },
}

impl NoticeJob {
    fn notice(&self) -> Notice {
        match self {
            Self::Notify(notice) | Self::Serve { notice, .. } | Self::Answer { notice, .. } => *notice,
        }
    }
}

/// The queue of notifications.
///
/// A notification of content takes the locks of its pages in the kernel, and waits until dirty
/// pages have been written back: by requests. A page may be locked for the very request that is
/// being served (a fault, a write of a part of a page). So no serving thread sends a notification,
/// nor waits for the notifying thread. A request that needs a notification is handed over with it,
/// and the serving thread takes the next request.
///
/// Invariants:
/// - Only requests that hold no page are handed over: no read or write of the kernel's cache.
/// - The queue has at most one entry for each request in the kernel, and one for each file that is
///   to be forgotten.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    queue: Mutex<Queue>,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<NoticeJob>,
    ended: bool,
}

impl Notifier {
    /// Queues `job` for the notifying thread. Does not wait.
    pub(crate) fn hand_over(&self, job: NoticeJob) {
        self.queue.lock().jobs.push_back(job);
        self.wanted.notify_one();
    }

    /// Queues `notice` for the notifying thread, unless it is queued already. Does not wait.
    pub(crate) fn tell(&self, notice: Notice) {
        let mut queue = self.queue.lock();
        if !queue.jobs.iter().any(|job| matches!(job, NoticeJob::Notify(other) if *other == notice)) {
            queue.jobs.push_back(NoticeJob::Notify(notice));
            self.wanted.notify_one();
        }
    }

    /// Waits for the next job, sends its notice, and returns it. Returns `None` when the mount is
    /// gone. Only the notifying thread may call this.
    pub(crate) fn next(&self, channel: &Channel) -> Option<NoticeJob> {
        let mut queue = self.queue.lock();
        let job = loop {
            if queue.ended {
                return None;
            }
            match queue.jobs.pop_front() {
                Some(job) => break job,
                None => self.wanted.wait(&mut queue),
            }
        };
        drop(queue);
        send(channel, job.notice());
        Some(job)
    }

    /// Ends the notifying thread: the mount is gone, and queued requests get no answer any more.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.wanted.notify_one();
    }
}

/// Sends a notice. Returns when the kernel has obeyed it, which may take requests: a serving thread
/// must not call this.
pub(crate) fn send(channel: &Channel, notice: Notice) {
    let body = match notice {
        Notice::Attributes(node) => InvalInodeOut { ino: node, off: -1, len: 0 },
        Notice::Content { node, offset, len } => {
            InvalInodeOut { ino: node, off: offset as i64, len: len as i64 }
        }
    };
    let len = (size_of::<OutHeader>() + size_of::<InvalInodeOut>()) as u32;
    let header = OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
    channel.put(&[header.as_bytes(), body.as_bytes()].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_queued_once_and_the_end_drops_the_rest() {
        let notifier = Notifier::default();
        let whole = |node| Notice::Content { node, offset: 0, len: 0 };
        for node in [5, 6, 5] {
            notifier.tell(whole(node));
        }
        let channel = Channel::new(std::fs::File::options().write(true).open("/dev/null").unwrap().into());
        assert_eq!(notifier.next(&channel).unwrap().notice(), whole(5));
        notifier.tell(whole(5));
        assert_eq!(notifier.next(&channel).unwrap().notice(), whole(6));
        notifier.end();
        assert!(notifier.next(&channel).is_none());
    }
}
