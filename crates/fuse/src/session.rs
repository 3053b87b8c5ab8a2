//! A mount, from FUSE_INIT until its volume is closed.

use crate::bdi::CacheRule;
use crate::broker::Broker;
use crate::buffers::{BufferPool, Inbox, Outbox};
use crate::channel::Channel;
use crate::fault::{Answer, Fault};
use crate::filesystem::{Filesystem, Outcome, Stage};
use crate::follow::{Follow, Following, Wish};
use crate::init;
use crate::monitor::{Link, Monitor, MountStats};
use crate::mountpoint::{self, MountError, Mounted, NewMount};
use crate::notifier::{Job, Notice};
use crate::options::MountOptions;
use crate::request::{Received, Request};
use crate::table::MountDevice;
use crate::wire::MAJOR;
use crate::workers::{BUFFERS, First, Lasts, Turn, Workers};
use lanefs::{Observer, Volume};
use lanefs_stats::Counter;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// A volume that is mounted.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    link: Link,
    mounted: Mounted,
}

/// What the threads of a mount share.
#[derive(Debug)]
pub(crate) struct Shared {
    channel: Channel,
    filesystem: Filesystem,
    workers: Workers,
    buffers: BufferPool,
    requests: Counter,
}

/// Why a mount cannot be, or ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] lanefs::Error),
    /// `/dev/fuse` failed.
    #[error("/dev/fuse: {0}")]
    Device(#[from] std::io::Error),
    /// The kernel's protocol is not spoken here.
    #[error("the kernel speaks version {0}.{1} of FUSE, which lanefs does not know")]
    Version(u32, u32),
}

/// Ends a mount from another thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mounted: Mounted,
    link: Link,
}

impl Unmounter {
    /// Ends the mount, with all written out that the kernel had cached. It is unmounted wherever
    /// this mount namespace has it. If that was not all of it (another mount covers it, another
    /// namespace has it, or a program has files open), its connection is aborted: programs that use
    /// it get ENOTCONN from then on.
    ///
    /// # Errors
    /// The system's. The mount is then still there.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.link.with(|shared| shared.end(&self.mounted)).unwrap_or(Ok(()))
    }
}

impl Session {
    /// Mounts `volume` at `dir`. `source` is the name of the volume in `/proc/mounts`.
    ///
    /// # Errors
    /// Whatever keeps it from being mounted; the volume is then closed.
    pub fn mount(
        volume: Volume,
        source: &OsStr,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, SessionError> {
        Self::begin(volume, options, None, || mountpoint::mount(source, dir, options))
    }

    /// Mounts `volume` by way of a broker process, which was told source, directory and options
    /// when it was started: `options` must be the same. For a process that is confined.
    ///
    /// # Errors
    /// Whatever keeps it from being mounted; the volume is then closed.
    pub fn mount_by(
        broker: &Arc<Broker>,
        volume: Volume,
        options: &MountOptions,
    ) -> Result<Self, SessionError> {
        Self::begin(volume, options, Some(Arc::clone(broker)), || broker.mount())
    }

    fn begin(
        volume: Volume,
        options: &MountOptions,
        broker: Option<Arc<Broker>>,
        mount: impl FnOnce() -> Result<NewMount, MountError>,
    ) -> Result<Self, SessionError> {
        let time_gran = time_gran(&volume);
        let following = Following::new(options.follow, broker.clone());
        let filesystem = Filesystem::new(volume, options, broker)?;
        let NewMount { connection, mounted, bdi } = match mount() {
            Ok(new) => new,
            Err(e) => {
                filesystem.close()?;
                return Err(e.into());
            }
        };
        let workers = Workers::new(options.threads, following);
        let (channel, buffers) = (Channel::new(connection), BufferPool::new(BUFFERS));
        let shared = Shared { channel, filesystem, workers, buffers, requests: Counter::new() };
        match shared.shake_hands(options.acl, time_gran) {
            Ok(()) => {
                // Only now: the kernel's own values come with the first word.
                bdi.set(CacheRule::Roomy);
                shared.filesystem.bounded_in(bdi);
                let shared = Arc::new(shared);
                Ok(Self { link: Link::to(&shared), shared, mounted })
            }
            Err(e) => {
                // No thread serves the mount.
                let _ = mounted.abort();
                let _ = mounted.unmount(false);
                shared.filesystem.close()?;
                Err(e)
            }
        }
    }

    /// Returns a handle that ends the mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { mounted: self.mounted.clone(), link: self.link.clone() }
    }

    /// Returns the device number of the mounted file system.
    pub fn device(&self) -> MountDevice {
        self.mounted.device()
    }

    /// Returns a handle that reads what the mount is doing from another thread.
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.link.clone())
    }

    /// Returns the directory that it is mounted at.
    pub fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    /// Answers the kernel until the mount is gone, and closes the volume. `ending` runs in between:
    /// its effects are there for a process that waits until the volume is closed.
    ///
    /// # Errors
    /// Failures of `/dev/fuse`, and those of closing the volume.
    pub fn serve(self, ending: impl FnOnce()) -> Result<(), SessionError> {
        let shared = self.shared;
        let served = thread::scope(|scope| {
            let notifier = thread::Builder::new().name("lanefs-notify".into());
            notifier.spawn_scoped(scope, || shared.notify())?;
            let served = shared.work(scope);
            shared.filesystem.notifier().end();
            served
        });
        if served.is_err() {
            let _ = self.mounted.abort();
            let _ = self.mounted.unmount(false);
        }
        self.link.cut();
        ending();
        match Arc::try_unwrap(shared) {
            Ok(shared) => shared.filesystem.close()?,
            Err(shared) => drop(shared),
        }
        Ok(served?)
    }
}

/// Returns the resolution of times of the volume in nanoseconds: small inodes have no room for
/// parts of a second.
fn time_gran(volume: &Volume) -> u32 {
    if volume.info().superblock.inode_size() == 128 { 1_000_000_000 } else { 1 }
}

impl Shared {
    /// Answers the kernel's FUSE_INIT. Requests before it fail with EIO.
    ///
    /// # Errors
    /// [`SessionError::Version`], and failures of `/dev/fuse`.
    fn shake_hands(&self, acl: bool, time_gran: u32) -> Result<(), SessionError> {
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

    /// As [`Unmounter::unmount`], called while the mount cannot be closed.
    fn end(&self, mounted: &Mounted) -> Result<(), MountError> {
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

    /// Runs a serving thread: takes requests and answers them until the mount is gone.
    ///
    /// # Errors
    /// Failures of `/dev/fuse`.
    fn work<'s>(&'s self, scope: &'s thread::Scope<'s, '_>) -> std::io::Result<()> {
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        let mut follow = Follow::new(self.workers.following());
        let mut last = Lasts::Short;
        while let Some(turn) = self.workers.begin(follow.thread(), || self.channel.has_request()) {
            self.buffers.lend(&mut inbox.buffer, last == Lasts::Bulk || self.workers.is_bulk());
            if turn == Turn::Together {
                follow.together();
            }
            let began = Instant::now();
            let read = self.channel.receive(&mut inbox);
            let received = read.as_ref().ok().and_then(|len| inbox.received((*len)?));
            let (lasts, wish) = match &received {
                Some(Received { header, request }) => {
                    let lasts = request.map_or(Lasts::Short, |request| request.lasts());
                    (lasts, follow.asked(header.pid, began.elapsed()))
                }
                None => (Lasts::Short, Wish::Together),
            };
            last = lasts;
            if lasts >= Lasts::Long {
                follow.stop();
            }
            if self.workers.took(follow.thread(), lasts, wish) == First::MakeThread {
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
            if lasts == Lasts::Bulk {
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
        let bulk = received.request.is_ok_and(|request| request.answers_bulk());
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
