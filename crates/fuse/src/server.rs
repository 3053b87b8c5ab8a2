//! The threads of a mount, and what they share: each takes requests from the kernel, has them
//! served, and answers them.
//!
//! Hazard: a thread that waits for another request hangs the mount. See
//! [`Notifier`](crate::notifier::Notifier).

use crate::bdi::Bdi;
use crate::buffers::{BufferPool, Inbox, Outbox};
use crate::channel::Channel;
use crate::error::{MountError, SessionError};
use crate::fault::{Answer, Fault};
use crate::filesystem::{Filesystem, Outcome, Stage};
use crate::init;
use crate::mountpoint::Mounted;
use crate::notifier::{Job, Notice};
use crate::request::{Received, Request};
use crate::scheduling::{BUFFERS, Cost, First, Follow, Preference, Turn, Workers};
use crate::wire::MAJOR;
use lanefs::Observer;
use lanefs_stats::Counter;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

/// What the threads of a mount share.
#[derive(Debug)]
pub(crate) struct Server {
    channel: Channel,
    filesystem: Filesystem,
    workers: Workers,
    buffers: BufferPool,
    requests: Counter,
}

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

impl Server {
    pub(crate) fn new(connection: OwnedFd, filesystem: Filesystem, workers: Workers) -> Self {
        let (channel, buffers) = (Channel::new(connection), BufferPool::new(BUFFERS));
        Self { channel, filesystem, workers, buffers, requests: Counter::new() }
    }

    /// Passes on where the kernel's bound on dirty pages is set.
    pub(crate) fn bounded_in(&self, bdi: Bdi) {
        self.filesystem.bounded_in(bdi);
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// Those of [`Volume::close`](lanefs::Volume::close).
    pub(crate) fn close(self) -> lanefs::Result<()> {
        self.filesystem.close()
    }

    /// Answers the kernel's FUSE_INIT. Requests before it fail with EIO.
    ///
    /// # Errors
    /// [`SessionError::Version`], and failures of `/dev/fuse`.
    pub(crate) fn shake_hands(&self, acl: bool, time_gran: u32) -> Result<(), SessionError> {
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        loop {
            let Some(len) = self.channel.receive(&mut inbox)? else {
                return Err(std::io::Error::from(Errno::NODEV).into());
            };
            let foreign = || std::io::Error::from(Errno::PROTO);
            let Received { header, request } = inbox.received(len).ok_or_else(foreign)?;
            let unique = header.unique;
            let init = match request {
                Ok(Request::Init(init)) => init,
                Err(Fault(Errno::INVAL)) => return Err(foreign().into()),
                _ => {
                    self.channel.send(unique, &mut outbox, Err(Errno::IO.into()));
                    continue;
                }
            };
            if init.major < MAJOR {
                self.channel.send(unique, &mut outbox, Err(Errno::PROTO.into()));
                return Err(SessionError::Version(init.major, init.minor));
            }
            outbox.clear();
            outbox.put(&init::answer(&init, acl, time_gran)).map_err(|_| foreign())?;
            self.channel.send(unique, &mut outbox, Ok(()));
            // A newer kernel comes again with the version that it was told.
            if init.major == MAJOR {
                return Ok(());
            }
        }
    }

    /// As [`Unmounter::unmount`](crate::Unmounter::unmount), called while the mount cannot be
    /// closed.
    pub(crate) fn end(&self, mounted: &Mounted) -> Result<(), MountError> {
        if !self.channel.is_connected() {
            return Ok(());
        }
        let unmounted = mounted.unmount(true);
        if !self.channel.is_connected() {
            return Ok(());
        }
        self.filesystem.write_out(&self.channel);
        mounted.abort().or_else(|e| if self.channel.is_connected() { unmounted.and(Err(e)) } else { Ok(()) })
    }

    pub(crate) fn observer(&self) -> Observer {
        self.filesystem.observer()
    }

    /// Returns the counters of the mount.
    pub(crate) fn stats(&self) -> MountStats {
        let (threads, busy) = self.workers.count();
        MountStats {
            volume: self.filesystem.stats(),
            requests: self.requests.get(),
            threads: threads as u64,
            threads_busy: busy as u64,
            open_files: self.filesystem.open_files() as u64,
            nodes: self.filesystem.known_nodes() as u64,
        }
    }

    /// Answers the kernel until the mount is gone.
    ///
    /// # Errors
    /// Failures of `/dev/fuse`.
    pub(crate) fn serve(&self) -> std::io::Result<()> {
        thread::scope(|scope| {
            let notifier = thread::Builder::new().name("lanefs-notify".into());
            notifier.spawn_scoped(scope, || self.notify())?;
            let served = self.work(scope);
            self.filesystem.notifier().end();
            served
        })
    }

    /// Runs a serving thread: takes requests and answers them until the mount is gone.
    ///
    /// # Errors
    /// Failures of `/dev/fuse`.
    fn work<'s>(&'s self, scope: &'s thread::Scope<'s, '_>) -> std::io::Result<()> {
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        let mut follow = Follow::new(self.workers.following());
        let mut last = Cost::Short;
        while let Some(turn) = self.workers.begin(follow.thread(), || self.channel.has_request()) {
            self.buffers.lend(&mut inbox.buffer, last == Cost::Bulk || self.workers.is_bulk());
            if turn == Turn::Together {
                follow.together();
            }
            let began = Instant::now();
            let read = self.channel.receive(&mut inbox);
            let received = read.as_ref().ok().and_then(|len| inbox.received((*len)?));
            let (cost, preference) = match &received {
                Some(Received { header, request }) => {
                    let cost = request.as_ref().map_or(Cost::Short, Request::cost);
                    (cost, follow.asked(header.pid, began.elapsed()))
                }
                None => (Cost::Short, Preference::Together),
            };
            last = cost;
            if cost >= Cost::Long {
                follow.stop();
            }
            if self.workers.took(follow.thread(), cost, preference) == First::MakeThread {
                self.make_thread(scope);
            }
            if !matches!(read, Ok(Some(_))) {
                self.workers.end();
                return read.map(drop);
            }
            if let Some(received) = received
                && self.answer(&received, &mut outbox, &follow)
            {
                self.workers.end();
            }
            // The thread may rest now.
            self.buffers.lend(&mut inbox.buffer, false);
            if cost == Cost::Bulk {
                self.workers.bulk_ends();
            }
        }
        Ok(())
    }

    /// Makes another serving thread, which [`Workers`] has counted already.
    fn make_thread<'s>(&'s self, scope: &'s thread::Scope<'s, '_>) {
        let work = || {
            // A new thread inherits the processor and policy of the thread that makes it.
            self.workers.following().release_caller();
            self.work(scope)
        };
        if thread::Builder::new().name("lanefs-fuse".into()).spawn_scoped(scope, work).is_err() {
            self.workers.not_made();
        }
    }

    /// Serves a request and answers it, or leaves the answer to the notifying thread. Returns
    /// whether it was the last request.
    fn answer(&self, received: &Received<'_>, outbox: &mut Outbox, follow: &Follow<'_>) -> bool {
        self.requests.add(1);
        let bulk = received.request.as_ref().is_ok_and(Request::answers_bulk);
        self.buffers.lend(&mut outbox.buffer, bulk);
        let (outcome, answer) = self.serve_request(received, outbox, Stage::Fresh);
        let unique = received.header.unique;
        match outcome {
            Outcome::Silent => {}
            Outcome::Answered | Outcome::Last => {
                follow.wake(|| self.channel.send(unique, outbox, answer));
            }
            Outcome::AfterNotice(notice) => self.answer_later(notice, unique, outbox),
        }
        self.buffers.lend(&mut outbox.buffer, false);
        outcome == Outcome::Last
    }

    fn answer_later(&self, notice: Notice, unique: u64, outbox: &Outbox) {
        let content = outbox.content().to_vec();
        self.filesystem.notifier().hand_over(Job::Answer { notice, unique, content });
    }

    fn serve_request(&self, received: &Received<'_>, outbox: &mut Outbox, stage: Stage) -> (Outcome, Answer) {
        outbox.clear();
        // If serving panics, the waiting program gets EIO, and the mount goes on.
        let served = catch_unwind(AssertUnwindSafe(|| self.filesystem.serve(received, outbox, stage)));
        match served.unwrap_or(Err(Errno::IO.into())) {
            Ok(outcome) => (outcome, Ok(())),
            Err(fault) => (Outcome::Answered, Err(fault)),
        }
    }

    /// Runs the notifying thread, which tells the kernel what to forget, until the mount is gone.
    fn notify(&self) {
        let mut outbox = Outbox::new();
        while let Some(job) = self.filesystem.notifier().next(&self.channel) {
            let (unique, answer) = match job {
                Job::Notify(_) => continue,
                Job::Answer { unique, content, .. } => {
                    outbox.clear();
                    (unique, outbox.put_bytes(&content))
                }
                Job::Serve { received, .. } => {
                    let unique = received.header.unique;
                    let (outcome, answer) = self.serve_request(&received, &mut outbox, Stage::Noticed);
                    if let Outcome::AfterNotice(notice) = outcome {
                        self.answer_later(notice, unique, &outbox);
                        continue;
                    }
                    (unique, answer)
                }
            };
            self.channel.send(unique, &mut outbox, answer);
        }
    }
}
