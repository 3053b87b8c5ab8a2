//! The threads of a mount, and what they share: each takes requests from the kernel, has them
//! served, and answers them.
//!
//! Hazard: a thread that waits for another request hangs the mount. See
//! [`Notifier`](crate::notifier::Notifier).

use crate::bdi::Bdi;
use crate::buffers::{BufferPool, Inbox, Outbox};
use crate::channel::Channel;
use crate::error::{MountError, SessionError};
use crate::fault::Answer;
use crate::filesystem::{Filesystem, Outcome, Stage};
use crate::init::{self, WantedFeatures};
use crate::mountpoint::Mounted;
use crate::notifier::NoticeJob;
use crate::request::{Received, Request};
use crate::scheduling::{BUFFERS, Cost, First, Follow, Preference, Shares, WaitTurn, Workers};
use crate::wire::MAJOR;
use lanefs::Observer;
use lanefs_stats::Counter;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

/// The state that the threads of a mount share.
#[derive(Debug)]
pub(crate) struct Server {
    channel: Channel,
    filesystem: Filesystem,
    workers: Workers,
    /// The messages of users whose requests have as many threads as they may.
    shares: Mutex<Shares<Box<[u8]>>>,
    buffers: BufferPool,
    requests: Counter,
}

/// Counters of a mount, and what it has open now.
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
        let shares = Shares::new(workers.most_of_one(), workers.most_of_nobody());
        let shares = Mutex::new(shares.keeping(workers.kept_of_one()));
        Self { channel, filesystem, workers, shares, buffers, requests: Counter::new() }
    }

    /// Passes on where the kernel's bound on dirty pages is set.
    pub(crate) fn bounded_in(&self, bdi: Bdi) {
        self.filesystem.bounded_in(bdi);
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// The errors of [`Volume::close`](lanefs::Volume::close).
    pub(crate) fn close(self) -> lanefs::Result<()> {
        self.filesystem.close()
    }

    /// Answers the kernel's FUSE_INIT. Requests before it fail with EIO, whatever they are.
    ///
    /// # Errors
    /// [`SessionError::Version`], and failures of `/dev/fuse`.
    pub(crate) fn shake_hands(&mut self, features: WantedFeatures) -> Result<(), SessionError> {
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        loop {
            let Some(len) = self.channel.receive(&mut inbox)? else {
                return Err(std::io::Error::from(Errno::NODEV).into());
            };
            let foreign = || std::io::Error::from(Errno::PROTO);
            let received = inbox.message(len).and_then(|message| self.decode(message));
            let Some(Received { header, request }) = received else { continue };
            let unique = header.unique;
            let init = match request {
                Ok(Request::Init(init)) => init,
                Err(_) if header.is_init() => return Err(foreign().into()),
                _ => {
                    if header.wants_answer() {
                        self.channel.send(unique, &mut outbox, Err(Errno::IO.into()));
                    }
                    continue;
                }
            };
            if init.major < MAJOR {
                self.channel.send(unique, &mut outbox, Err(Errno::PROTO.into()));
                return Err(SessionError::Version(init.major, init.minor));
            }
            outbox.clear();
            let agreed = init::agreed(&init, features);
            outbox.put(&init::answer(&init, agreed, features.time_gran)).map_err(|_| foreign())?;
            self.channel.send(unique, &mut outbox, Ok(()));
            // A newer kernel comes again with the version that it was told.
            if init.major == MAJOR {
                self.filesystem.agreed_on(agreed);
                return Ok(());
            }
        }
    }

    /// Unmounts as [`Unmounter::unmount`](crate::Unmounter::unmount) does, called while the mount
    /// cannot be closed.
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
            self.make_notifying_thread(scope)?;
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
            if turn == WaitTurn::Together {
                follow.together();
            }
            let began = Instant::now();
            let read = self.channel.receive(&mut inbox);
            let message = read.as_ref().ok().and_then(|len| inbox.message((*len)?));
            let received = message.and_then(|message| self.decode(message));
            let (cost, preference) = match &received {
                Some(Received { header, request }) => {
                    let cost = request.as_ref().map_or(Cost::Short, Request::cost);
                    let preference = match header.pid {
                        // No program waits for it.
                        0 if cost >= Cost::Long => follow.hand_over(),
                        program => follow.asked(program, began.elapsed()),
                    };
                    (cost, preference)
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
            if preference == Preference::Alone && !self.workers.is_alone(follow.thread()) {
                follow.stop();
            }
            if !matches!(read, Ok(Some(_))) {
                self.workers.end();
                return read.map(drop);
            }
            if let (Some(received), Some(message)) = (received, message)
                && self.answer_in_turn(&received, message, &mut outbox, &follow)
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

    /// Decodes a message, as [`Received::decode`] does.
    fn decode<'b>(&self, message: &'b [u8]) -> Option<Received<'b>> {
        Received::decode(message, self.filesystem.features())
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

    /// Serves a request, and then those of its user that were parked meanwhile. Parks it if the
    /// requests of its user have as many threads as they may. Returns whether one was the last
    /// request.
    fn answer_in_turn(
        &self,
        received: &Received<'_>,
        message: &[u8],
        outbox: &mut Outbox,
        follow: &Follow<'_>,
    ) -> bool {
        let Some(user) = received.share(message.len()) else {
            return self.answer(received, outbox, follow);
        };
        let mut work = received.work();
        {
            let mut shares = self.shares.lock();
            if !shares.enter(user, work) {
                shares.park(user, work, message.into());
                return false;
            }
        }
        let mut last = self.answer(received, outbox, follow);
        // Not in the condition: it would be locked while the request is served.
        let next = |done| self.shares.lock().leave(user, done);
        while let Some(message) = next(work) {
            // It was decoded before it was parked.
            if let Some(received) = self.decode(&message) {
                work = received.work();
                last |= self.answer(&received, outbox, follow);
            }
        }
        last
    }

    /// Serves a request and answers it, or leaves the answer to a notifying thread. Returns whether
    /// it was the last request.
    fn answer(&self, received: &Received<'_>, outbox: &mut Outbox, follow: &Follow<'_>) -> bool {
        self.requests.add(1);
        let bulk = received.request.as_ref().is_ok_and(Request::answers_bulk);
        self.buffers.lend(&mut outbox.buffer, bulk);
        let (outcome, answer) = self.serve_request(received, outbox, Stage::Fresh);
        let unique = received.header.unique;
        match outcome {
            Outcome::Silent => {}
            _ if !received.header.wants_answer() => {}
            Outcome::Answered | Outcome::Last => {
                follow.wake(|| self.channel.send(unique, outbox, answer));
            }
            Outcome::AfterNotice(notice) => {
                let (user, content) = (received.header.uid, outbox.content().to_vec());
                self.filesystem.notifier().hand_over(NoticeJob::Answer { notice, user, unique, content });
            }
        }
        self.buffers.lend(&mut outbox.buffer, false);
        outcome == Outcome::Last
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

    /// Makes a notifying thread, which [`Notifier`](crate::notifier::Notifier) has counted already.
    fn make_notifying_thread<'s>(&'s self, scope: &'s thread::Scope<'s, '_>) -> std::io::Result<()> {
        let thread = thread::Builder::new().name("lanefs-notify".into());
        thread.spawn_scoped(scope, || self.notify(scope)).map(drop)
    }

    /// Runs a notifying thread, which tells the kernel what to forget, until the mount is gone or
    /// enough others wait.
    fn notify<'s>(&'s self, scope: &'s thread::Scope<'s, '_>) {
        let notifier = self.filesystem.notifier();
        let mut outbox = Outbox::new();
        while let Some((job, first)) = notifier.next() {
            if first == First::MakeThread && self.make_notifying_thread(scope).is_err() {
                notifier.not_made();
            }
            let share = job.share();
            job.send(&self.channel);
            self.answer_noticed(job, &mut outbox);
            notifier.done(share);
        }
    }

    /// Answers the request of a job whose notice was sent, if it has one.
    fn answer_noticed(&self, job: NoticeJob, outbox: &mut Outbox) {
        let (unique, answer) = match job {
            NoticeJob::Notify(_) | NoticeJob::Name { .. } => return,
            NoticeJob::Answer { unique, content, .. } => {
                outbox.clear();
                (unique, outbox.put_bytes(&content))
            }
            NoticeJob::Serve { received, .. } => {
                let (user, unique) = (received.header.uid, received.header.unique);
                let (outcome, answer) = self.serve_request(&received, outbox, Stage::Noticed);
                if let Outcome::AfterNotice(notice) = outcome {
                    let content = outbox.content().to_vec();
                    self.filesystem.notifier().hand_over(NoticeJob::Answer { notice, user, unique, content });
                    return;
                }
                (unique, answer)
            }
        };
        self.channel.send(unique, outbox, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::MountOptions;
    use crate::scheduling::{Following, Work};
    use crate::wire::op;
    use lanefs::Volume;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

    const FEATURES: WantedFeatures = WantedFeatures { acl: true, no_open: false, time_gran: 1 };

    /// A server whose messages come from, and whose answers go to, a socket of the test.
    fn server() -> (Server, OwnedFd) {
        let (own, kernels) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let options = MountOptions::default();
        let filesystem = Filesystem::new(Volume::in_memory(16 << 20).unwrap(), &options, None).unwrap();
        let workers = Workers::new(1, Following::new(false, None));
        (Server::new(own, filesystem, workers), kernels)
    }

    /// Sends a message of `len` bytes that says it has `said`.
    fn ask(kernels: &OwnedFd, opcode: u32, unique: u64, said: usize, len: usize) {
        ask_as(kernels, (opcode, 0), unique, said, len);
    }

    fn ask_as(kernels: &OwnedFd, (opcode, user): (u32, u32), unique: u64, said: usize, len: usize) {
        let mut message = vec![0; len.max(48)];
        message[..4].copy_from_slice(&(said as u32).to_le_bytes());
        message[4..8].copy_from_slice(&opcode.to_le_bytes());
        message[8..16].copy_from_slice(&unique.to_le_bytes());
        message[16] = 1;
        message[24..28].copy_from_slice(&user.to_le_bytes());
        if opcode == op::INIT {
            message[40..48].copy_from_slice(&[7, 0, 0, 0, 45, 0, 0, 0]);
        }
        send(kernels, &message[..len], SendFlags::empty()).unwrap();
    }

    /// Returns number and error of the answers that have come.
    fn answers(kernels: &OwnedFd) -> Vec<(u64, i32)> {
        let mut buf = [0; 4096];
        let mut found = Vec::new();
        while let Ok((_, n)) = recv(kernels, &mut buf[..], RecvFlags::empty()) {
            assert!(n >= 16);
            let error = i32::from_le_bytes(buf[4..8].try_into().unwrap());
            found.push((u64::from_le_bytes(buf[8..16].try_into().unwrap()), -error));
        }
        found
    }

    #[test]
    fn what_comes_before_init_is_refused_and_ends_nothing() {
        let (mut server, kernels) = server();
        let (eio, init) = (Errno::IO.raw_os_error(), 40 + 64);
        // Without a name, of a wrong length, shorter than a header, and what wants no answer.
        ask(&kernels, op::LOOKUP, 1, 40, 40);
        ask(&kernels, op::GETATTR, 2, 999, 56);
        ask(&kernels, op::GETATTR, 3, 10, 10);
        ask(&kernels, op::FORGET, 4, 48, 48);
        ask(&kernels, op::FORGET, 5, 999, 48);
        ask(&kernels, op::STATFS, 6, 40, 40);
        ask(&kernels, op::INIT, 7, init, init);
        server.shake_hands(FEATURES).unwrap();
        assert_eq!(answers(&kernels), [(1, eio), (2, eio), (6, eio), (7, 0)]);
        server.close().unwrap();
    }

    /// Before version 7.36 (Linux 5.17) INIT has 16 bytes.
    #[test]
    fn an_init_of_an_older_kernel_begins_a_mount() {
        let (mut server, kernels) = server();
        ask(&kernels, op::INIT, 1, 40 + 16, 40 + 16);
        server.shake_hands(FEATURES).unwrap();
        assert_eq!(answers(&kernels), [(1, 0)]);
        server.close().unwrap();
    }

    #[test]
    fn an_init_that_says_nothing_ends_the_mount() {
        let (mut server, kernels) = server();
        ask(&kernels, op::INIT, 1, 40, 40);
        assert!(server.shake_hands(FEATURES).is_err());
        server.close().unwrap();
    }

    /// Requests of a user whose share of the threads is used up are parked, and served by the
    /// thread that has served one of that user. Those of other users are served.
    #[test]
    fn what_one_user_asks_for_leaves_threads_to_others() {
        let (server, kernels) = server();
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        let follow = Follow::new(server.workers.following());
        let statfs = |unique: u64, user: u32, outbox: &mut Outbox, inbox: &mut Inbox| {
            ask_as(&kernels, (op::STATFS, user), unique, 40, 40);
            let len = server.channel.receive(inbox).unwrap().unwrap();
            let message = inbox.message(len).unwrap();
            server.answer_in_turn(&server.decode(message).unwrap(), message, outbox, &follow);
            answers(&kernels).iter().map(|(unique, _)| *unique).collect::<Vec<_>>()
        };
        // The one thread of the share is at work.
        assert!(server.shares.lock().enter(Some(1000), Work::Other));
        assert_eq!(statfs(1, 1000, &mut outbox, &mut inbox), [0_u64; 0]);
        assert_eq!(statfs(2, 1000, &mut outbox, &mut inbox), [0_u64; 0]);
        assert_eq!(statfs(3, 0, &mut outbox, &mut inbox), [3]);
        // It is done.
        let leave = || server.shares.lock().leave(Some(1000), Work::Other);
        assert!(leave().is_some_and(|message| message.len() == 40));
        assert_eq!(server.shares.lock().parked(Some(1000)).count(), 1);
        assert!(leave().is_some());
        assert_eq!(leave(), None);
        assert_eq!(statfs(4, 1000, &mut outbox, &mut inbox), [4]);
        drop(follow);
        server.close().unwrap();
    }

    /// Deletions of files without a name have all threads of their share. A close that came late
    /// would let other programs find the file open.
    #[test]
    fn a_close_waits_for_no_deletion() {
        let (server, kernels) = server();
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        let follow = Follow::new(server.workers.following());
        while server.shares.lock().enter(None, Work::Other) {}
        for (opcode, len) in [(op::FORGET, 48), (op::RELEASE, 64), (op::RELEASEDIR, 64)] {
            ask(&kernels, opcode, opcode.into(), len, len);
            let len = server.channel.receive(&mut inbox).unwrap().unwrap();
            let message = inbox.message(len).unwrap();
            server.answer_in_turn(&server.decode(message).unwrap(), message, &mut outbox, &follow);
        }
        assert_eq!(answers(&kernels), [op::RELEASE, op::RELEASEDIR].map(|opcode| (u64::from(opcode), 0)));
        assert_eq!(server.shares.lock().parked(None).count(), 1);
        drop(follow);
        server.close().unwrap();
    }

    #[test]
    fn what_forgets_is_never_answered() {
        let (server, kernels) = server();
        let (mut inbox, mut outbox) = (Inbox::new(), Outbox::new());
        let follow = Follow::new(server.workers.following());
        for opcode in [op::FORGET, op::BATCH_FORGET, op::STATFS] {
            for (said, len) in [(40, 40), (999, 48), (48, 48), (56, 56)] {
                ask(&kernels, opcode, opcode.into(), said, len);
                let len = server.channel.receive(&mut inbox).unwrap().unwrap();
                let message = inbox.message(len).unwrap();
                server.answer(&server.decode(message).unwrap(), &mut outbox, &follow);
            }
        }
        let statfs = u64::from(op::STATFS);
        let errors = [0, Errno::IO.raw_os_error(), 0, 0];
        assert_eq!(answers(&kernels), errors.map(|error| (statfs, error)));
        drop(follow);
        server.close().unwrap();
    }
}
