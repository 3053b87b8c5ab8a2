//! The thread that waits for signals and for clients.
//!
//! It sleeps without a timeout while no client is connected. It accepts at most [`MOST`] clients of
//! each kind; further clients wait in the queue of the socket. A client that is not done at its
//! deadline is disconnected. A client that wants the device held gets a thread of its own
//! ([`hold`]).

use super::answer::Subject;
use super::client::{Client, Later, Wants};
use super::end::EndWaiters;
use super::hold;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Connections at a time: of the owner, and as many of other users.
const MOST: usize = 8;

/// The time for which no client is accepted after accept(2) has failed: the system is short of
/// something.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// Bytes of the thread's stack, of which it uses little.
const STACK: usize = 256 << 10;

/// Signals, as bytes in a pipe.
#[derive(Debug)]
pub(crate) struct Signals {
    out: UnixStream,
    into: UnixStream,
}

impl Signals {
    /// Directs these signals into the pipe from now on.
    pub(crate) fn new(signals: &[i32]) -> io::Result<Self> {
        let (out, into) = UnixStream::pair()?;
        out.set_nonblocking(true)?;
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, into.try_clone()?)?;
        }
        Ok(Self { out, into })
    }

    /// Returns the end of the pipe to poll.
    pub(crate) fn pipe(&self) -> &UnixStream {
        &self.out
    }

    /// Returns whether a signal came since the last call.
    pub(crate) fn take(&mut self) -> bool {
        let (mut bytes, mut any) = ([0; 64], false);
        while let Ok(1..) = self.out.read(&mut bytes) {
            any = true;
        }
        any
    }
}

/// The server of a mount's socket and metrics.
#[derive(Debug)]
pub(crate) struct WatchServer {
    ended: Arc<AtomicBool>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl WatchServer {
    /// Starts the thread. `on_signal` runs there. `waiters` gets the clients that wait for the end.
    pub(crate) fn start(
        signals: Signals,
        owner: Option<UnixListener>,
        metrics: Option<TcpListener>,
        subject: Subject,
        waiters: EndWaiters,
        on_signal: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let bell = signals.into.try_clone()?;
        let ended = Arc::new(AtomicBool::new(false));
        let work = WatchThread {
            signals,
            owner,
            metrics,
            subject,
            ended: Arc::clone(&ended),
            holds: Arc::default(),
            waiters,
        };
        let thread = thread::Builder::new().name("lanefs-watch".into()).stack_size(STACK);
        let thread = Some(thread.spawn(move || work.run(on_signal))?);
        Ok(Self { ended, bell, thread })
    }
}

impl Drop for WatchServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let _ = self.bell.write_all(b"!");
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}

struct WatchThread {
    signals: Signals,
    owner: Option<UnixListener>,
    metrics: Option<TcpListener>,
    subject: Subject,
    ended: Arc<AtomicBool>,
    /// Each thread that holds the device for a client has a reference.
    holds: Arc<()>,
    waiters: EndWaiters,
}

impl WatchThread {
    fn run(mut self, mut on_signal: impl FnMut()) {
        let (mut own, mut others) = (Vec::<Client<UnixStream>>::new(), Vec::<Client<TcpStream>>::new());
        let mut backoff: Option<Instant> = None;
        loop {
            let now = Instant::now();
            backoff = backoff.filter(|until| *until > now);
            own.retain(|c| c.deadline > now);
            others.retain(|c| c.deadline > now);
            let deadlines = own.iter().map(|c| c.deadline).chain(others.iter().map(|c| c.deadline));
            let wait = deadlines.chain(backoff).min().map(|end| end.saturating_duration_since(now));
            if self.wait(&own, &others, backoff.is_some(), wait).is_err() {
                // poll(2) fails only for want of memory.
                thread::sleep(ACCEPT_BACKOFF);
            }
            if self.signals.take() {
                if self.ended.load(Ordering::Acquire) {
                    return;
                }
                on_signal();
            }
            let subject = &self.subject;
            own = own.into_iter().filter_map(|c| self.serve_owner(c)).collect();
            others.retain_mut(|c| c.step(|path| subject.for_all(path)) != Wants::Nothing);
            if backoff.is_none() {
                let entered = self.let_in(&mut own, &mut others);
                backoff = entered.err().map(|_| Instant::now() + ACCEPT_BACKOFF);
            }
        }
    }

    /// Continues the request of an owner's client until it would block. Returns the client if it is
    /// still there.
    fn serve_owner(&self, mut client: Client<UnixStream>) -> Option<Client<UnixStream>> {
        match client.step(|path| self.subject.for_owner(path)) {
            Wants::Nothing => None,
            Wants::HandOver(Later::Hold) => {
                hold::start(client.stream, &self.subject.monitor, &self.holds);
                None
            }
            Wants::HandOver(Later::End) => {
                self.waiters.add(client.stream);
                None
            }
            Wants::Read | Wants::Write => Some(client),
        }
    }

    /// Waits for a signal, a client or a client's bytes, at most for `patience`.
    fn wait(
        &self,
        own: &[Client<UnixStream>],
        others: &[Client<TcpStream>],
        backs_off: bool,
        patience: Option<Duration>,
    ) -> io::Result<()> {
        fn of<S: AsFd + Read + Write>(client: &Client<S>) -> PollFd<'_> {
            let events = if client.wants() == Wants::Write { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&client.stream, events)
        }
        let mut fds = vec![PollFd::new(self.signals.pipe(), PollFlags::IN)];
        if let Some(owner) = self.owner.as_ref().filter(|_| !backs_off && own.len() < MOST) {
            fds.push(PollFd::new(owner, PollFlags::IN));
        }
        if let Some(metrics) = self.metrics.as_ref().filter(|_| !backs_off && others.len() < MOST) {
            fds.push(PollFd::new(metrics, PollFlags::IN));
        }
        fds.extend(own.iter().map(of));
        fds.extend(others.iter().map(of));
        // Rounded up: a moment too early would be a turn for nothing.
        let patience = patience.map(|p| p + Duration::from_millis(1));
        let patience = patience
            .map(|p| Timespec { tv_sec: p.as_secs().cast_signed(), tv_nsec: p.subsec_nanos().into() });
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Accepts the clients that wait in the queues.
    ///
    /// # Errors
    /// The system is short of something.
    fn let_in(
        &self,
        own: &mut Vec<Client<UnixStream>>,
        others: &mut Vec<Client<TcpStream>>,
    ) -> io::Result<()> {
        fn one<T>(accepted: io::Result<T>) -> io::Result<Option<T>> {
            match accepted {
                Ok(stream) => Ok(Some(stream)),
                // No client waits, or the client has gone again.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::ConnectionAborted
                            | io::ErrorKind::Interrupted
                    ) =>
                {
                    Ok(None)
                }
                Err(e) => Err(e),
            }
        }
        let accept = |listener: &UnixListener| one(listener.accept().map(|(stream, _)| stream));
        if let Some(owner) = &self.owner {
            while own.len() < MOST
                && let Some(stream) = accept(owner)?
            {
                stream.set_nonblocking(true)?;
                own.push(Client::new(stream));
            }
        }
        if let Some(metrics) = &self.metrics {
            while others.len() < MOST
                && let Some(stream) = one(metrics.accept().map(|(stream, _)| stream))?
            {
                stream.set_nonblocking(true)?;
                others.push(Client::new(stream));
            }
        }
        Ok(())
    }
}
