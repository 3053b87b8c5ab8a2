//! One connection, shared by threads: requests out, replies in.
//!
//! There is no thread that receives. Of the threads that wait for replies one is the leader: it
//! reads the socket, fills its own buffers, and gives others what is theirs. When its requests are
//! answered, it wakes another waiter, which leads on. So a lone caller needs no other thread, a
//! process that is confined after the open has no thread that is not, and a connection that is not
//! used costs nothing.
//!
//! Invariants:
//! - On one connection a thread has either requests in flight and waits, or none and sends. So
//!   replies are always read while a thread is blocked in sending, and a server that stops reading
//!   until its replies are read does not stop for ever.
//! - While a thread waits, one thread leads, or has been woken to.
//! - The reader is in the table while no thread leads.

use super::error::NbdError;
use super::reply::{Body, Content, Expected, Extent, Header, extents};
use super::request::{Command, Request};
use super::socket::Socket;
use super::wire::{is_tick, lost};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are read from the socket at a time.
const READ_BUFFER: usize = 256 << 10;
/// Content from which on it is not copied on its way to the socket, and not on its way from there
/// if its owner sleeps.
const LARGE: usize = 32 << 10;
/// The most requests of one thread in flight.
const BURST: usize = 256;
/// The most bytes of one thread in flight.
const BURST_BYTES: usize = 16 << 20;

/// The content of a request.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    None,
    /// To write.
    Out(Arc<Vec<u8>>),
    /// To fill.
    In(&'a mut [u8]),
    /// The answer to a block status.
    Extents(Vec<Extent>),
}

/// A request and what became of it.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) request: Request,
    pub(crate) data: Data<'a>,
    pub(crate) done: bool,
    /// What the server said where it failed.
    pub(crate) failed: Option<NbdError>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(request: Request, data: Data<'a>) -> Self {
        Self { request, data, done: false, failed: None }
    }
}

/// A thread that has requests in flight.
#[derive(Debug)]
struct Waiter {
    number: u64,
    wake: Condvar,
    /// Its requests without an answer. Changed under the lock of the table.
    left: AtomicUsize,
    /// What a leader has received for it.
    inbox: Mutex<Vec<(usize, Arrival)>>,
}

/// Requests that are in flight, `None` for none.
#[must_use]
pub(crate) struct Sent(Option<Arc<Waiter>>);

/// What came for a request of another thread.
#[derive(Debug)]
enum Arrival {
    Bytes { at: usize, bytes: Vec<u8> },
    Zeros { at: usize, len: usize },
    Extents(Vec<Extent>),
    Failed(NbdError),
    Done,
}

/// A request in flight.
#[derive(Debug)]
struct Pending {
    expected: Expected,
    waiter: Arc<Waiter>,
    job: usize,
    deadline: Instant,
}

/// Content that its owner is to read itself.
#[derive(Debug)]
struct Handed {
    cookie: u64,
    pending: Pending,
    body: Body,
    at: usize,
    len: usize,
}

#[derive(Debug)]
struct Table {
    pending: BTreeMap<u64, Pending>,
    next_cookie: u64,
    next_waiter: u64,
    /// The threads that sleep until their requests are answered, or until they are to lead.
    sleepers: BTreeMap<u64, Arc<Waiter>>,
    reader: Option<Box<Reader>>,
    handed: Option<Handed>,
    lost: Option<NbdError>,
}

/// What was agreed on with the server that replies depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) structured: bool,
    pub(crate) allocation: Option<u32>,
    pub(crate) timeout: Duration,
}

/// A connection after its negotiation.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Arc<Socket>,
    terms: Terms,
    /// Bytes on their way to the socket; locked while a burst is sent.
    outgoing: Mutex<Vec<u8>>,
    table: Mutex<Table>,
}

impl Link {
    pub(crate) fn new(socket: Socket, terms: Terms) -> Self {
        let socket = Arc::new(socket);
        let reader = Reader { socket: Arc::clone(&socket), buf: vec![0; READ_BUFFER], start: 0, end: 0 };
        let table = Table {
            pending: BTreeMap::new(),
            next_cookie: 1,
            next_waiter: 1,
            sleepers: BTreeMap::new(),
            reader: Some(Box::new(reader)),
            handed: None,
            lost: None,
        };
        Self { socket, terms, outgoing: Mutex::default(), table: Mutex::new(table) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs those of `jobs` that are not done, in any order.
    ///
    /// # Errors
    /// A loss, or a reply that breaks a rule: the connection has ended. Jobs that were done are. A
    /// request that the server failed is done, and says so itself.
    pub(crate) fn run(&self, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let mut from = 0;
        while from < jobs.len() {
            let to = burst_end(jobs, from);
            let burst = &mut jobs[from..to];
            self.run_burst(burst).map_err(|e| self.end(e))?;
            from = to;
        }
        Ok(())
    }

    /// Says goodbye, and ends the connection.
    pub(crate) fn disconnect(&self) {
        let request = Request { command: Command::Disconnect, flags: 0, offset: 0, len: 0 };
        // A server that does not take it in one call gets none.
        if let Ok(outgoing) = self.outgoing.try_lock() {
            let _ = self.socket.write(&request.encode(0));
            drop(outgoing);
        }
        self.end(NbdError::Closed);
    }

    /// Ends the connection for all threads, for this reason. Returns the first reason.
    pub(crate) fn end(&self, why: NbdError) -> NbdError {
        self.socket.shutdown();
        let mut table = self.table();
        let first = table.lost.get_or_insert(why).clone();
        table.sleepers.values().for_each(|waiter| waiter.wake.notify_one());
        first
    }

    fn run_burst(&self, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let sent = self.send(jobs)?;
        self.await_answers(sent, jobs)
    }

    /// Sends jobs, for [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn send_out(&self, jobs: &[Job<'_>]) -> Result<Sent, NbdError> {
        self.send(jobs).map_err(|e| self.end(e))
    }

    /// Waits for jobs that were sent.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn wait_for(&self, sent: Sent, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        self.await_answers(sent, jobs).map_err(|e| self.end(e))
    }

    fn await_answers(&self, sent: Sent, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let Sent(Some(waiter)) = sent else { return Ok(()) };
        let waited = self.wait(&waiter, jobs);
        // One that was woken to lead, and had its answers meanwhile, wakes another.
        self.pass_on();
        waited
    }

    /// Sends the jobs that are not done.
    fn send(&self, jobs: &[Job<'_>]) -> Result<Sent, NbdError> {
        let count = jobs.iter().filter(|job| !job.done).count();
        if count == 0 {
            return Ok(Sent(None));
        }
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + self.terms.timeout;
        let (waiter, mut cookie) = self.register(jobs, count, deadline)?;
        outgoing.clear();
        for job in jobs.iter().filter(|job| !job.done) {
            outgoing.extend_from_slice(&job.request.encode(cookie));
            cookie += 1;
            if let Data::Out(bytes) = &job.data {
                if bytes.len() < LARGE {
                    outgoing.extend_from_slice(bytes);
                } else {
                    self.write(&outgoing, deadline)?;
                    outgoing.clear();
                    self.write(bytes, deadline)?;
                }
            }
            if outgoing.len() >= READ_BUFFER {
                self.write(&outgoing, deadline)?;
                outgoing.clear();
            }
        }
        self.write(&outgoing, deadline)?;
        outgoing.clear();
        Ok(Sent(Some(waiter)))
    }

    /// Enters the jobs that are not done into the table. Returns the first cookie of them.
    fn register(
        &self,
        jobs: &[Job<'_>],
        count: usize,
        deadline: Instant,
    ) -> Result<(Arc<Waiter>, u64), NbdError> {
        let mut table = self.table();
        if let Some(lost) = &table.lost {
            return Err(lost.clone());
        }
        let waiter = Arc::new(Waiter {
            number: table.next_waiter,
            wake: Condvar::new(),
            left: AtomicUsize::new(count),
            inbox: Mutex::default(),
        });
        table.next_waiter += 1;
        let first = table.next_cookie;
        let Terms { structured, allocation, .. } = self.terms;
        for (index, job) in jobs.iter().enumerate().filter(|(_, job)| !job.done) {
            let expected = Expected::new(job.request, structured, allocation);
            let cookie = table.next_cookie;
            table.next_cookie += 1;
            let pending = Pending { expected, waiter: Arc::clone(&waiter), job: index, deadline };
            table.pending.insert(cookie, pending);
        }
        Ok((waiter, first))
    }

    fn write(&self, bytes: &[u8], deadline: Instant) -> Result<(), NbdError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.socket.write(rest) {
                Ok(0) => return Err(NbdError::Closed),
                Ok(n) => rest = &rest[n..],
                Err(e) if is_tick(&e) => {}
                Err(e) => return Err(self.known_loss(lost(&e))),
            }
            if !rest.is_empty() && Instant::now() >= deadline {
                let seconds = self.terms.timeout.as_secs();
                return Err(NbdError::Timeout { what: "request", seconds });
            }
        }
        Ok(())
    }

    /// Returns why the connection was ended, `seen` if this thread is the first to notice.
    fn known_loss(&self, seen: NbdError) -> NbdError {
        self.table().lost.clone().unwrap_or(seen)
    }

    /// Waits until the requests of `waiter` are answered; leads if no other thread does.
    fn wait(&self, waiter: &Arc<Waiter>, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let mut table = self.table();
        loop {
            if waiter.left.load(Ordering::Relaxed) == 0 {
                break;
            }
            if let Some(lost) = &table.lost {
                let lost = lost.clone();
                drop(table);
                take_arrivals(waiter, jobs);
                return Err(lost);
            }
            let is_for_other =
                table.handed.as_ref().is_some_and(|handed| !Arc::ptr_eq(&handed.pending.waiter, waiter));
            let reader = if is_for_other { None } else { table.reader.take() };
            if let Some(mut reader) = reader {
                let handed = table.handed.take();
                drop(table);
                self.lead(&mut reader, handed, waiter, jobs)?;
                table = self.table();
                table.reader = Some(reader);
                // Only now: it would find no reader before.
                if let Some(handed) = &table.handed {
                    handed.pending.waiter.wake.notify_one();
                }
                continue;
            }
            table.sleepers.insert(waiter.number, Arc::clone(waiter));
            table = waiter.wake.wait(table).unwrap_or_else(PoisonError::into_inner);
            table.sleepers.remove(&waiter.number);
        }
        drop(table);
        take_arrivals(waiter, jobs);
        Ok(())
    }

    /// Wakes a thread that leads, if none does.
    fn pass_on(&self) {
        let table = self.table();
        if table.reader.is_some()
            && table.handed.is_none()
            && let Some(next) = table.sleepers.values().next()
        {
            next.wake.notify_one();
        }
    }

    /// Reads replies until the requests of this thread are answered, or content of another thread
    /// is for that to read.
    fn lead(
        &self,
        reader: &mut Reader,
        handed: Option<Handed>,
        waiter: &Arc<Waiter>,
        jobs: &mut [Job<'_>],
    ) -> Result<(), NbdError> {
        if let Some(Handed { cookie, pending, body, at, len }) = handed {
            self.receive_bytes(reader, &pending, (at, len), Some(jobs))?;
            self.finish(cookie, pending, body.done, Some(jobs))?;
        }
        loop {
            let answered = waiter.left.load(Ordering::Relaxed) == 0;
            // What has arrived together is given out together.
            if answered && !reader.has(Header::LEAST) {
                return Ok(());
            }
            if self.receive(reader, waiter, jobs)? {
                return Ok(());
            }
        }
    }

    /// Reads one reply or chunk. Returns true if its content is for another thread to read.
    fn receive(
        &self,
        reader: &mut Reader,
        waiter: &Arc<Waiter>,
        jobs: &mut [Job<'_>],
    ) -> Result<bool, NbdError> {
        let magic = reader.need(4, self, None)?.first_chunk().copied().unwrap_or_default();
        let len = Header::len(magic)?;
        let header = Header::parse(reader.need(len, self, None)?)?;
        reader.skip(len);
        let cookie = header.cookie();
        let mut pending = {
            let mut table = self.table();
            let next = table.next_cookie;
            table.pending.remove(&cookie).ok_or(match cookie {
                cookie if cookie > 0 && cookie < next => NbdError::AnsweredTwice { cookie },
                cookie => NbdError::UnknownCookie { cookie },
            })?
        };
        let body = pending.expected.body(&header)?;
        let prefix = reader.need(body.prefix, self, Some(&pending))?;
        let content = pending.expected.content(&header, body, prefix)?;
        reader.skip(body.prefix);
        let mut mine = if Arc::ptr_eq(&pending.waiter, waiter) { Some(jobs) } else { None };
        match content {
            Content::Nothing => {}
            Content::Data { at, len } if mine.is_none() && len >= LARGE => {
                let mut table = self.table();
                if table.sleepers.contains_key(&pending.waiter.number) {
                    table.handed = Some(Handed { cookie, pending, body, at, len });
                    return Ok(true);
                }
                drop(table);
                self.receive_bytes(reader, &pending, (at, len), None)?;
            }
            Content::Data { at, len } => {
                self.receive_bytes(reader, &pending, (at, len), mine.as_deref_mut())?;
            }
            Content::Hole { at, len } => {
                deliver(&pending, Arrival::Zeros { at, len }, mine.as_deref_mut());
            }
            Content::Extents { len } => {
                let mut bytes = vec![0; len];
                reader.read(&mut bytes, self, &pending)?;
                let list = extents(pending.expected.request.offset, &bytes)?;
                deliver(&pending, Arrival::Extents(list), mine.as_deref_mut());
            }
            Content::Failed { errno, text } => {
                let mut bytes = vec![0; body.len.saturating_sub(body.prefix)];
                reader.read(&mut bytes, self, &pending)?;
                let text = String::from_utf8_lossy(bytes.get(..text).unwrap_or_default()).into_owned();
                let command = pending.expected.request.command.name();
                let failed = NbdError::Failed { command, errno, text };
                deliver(&pending, Arrival::Failed(failed), mine.as_deref_mut());
            }
        }
        self.finish(cookie, pending, body.done, mine)?;
        Ok(false)
    }

    /// Reads content to its place: in `jobs` if they are its owner's.
    fn receive_bytes(
        &self,
        reader: &mut Reader,
        pending: &Pending,
        (at, len): (usize, usize),
        jobs: Option<&mut [Job<'_>]>,
    ) -> Result<(), NbdError> {
        if let Some(jobs) = jobs {
            if let Some(Data::In(buf)) = jobs.get_mut(pending.job).map(|job| &mut job.data)
                && let Some(to) = buf.get_mut(at..at + len)
            {
                return reader.read(to, self, pending);
            }
            return Err(NbdError::ChunkKind { kind: 1, command: pending.expected.request.command.name() });
        }
        let mut bytes = vec![0; len];
        reader.read(&mut bytes, self, pending)?;
        deliver(pending, Arrival::Bytes { at, bytes }, None);
        Ok(())
    }

    /// Ends a request whose last chunk has come, or waits for the next chunk.
    fn finish(
        &self,
        cookie: u64,
        pending: Pending,
        done: bool,
        jobs: Option<&mut [Job<'_>]>,
    ) -> Result<(), NbdError> {
        if !done {
            self.table().pending.insert(cookie, pending);
            return Ok(());
        }
        pending.expected.end()?;
        let is_mine = jobs.is_some();
        deliver(&pending, Arrival::Done, jobs);
        let waiter = &pending.waiter;
        // The owner looks at the number under the lock before it sleeps.
        let table = self.table();
        if waiter.left.fetch_sub(1, Ordering::Relaxed) == 1 && !is_mine {
            waiter.wake.notify_one();
        }
        drop(table);
        Ok(())
    }

    /// Checks that no request waits for longer than it may.
    fn check_deadlines(&self, now: Instant, current: Option<&Pending>) -> Result<(), NbdError> {
        let late = |pending: &Pending| {
            let (what, seconds) = (pending.expected.request.command.name(), self.terms.timeout.as_secs());
            if pending.deadline <= now { Err(NbdError::Timeout { what, seconds }) } else { Ok(()) }
        };
        current.map_or(Ok(()), late)?;
        self.table().pending.values().next().map_or(Ok(()), late)
    }
}

/// Returns where the burst ends that begins with the job `from`.
fn burst_end(jobs: &[Job<'_>], from: usize) -> usize {
    let mut bytes = 0;
    let rest = &jobs[from..jobs.len().min(from + BURST)];
    let fitting = rest.iter().take_while(|job| {
        let fits = bytes < BURST_BYTES;
        bytes += job.request.len as usize;
        fits
    });
    from + fitting.count()
}

/// Gives a request what came for it: `jobs` are those of its owner, if that is the caller.
fn deliver(pending: &Pending, arrival: Arrival, jobs: Option<&mut [Job<'_>]>) {
    match jobs {
        Some(jobs) => arrive(jobs, pending.job, arrival),
        None => {
            let mut inbox = pending.waiter.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            inbox.push((pending.job, arrival));
        }
    }
}

fn take_arrivals(waiter: &Waiter, jobs: &mut [Job<'_>]) {
    let arrived = std::mem::take(&mut *waiter.inbox.lock().unwrap_or_else(PoisonError::into_inner));
    arrived.into_iter().for_each(|(job, arrival)| arrive(jobs, job, arrival));
}

/// Does to a job what came for it. Its place was checked by `Expected`.
fn arrive(jobs: &mut [Job<'_>], job: usize, arrival: Arrival) {
    let Some(job) = jobs.get_mut(job) else { return };
    match (arrival, &mut job.data) {
        (Arrival::Done, _) => job.done = true,
        (Arrival::Failed(why), _) => job.failed = Some(why),
        (Arrival::Extents(list), Data::Extents(to)) => *to = list,
        (Arrival::Bytes { at, bytes }, Data::In(buf)) => {
            if let Some(to) = buf.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(&bytes);
            }
        }
        (Arrival::Zeros { at, len }, Data::In(buf)) => {
            if let Some(to) = buf.get_mut(at..at + len) {
                to.fill(0);
            }
        }
        _ => {}
    }
}

/// What has come of the socket and was not used yet.
#[derive(Debug)]
struct Reader {
    socket: Arc<Socket>,
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Reader {
    fn has(&self, len: usize) -> bool {
        self.end - self.start >= len
    }

    fn skip(&mut self, len: usize) {
        self.start += len;
    }

    /// Returns the next `len` bytes, fewer than the buffer has, and leaves them there.
    fn need(&mut self, len: usize, link: &Link, current: Option<&Pending>) -> Result<&[u8], NbdError> {
        if !self.has(len) && self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while !self.has(len) {
            let got = receive_some(&self.socket, &mut self.buf[self.end..], link, current)?;
            self.end += got;
        }
        Ok(&self.buf[self.start..self.start + len])
    }

    /// Fills `to`: with what is in the buffer, then from the socket.
    fn read(&mut self, to: &mut [u8], link: &Link, current: &Pending) -> Result<(), NbdError> {
        let mut done = 0;
        while done < to.len() {
            let rest = &mut to[done..];
            let there = self.end - self.start;
            if there == 0 && rest.len() >= LARGE {
                done += receive_some(&self.socket, rest, link, Some(current))?;
                continue;
            }
            let n = there.min(rest.len());
            rest[..n].copy_from_slice(&self.buf[self.start..self.start + n]);
            self.skip(n);
            done += n;
            if done < to.len() {
                self.need((to.len() - done).min(LARGE), link, Some(current))?;
            }
        }
        Ok(())
    }
}

/// Receives at least a byte, before a request is late.
fn receive_some(
    socket: &Socket,
    to: &mut [u8],
    link: &Link,
    current: Option<&Pending>,
) -> Result<usize, NbdError> {
    loop {
        let received = socket.read(to);
        match received {
            Ok(0) => return Err(link.known_loss(NbdError::Closed)),
            Err(e) if !is_tick(&e) => return Err(link.known_loss(lost(&e))),
            received => {
                link.check_deadlines(Instant::now(), current)?;
                if let Ok(n) = received {
                    return Ok(n);
                }
            }
        }
    }
}
