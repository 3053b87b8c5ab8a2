//! Notifications to the kernel: a queue, and the threads that empty it.
//!
//! Hazard: a notification waits for pages that a request may hold, or for a directory. A serving
//! thread that sends one, or waits for a notifying thread, hangs the mount. Only requests that hold
//! no page are handed over: no read or write of the kernel's cache.

use crate::channel::Channel;
use crate::request::Received;
use crate::scheduling::{First, Shares, User, Work};
use crate::wire::{
    EXPIRE_ONLY, InvalEntryOut, InvalInodeOut, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, OutHeader,
};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use zerocopy::{Immutable, IntoBytes};

/// Notifying threads at most, how many of them have jobs of one user, and how many wait for a job.
const THREADS: usize = 64;
const THREADS_OF_ONE: usize = 4;
const WAITING: usize = 2;

/// A notice of what the kernel has to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The cached attributes of a node.
    Attributes(u64),
    /// The cached pages of a node from `offset` on, `len` bytes or, if 0, all. Dirty pages are
    /// written back first.
    Content { node: u64, offset: u64, len: u64 },
    /// The cached listings of directories. They have no dirty pages.
    Listings([Option<u64>; 2]),
}

/// A job of a notifying thread.
#[derive(Debug)]
pub(crate) enum NoticeJob {
    /// To send a notice.
    Notify(Notice),
    /// To have the kernel look up a name of the directory `dir` again.
    Name { dir: u64, name: OsString },
    /// To send a notice, and then to serve a request.
    Serve { notice: Notice, received: Received<'static> },
    /// To send a notice, and then the answer to a request of `user` that was served.
    Answer { notice: Notice, user: u32, unique: u64, content: Vec<u8> },
}

impl NoticeJob {
    /// Returns the user whose share the job takes from. Returns `None` for a job that is never
    /// parked: it waits for no page, and the program that waits for it may hold directories.
    pub(crate) fn share(&self) -> Option<User> {
        match self {
            Self::Notify(Notice::Content { .. }) | Self::Name { .. } => Some(None),
            Self::Serve { received, .. } => Some(Some(received.header.uid)),
            Self::Answer { notice: Notice::Content { .. }, user, .. } => Some(Some(*user)),
            Self::Notify(_) | Self::Answer { .. } => None,
        }
    }

    /// Sends what the job has to tell the kernel. Returns when the kernel has obeyed it.
    pub(crate) fn send(&self, channel: &Channel) {
        match self {
            Self::Notify(notice) | Self::Serve { notice, .. } | Self::Answer { notice, .. } => {
                send(channel, *notice);
            }
            Self::Name { dir, name } => send_name(channel, *dir, name),
        }
    }
}

/// The queue of notifications.
///
/// A notification of content takes the locks of its pages in the kernel, and waits until dirty
/// pages have been written back: by requests. A page may be locked for the very request that is
/// being served (a fault, a write of a part of a page). So no serving thread sends a notification,
/// nor waits for a notifying thread. A request that needs a notification is handed over with it,
/// and the serving thread takes the next request.
///
/// One user's notification may last, because much has to be written back. So a job of each user
/// finds a thread: two threads wait, more are made as needed, and no user has more than
/// [`THREADS_OF_ONE`] that wait for pages.
///
/// A notification of a name waits for the operation in its directory that is under way, which may
/// be one that waits for the job of a user. No job waits for one of a name, and these have a share
/// of their own.
///
/// Invariants:
/// - Only requests that hold no page are handed over: no read or write of the kernel's cache.
/// - The queue has at most one entry for each request in the kernel, one for each file that is to
///   be forgotten, and three for each request that failed after its change.
#[derive(Debug)]
pub(crate) struct Notifier {
    queue: Mutex<Queue>,
    wanted: Condvar,
}

#[derive(Debug)]
struct Queue {
    /// Jobs that have a place in the share of their user. The others are parked.
    jobs: VecDeque<NoticeJob>,
    shares: Shares<NoticeJob>,
    threads: usize,
    waiting: usize,
    ended: bool,
}

impl Default for Notifier {
    /// Returns the queue of a mount. The first thread is counted already.
    fn default() -> Self {
        let shares = Shares::new(THREADS_OF_ONE, THREADS_OF_ONE);
        let queue = Queue { jobs: VecDeque::new(), shares, threads: 1, waiting: 0, ended: false };
        Self { queue: Mutex::new(queue), wanted: Condvar::new() }
    }
}

impl Notifier {
    /// Queues `job` for a notifying thread. Does not wait.
    pub(crate) fn hand_over(&self, job: NoticeJob) {
        self.queue_up(&mut self.queue.lock(), job);
    }

    /// Queues `notice` for a notifying thread, unless it is queued already. Does not wait.
    pub(crate) fn tell(&self, notice: Notice) {
        let mut queue = self.queue.lock();
        let is_same = |job: &NoticeJob| matches!(job, NoticeJob::Notify(other) if *other == notice);
        if !queue.jobs.iter().chain(queue.shares.parked(None)).any(is_same) {
            self.queue_up(&mut queue, NoticeJob::Notify(notice));
        }
    }

    fn queue_up(&self, queue: &mut Queue, job: NoticeJob) {
        match job.share() {
            Some(user) if !queue.shares.enter(user, Work::Other) => queue.shares.park(user, Work::Other, job),
            _ => {
                queue.jobs.push_back(job);
                self.wanted.notify_one();
            }
        }
    }

    /// Waits for the next job. Returns it, and what the thread does before it sends the notice.
    /// Returns `None` if the thread is to end: the mount is gone, or enough threads wait. Only a
    /// notifying thread may call this.
    pub(crate) fn next(&self) -> Option<(NoticeJob, First)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                let makes = queue.waiting == 0 && queue.threads < THREADS;
                queue.threads += usize::from(makes);
                return Some((job, if makes { First::MakeThread } else { First::Nothing }));
            }
            if queue.waiting == WAITING {
                queue.threads -= 1;
                return None;
            }
            queue.waiting += 1;
            self.wanted.wait(&mut queue);
            queue.waiting -= 1;
        }
    }

    /// Notes that a job is done, which took from `share`.
    pub(crate) fn done(&self, share: Option<User>) {
        let Some(user) = share else { return };
        let mut queue = self.queue.lock();
        // The caller takes the next job, so nobody is called.
        if let Some(next) = queue.shares.leave(user, Work::Other) {
            queue.jobs.push_back(next);
        }
    }

    /// Takes back the count of a thread that could not be made.
    pub(crate) fn not_made(&self) {
        self.queue.lock().threads -= 1;
    }

    /// Ends the notifying threads: the mount is gone, and queued requests get no answer any more.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.wanted.notify_all();
    }

    /// Takes the jobs that are queued.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> Vec<NoticeJob> {
        self.queue.lock().jobs.drain(..).collect()
    }
}

/// Sends a notice. Returns when the kernel has obeyed it, which may take requests: a serving thread
/// must not call this.
pub(crate) fn send(channel: &Channel, notice: Notice) {
    let bodies = match notice {
        Notice::Attributes(node) => [Some(InvalInodeOut { ino: node, off: -1, len: 0 }), None],
        Notice::Content { node, offset, len } => {
            [Some(InvalInodeOut { ino: node, off: offset as i64, len: len as i64 }), None]
        }
        Notice::Listings(dirs) => dirs.map(|dir| dir.map(|ino| InvalInodeOut { ino, off: 0, len: 0 })),
    };
    for body in bodies.into_iter().flatten() {
        put(channel, NOTIFY_INVAL_INODE, &body, &[]);
    }
}

/// Has the kernel look up a name of the directory `dir` again. Returns when no operation in that
/// directory is under way: neither a serving thread nor a job that one waits for may call this.
fn send_name(channel: &Channel, dir: u64, name: &OsStr) {
    let body = InvalEntryOut { parent: dir, namelen: name.len() as u32, flags: EXPIRE_ONLY };
    put(channel, NOTIFY_INVAL_ENTRY, &body, &[name.as_bytes(), &[0]].concat());
}

fn put<T: IntoBytes + Immutable>(channel: &Channel, code: i32, body: &T, rest: &[u8]) {
    let len = (size_of::<OutHeader>() + size_of::<T>() + rest.len()) as u32;
    let header = OutHeader { len, error: code, unique: 0 };
    channel.put(&[header.as_bytes(), body.as_bytes(), rest].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job of `user` with this number.
    fn job(user: u32, unique: u64) -> NoticeJob {
        let notice = Notice::Content { node: 1, offset: 0, len: 0 };
        NoticeJob::Answer { notice, user, unique, content: Vec::new() }
    }

    /// Takes a job, and returns its number and whether a thread is to be made.
    fn take(notifier: &Notifier) -> (u64, bool) {
        let (job, first) = notifier.next().unwrap();
        let number = match job {
            NoticeJob::Answer { unique, .. } => unique,
            NoticeJob::Notify(Notice::Content { node, .. }) => node,
            other => panic!("{other:?}"),
        };
        (number, first == First::MakeThread)
    }

    #[test]
    fn a_notice_is_queued_once_and_the_end_drops_the_rest() {
        let notifier = Notifier::default();
        let whole = |node| Notice::Content { node, offset: 0, len: 0 };
        // More of them than have a thread at a time.
        for node in [5, 6, 7, 8, 9, 5, 9] {
            notifier.tell(whole(node));
        }
        assert_eq!(take(&notifier).0, 5);
        notifier.tell(whole(5));
        notifier.done(Some(None));
        for node in [6, 7, 8, 9] {
            assert_eq!(take(&notifier).0, node);
            notifier.done(Some(None));
        }
        assert_eq!(take(&notifier).0, 5);
        notifier.tell(whole(6));
        notifier.end();
        assert!(notifier.next().is_none());
    }

    /// The notices of one user last. Jobs of another user find a thread all the same.
    #[test]
    fn what_one_user_waits_for_delays_no_other() {
        let notifier = Notifier::default();
        for number in 0..100 {
            notifier.hand_over(job(1000, number));
        }
        for number in 0..THREADS_OF_ONE as u64 {
            assert_eq!(take(&notifier), (number, true), "another thread is made for the next job");
        }
        notifier.hand_over(job(0, 200));
        assert_eq!(take(&notifier), (200, true));
        assert!(notifier.queued().is_empty(), "the rest is parked");
        // The thread that is done with one goes on with the next.
        notifier.done(Some(Some(1000)));
        assert_eq!(take(&notifier).0, THREADS_OF_ONE as u64);
    }

    /// A rename holds directories while it waits for the listings: it is parked behind no
    /// writeback.
    #[test]
    fn a_notice_that_waits_for_no_page_is_never_parked() {
        let notifier = Notifier::default();
        for number in 0..100 {
            notifier.hand_over(job(1000, number));
        }
        let notice = Notice::Listings([Some(2), None]);
        notifier.hand_over(NoticeJob::Answer { notice, user: 1000, unique: 200, content: Vec::new() });
        let queued = notifier.queued();
        assert_eq!(queued.len(), THREADS_OF_ONE + 1);
        assert!(matches!(queued.last(), Some(NoticeJob::Answer { unique: 200, .. })));
        notifier.done(queued.last().unwrap().share());
    }

    #[test]
    fn few_threads_wait_and_none_is_made_while_one_does() {
        let notifier = Notifier::default();
        let waiting = |count| {
            while notifier.queue.lock().waiting != count {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let threads = [(); WAITING].map(|()| scope.spawn(|| take(&notifier)));
            waiting(WAITING);
            // Enough of them wait.
            notifier.queue.lock().threads = 3;
            assert!(notifier.next().is_none());
            assert_eq!(notifier.queue.lock().threads, 2);
            notifier.hand_over(job(1, 1));
            waiting(WAITING - 1);
            notifier.hand_over(job(2, 2));
            let taken = threads.map(|thread| thread.join().unwrap());
            assert_eq!(taken.iter().filter(|(_, makes)| *makes).count(), 1, "the last one calls another");
        });
        assert_eq!(notifier.queue.lock().threads, 3);
    }
}
