//! A mount, from FUSE_INIT until its volume is closed.

use crate::bdi::CacheRule;
use crate::broker::Broker;
use crate::channel::Channel;
use crate::fault::{Answer, Fault};
use crate::filesystem::{Filesystem, Outcome, Stage};
use crate::follow::{Follow, Following, Wish};
use crate::init;
use crate::monitor::{Link, Monitor, MountStats};
use crate::mountpoint::{self, MountError, Mounted, NewMount};
use crate::notifier::{Job, Notice};
use crate::options::MountOptions;
use crate::request::{Desks, Inbox, Outbox, Request};
use crate::table::MountDevice;
use crate::wire::{InitIn, MAJOR, op};
use crate::workers::{DESKS, First, Lasts, Turn, Workers};
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
    desks: Desks,
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
        let (channel, desks) = (Channel::new(connection), Desks::new(DESKS));
        let shared = Shared { channel, filesystem, workers, desks, requests: Counter::new() };
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
            let bad = |_: Fault| std::io::Error::from(Errno::PROTO);
            let mut request = inbox.request(len).map_err(bad)?;
            let unique = request.header.unique;
            if request.header.opcode != op::INIT {
                self.channel.send(unique, &mut outbox, Err(Errno::IO.into()));
                continue;
            }
            let init: InitIn = request.take().map_err(bad)?;
            if init.major < MAJOR {
                self.channel.send(unique, &mut outbox, Err(Errno::PROTO.into()));
                return Err(SessionError::Version(init.major, init.minor));
            }
            outbox.clear();
            outbox.put(&init::answer(&init, acl, time_gran)).map_err(bad)?;
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
            self.desks.lend(&mut inbox.tray, last == Lasts::Bulk || self.workers.is_bulk());
            if turn == Turn::Together {
                follow.together();
            }
            let began = Instant::now();
            let received = self.channel.receive(&mut inbox);
            let (lasts, wish) = match received.as_ref().map(|len| len.and_then(|len| inbox.request(len).ok()))
            {
                Ok(Some(request)) => {
                    let lasts = Filesystem::lasts(&request);
                    (lasts, follow.asked(request.header.pid, began.elapsed()))
                }
                _ => (Lasts::Short, Wish::Together),
            };
            last = lasts;
            if lasts >= Lasts::Long {
                follow.stop();
            }
            if self.workers.took(follow.thread(), lasts, wish) == First::MakeThread {
                let name = thread::Builder::new().name("lanefs-fuse".into());
                let work = || {
                    // A new thread inherits the processor and policy of this thread.
                    self.workers.following().release_caller();
                    self.work(scope)
                };
                if name.spawn_scoped(scope, work).is_err() {
                    self.workers.not_made();
                }
            }
            let len = match received {
                Ok(Some(len)) => len,
                Ok(None) => {
                    self.workers.end();
                    return Ok(());
                }
                Err(e) => {
                    self.workers.end();
                    return Err(e);
                }
            };
            if self.answer(&inbox, len, &mut outbox, &follow) {
                self.workers.end();
            }
            // The thread may rest now.
            self.desks.lend(&mut inbox.tray, false);
            if lasts == Lasts::Bulk {
                self.workers.bulk_ends();
            }
        }
        Ok(())
    }

    /// Serves a request and answers it, or hands it to the notifier. Returns whether it was the
    /// last request.
    fn answer(&self, inbox: &Inbox, len: usize, outbox: &mut Outbox, follow: &Follow<'_>) -> bool {
        let Ok(request) = inbox.request(len) else { return false };
        self.requests.add(1);
        let (header, body) = (request.header, request.rest());
        self.desks.lend(&mut outbox.tray, Filesystem::answers_bulk(&request));
        let (outcome, answer) = self.serve_request(request, outbox, Stage::Fresh);
        match outcome {
            Outcome::Silent => {}
            Outcome::Answered | Outcome::Last => {
                follow.wake(|| self.channel.send(header.unique, outbox, answer));
            }
            Outcome::AfterNotice(notice) => self.answer_later(notice, header.unique, outbox),
            Outcome::NoticeFirst(notice) => {
                let job = Job::Serve { notice, header, body: body.to_vec() };
                self.filesystem.notifier().hand_over(job);
            }
        }
        self.desks.lend(&mut outbox.tray, false);
        outcome == Outcome::Last
    }

    fn answer_later(&self, notice: Notice, unique: u64, outbox: &Outbox) {
        let content = outbox.content().to_vec();
        self.filesystem.notifier().hand_over(Job::Answer { notice, unique, content });
    }

    fn serve_request(&self, request: Request<'_>, outbox: &mut Outbox, stage: Stage) -> (Outcome, Answer) {
        outbox.clear();
        // If serving panics, the waiting program gets EIO, and the mount goes on.
        let served = catch_unwind(AssertUnwindSafe(|| self.filesystem.serve(request, outbox, stage)));
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
                Job::Serve { header, body, .. } => {
                    let request = Request::new(header, &body);
                    let (outcome, answer) = self.serve_request(request, &mut outbox, Stage::Noticed);
                    if let Outcome::AfterNotice(notice) = outcome {
                        self.answer_later(notice, header.unique, &outbox);
                        continue;
                    }
                    (header.unique, answer)
                }
            };
            self.channel.send(unique, &mut outbox, answer);
        }
    }
}
