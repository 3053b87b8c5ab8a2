//! One connection, shared by threads: requests out, replies in.
//!
//! There is no thread that receives. Of the threads that wait for replies one is the leader: it
//! reads the socket, fills its own buffers, and gives others what is theirs. When its requests are
//! answered, it wakes another waiter, which leads on. So a lone caller needs no other thread, a
//! process that is confined after the open has no thread that is not, and a connection that is not
//! used costs nothing.
//!
//! Requests are queued, and one thread sends what several have queued: a thread that sends anyway,
//! or the leader before it sleeps.
//!
//! Invariants:
//! - No thread waits for the socket to take bytes while no thread reads replies: without a leader,
//!   the rest is left to the next one, which sends and reads. So a server that stops reading until
//!   its replies are read does not stop for ever.
//! - While a thread sleeps, one thread leads, or has been woken to.
//! - A thread that sleeps is in `sleepers` until it is answered. Changes take the table's lock.
//! - The reader is in the table while no thread leads.

use super::error::NbdError;
use super::job::{Arrival, Data, Job, Waiter};
use super::outgoing::Outgoing;
use super::reader::{Due, Inlet, Reader};
use super::reply::{Body, Content, Expected, Header, extents};
use super::request::{Command, Request};
use super::socket::{Readiness, Socket};
use super::wire::{is_tick, lost};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Content from which on its owner reads it itself, if that sleeps.
const LARGE: usize = 32 << 10;
/// The most requests of one thread in flight.
const BURST: usize = 256;
/// The most bytes of one thread in flight.
const BURST_BYTES: usize = 16 << 20;
/// How long a thread that cannot send waits before it looks whether there is still a leader.
const WAIT: Duration = Duration::from_millis(20);

/// Requests that are in flight, `None` for none.
#[must_use]
pub(crate) struct Sent(Option<Arc<Waiter>>);

/// A request in flight.
#[derive(Debug)]
struct Pending {
    expected: Expected,
    waiter: Arc<Waiter>,
    job: usize,
    /// By the connection's clock.
    deadline: Duration,
}

impl Pending {
    fn due(&self, cookie: u64) -> Due {
        Due { cookie, deadline: self.deadline, what: self.expected.request.command.name() }
    }
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

#[derive(Debug, Default)]
struct Table {
    pending: BTreeMap<u64, Pending>,
    next_cookie: u64,
    next_waiter: u64,
    /// The threads that sleep until their requests are answered, or until they are to lead.
    sleepers: BTreeMap<u64, Arc<Waiter>>,
    reader: Option<Box<Reader>>,
    handed: Option<Handed>,
    /// What no thread has begun to send.
    outgoing: Outgoing,
    /// An empty one, for its memory.
    spare: Outgoing,
    /// A thread sends, and looks again before it ends.
    is_sending: bool,
    /// The leader looks at `outgoing` before it sleeps.
    leader_sends: bool,
    /// The time in which a thread has led.
    clock: Duration,
    /// The oldest request in flight, and since when it is.
    oldest: (u64, Duration),
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
    table: Mutex<Table>,
}

impl Link {
    pub(crate) fn new(socket: Socket, terms: Terms) -> Self {
        let socket = Arc::new(socket);
        let reader = Some(Box::new(Reader::new(Arc::clone(&socket))));
        let table = Table { next_cookie: 1, next_waiter: 1, reader, ..Table::default() };
        Self { socket, terms, table: Mutex::new(table) }
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
            let sent = self.send_out(burst)?;
            self.wait_for(sent, burst)?;
            from = to;
        }
        Ok(())
    }

    /// Says goodbye, and ends the connection.
    pub(crate) fn disconnect(&self) {
        let table = self.table();
        // A server that does not take it in one call gets none.
        if table.lost.is_none() && !table.is_sending && table.outgoing.is_empty() {
            let request = Request { command: Command::Disconnect, flags: 0, offset: 0, len: 0 };
            let _ = self.socket.send(&request.encode(0), false);
        }
        drop(table);
        self.end(NbdError::Closed);
    }

    /// Ends the connection for all threads, for this reason. Returns the first reason.
    pub(crate) fn end(&self, why: NbdError) -> NbdError {
        let mut table = self.table();
        // Before the shutdown, which other threads take for a loss.
        let first = table.lost.get_or_insert(why).clone();
        self.socket.shutdown();
        table.sleepers.values().for_each(|waiter| waiter.wake());
        first
    }

    /// Sends the jobs that are not done, for [`wait_for`](Self::wait_for).
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
        let Sent(Some(waiter)) = sent else { return Ok(()) };
        let waited = self.wait(&waiter, jobs);
        waiter.take_arrivals(jobs);
        waited.map_err(|e| self.end(e))
    }

    fn send(&self, jobs: &[Job<'_>]) -> Result<Sent, NbdError> {
        let count = jobs.iter().filter(|job| !job.done).count();
        if count == 0 {
            return Ok(Sent(None));
        }
        let mut table = self.table();
        if let Some(lost) = &table.lost {
            return Err(lost.clone());
        }
        let waiter = table.register(jobs, count, self.terms);
        if !table.is_sending && !table.leader_sends {
            table.is_sending = true;
            self.send_all(table)?;
        }
        Ok(Sent(Some(waiter)))
    }

    /// Sends what is queued, and what is queued meanwhile.
    fn send_all<'l>(&'l self, mut table: MutexGuard<'l, Table>) -> Result<(), NbdError> {
        while let Some(mut now) = table.next_outgoing() {
            drop(table);
            loop {
                match now.send(&self.socket) {
                    Ok(()) => break,
                    Err(e) if is_tick(&e) => {}
                    Err(e) => return Err(self.known_loss(lost(&e))),
                }
                let mut table = self.table();
                if let Some(lost) = &table.lost {
                    return Err(lost.clone());
                }
                if let Some(reader) = &mut table.reader {
                    // The next leader goes on, which may be this thread.
                    reader.inlet.unsent = Some(now);
                    return Ok(());
                }
                drop(table);
                let writable = Readiness { read: false, write: true };
                self.socket.wait(writable, WAIT).map_err(|e| self.known_loss(lost(&e)))?;
            }
            table = self.table();
            table.spare = now;
        }
        Ok(())
    }

    /// Sends what threads have left to the leader, as much as the socket takes.
    pub(super) fn send_before_sleep(&self, inlet: &mut Inlet) -> Result<(), NbdError> {
        loop {
            let Some(now) = &mut inlet.unsent else {
                if !std::mem::take(&mut inlet.sends_for_others) {
                    return Ok(());
                }
                let mut table = self.table();
                table.leader_sends = false;
                if !table.is_sending && !table.outgoing.is_empty() {
                    table.is_sending = true;
                    inlet.unsent = table.next_outgoing();
                }
                continue;
            };
            match now.send(&self.socket) {
                Ok(()) => {
                    let mut table = self.table();
                    table.spare = inlet.unsent.take().unwrap_or_default();
                    inlet.unsent = table.next_outgoing();
                }
                Err(e) if is_tick(&e) => return Ok(()),
                Err(e) => return Err(self.known_loss(lost(&e))),
            }
        }
    }

    /// Returns why the connection was ended, `seen` if this thread is the first to notice.
    pub(super) fn known_loss(&self, seen: NbdError) -> NbdError {
        self.table().lost.clone().unwrap_or(seen)
    }

    /// Waits until the requests of `waiter` are answered; leads if no other thread does.
    fn wait(&self, waiter: &Arc<Waiter>, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        while !waiter.is_answered() {
            let mut table = self.table();
            if waiter.is_answered() {
                break;
            }
            if let Some(lost) = &table.lost {
                return Err(lost.clone());
            }
            let is_for_other =
                table.handed.as_ref().is_some_and(|handed| !Arc::ptr_eq(&handed.pending.waiter, waiter));
            let reader = if is_for_other { None } else { table.reader.take() };
            let Some(mut reader) = reader else {
                table.sleepers.entry(waiter.number).or_insert_with(|| Arc::clone(waiter));
                drop(table);
                std::thread::park();
                continue;
            };
            table.sleepers.remove(&waiter.number);
            let handed = table.handed.take();
            drop(table);
            reader.resume();
            self.lead(&mut reader, handed, waiter, jobs)?;
            self.leave(reader)?;
        }
        Ok(())
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
            reader.inlet.current = Some(pending.due(cookie));
            self.receive_bytes(reader, &pending, (at, len), Some(jobs))?;
            self.finish(cookie, pending, body.done, Some(jobs))?;
        }
        // What has arrived together is given out together.
        while !waiter.is_answered() || self.has_whole_reply(reader) {
            if self.receive(reader, waiter, jobs)? {
                break;
            }
        }
        Ok(())
    }

    /// Ends to lead: wakes the next leader, and sends what was left to this one.
    fn leave(&self, mut reader: Box<Reader>) -> Result<(), NbdError> {
        let mut table = self.table();
        (reader.inlet.sends_for_others, reader.inlet.is_idle) = (false, table.pending.is_empty());
        table.leader_sends = false;
        table.reader = Some(reader);
        let next = match &table.handed {
            Some(handed) => Some(&handed.pending.waiter),
            None => table.sleepers.values().next(),
        };
        if let Some(next) = next {
            next.wake();
        }
        if !table.is_sending && !table.outgoing.is_empty() {
            table.is_sending = true;
            return self.send_all(table);
        }
        Ok(())
    }

    /// Returns whether the next reply, or chunk of one, has come to its end.
    fn has_whole_reply(&self, reader: &Reader) -> bool {
        let rest = match reader.next_header() {
            None => return false,
            Some(Header::Chunk { len, .. }) => Header::OF_CHUNK + len as usize,
            Some(Header::Simple { cookie, errno }) => {
                let asked = self.table().pending.get(&cookie).map(|pending| pending.expected.request);
                let content = asked.filter(|asked| asked.command == Command::Read && errno == 0);
                Header::LEAST + content.map_or(0, |asked| asked.len as usize)
            }
        };
        reader.there().len() >= rest
    }

    /// Reads one reply or chunk. Returns true if its content is for another thread to read.
    fn receive(
        &self,
        reader: &mut Reader,
        waiter: &Arc<Waiter>,
        jobs: &mut [Job<'_>],
    ) -> Result<bool, NbdError> {
        reader.inlet.current = None;
        let magic = reader.need(4, self)?.first_chunk().copied().unwrap_or_default();
        let len = Header::len(magic)?;
        let header = Header::parse(reader.need(len, self)?)?;
        reader.skip(len);
        let cookie = header.cookie();
        let mut pending = {
            let mut table = self.table();
            table.leader_sends = true;
            let next = table.next_cookie;
            table.pending.remove(&cookie).ok_or(match cookie {
                cookie if cookie > 0 && cookie < next => NbdError::AnsweredTwice { cookie },
                cookie => NbdError::UnknownCookie { cookie },
            })?
        };
        (reader.inlet.sends_for_others, reader.inlet.current) = (true, Some(pending.due(cookie)));
        let body = pending.expected.body(&header)?;
        let prefix = reader.need(body.prefix, self)?;
        let content = pending.expected.content(&header, body, prefix)?;
        reader.skip(body.prefix);
        let mut mine = if Arc::ptr_eq(&pending.waiter, waiter) { Some(jobs) } else { None };
        let arrival = match content {
            Content::Nothing => None,
            Content::Data { at, len } if mine.is_none() && len >= LARGE => {
                let mut table = self.table();
                if table.sleepers.contains_key(&pending.waiter.number) {
                    table.handed = Some(Handed { cookie, pending, body, at, len });
                    return Ok(true);
                }
                drop(table);
                Some(Arrival::Bytes { at, bytes: reader.take(len, self)? })
            }
            Content::Data { at, len } => {
                self.receive_bytes(reader, &pending, (at, len), mine.as_deref_mut())?;
                None
            }
            Content::Hole { at, len } => Some(Arrival::Zeros { at, len }),
            Content::Extents { len } => {
                let bytes = reader.take(len, self)?;
                Some(Arrival::Extents(extents(pending.expected.request.offset, &bytes)?))
            }
            Content::Failed { errno, text } => {
                let bytes = reader.take(body.len.saturating_sub(body.prefix), self)?;
                let text = String::from_utf8_lossy(bytes.get(..text).unwrap_or_default()).into_owned();
                let command = pending.expected.request.command.name();
                Some(Arrival::Failed(NbdError::Failed { command, errno, text }))
            }
        };
        if let Some(arrival) = arrival {
            pending.waiter.deliver(pending.job, arrival, mine.as_deref_mut());
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
        let Some(jobs) = jobs else {
            let bytes = reader.take(len, self)?;
            pending.waiter.deliver(pending.job, Arrival::Bytes { at, bytes }, None);
            return Ok(());
        };
        if let Some(Data::In(buf)) = jobs.get_mut(pending.job).map(|job| &mut job.data)
            && let Some(to) = buf.get_mut(at..at + len)
        {
            return reader.read(to, self);
        }
        Err(NbdError::ChunkKind { kind: 1, command: pending.expected.request.command.name() })
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
        let Pending { waiter, job, .. } = pending;
        let is_mine = jobs.is_some();
        waiter.deliver(job, Arrival::Done, jobs);
        if is_mine {
            waiter.count_answer();
            return Ok(());
        }
        // It looks at the number under the lock before it sleeps.
        let mut table = self.table();
        let wakes = waiter.count_answer() && table.sleepers.remove(&waiter.number).is_some();
        drop(table);
        if wakes {
            waiter.wake();
        }
        Ok(())
    }

    /// Checks, after `step` of time, that no request waits for longer than it may: for its own
    /// time, and for as long as the oldest. A slow server answers a long queue, each request in its
    /// time.
    pub(super) fn check_deadlines(&self, step: Duration, current: Option<Due>) -> Result<(), NbdError> {
        let mut table = self.table();
        table.clock += step;
        let first = table.pending.first_key_value().map(|(cookie, pending)| pending.due(*cookie));
        let oldest = first.into_iter().chain(current).min_by_key(|due| due.cookie);
        let Some(Due { cookie, deadline, what }) = oldest else { return Ok(()) };
        if table.oldest.0 != cookie {
            table.oldest = (cookie, table.clock);
        }
        match table.clock >= deadline.max(table.oldest.1 + self.terms.timeout) {
            true => Err(NbdError::Timeout { what, seconds: self.terms.timeout.as_secs() }),
            false => Ok(()),
        }
    }
}

impl Table {
    /// Takes what is to be sent next. Without any, the sender is done.
    fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.is_sending = !self.outgoing.is_empty();
        self.is_sending.then(|| std::mem::replace(&mut self.outgoing, std::mem::take(&mut self.spare)))
    }

    /// Enters the `count` jobs that are not done, and queues their requests.
    fn register(&mut self, jobs: &[Job<'_>], count: usize, terms: Terms) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::new(self.next_waiter, count));
        self.next_waiter += 1;
        let deadline = self.clock.saturating_add(terms.timeout);
        for (index, job) in jobs.iter().enumerate().filter(|(_, job)| !job.done) {
            let expected = Expected::new(job.request, terms.structured, terms.allocation);
            let cookie = self.next_cookie;
            self.next_cookie += 1;
            let content = if let Data::Out(bytes) = &job.data { Some(bytes) } else { None };
            self.outgoing.push(&job.request, cookie, content);
            let pending = Pending { expected, waiter: Arc::clone(&waiter), job: index, deadline };
            self.pending.insert(cookie, pending);
        }
        waiter
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
