//! Waiting for replies, and leading: the part of a connection that receives.
//!
//! Hazard: a thread that is answered returns without a lock. So it leaves `sleepers` under the lock
//! of its last answer, and is not chosen to lead after that.

use super::error::NbdError;
use super::job::{Arrival, Data, Job, Waiter};
use super::link::{Link, WAIT};
use super::reader::{Due, Reader};
use super::reply::{Content, Header, extents};
use super::request::Command;
use super::stream::Readiness;
use super::table::{Handed, Pending};
use super::wire::lost;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Content from which on its owner reads it itself, if that sleeps.
const LARGE: usize = 32 << 10;

impl Link {
    /// Waits until the requests of `waiter` are answered; leads if no other thread does.
    pub(super) fn wait(&self, waiter: &Arc<Waiter>, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
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

    /// Goes on sending what threads have left to the next leader, for a thread that has more to
    /// send before it waits. Leads meanwhile. Ends when all is sent, when the socket takes nothing
    /// for a while, or when content of another thread is for that to read.
    ///
    /// # Errors
    /// A loss, or a reply that breaks a rule: the connection has ended.
    pub(crate) fn push(&self) -> Result<(), NbdError> {
        let reader = {
            let mut table = self.table();
            let is_free = table.lost.is_none() && table.handed.is_none();
            table.reader.take_if(|reader| is_free && reader.inlet.unsent.is_some())
        };
        let Some(mut reader) = reader else { return Ok(()) };
        reader.resume();
        let pushed = self.push_from(&mut reader).and_then(|()| self.leave(reader));
        pushed.map_err(|e| self.end(e))
    }

    fn push_from(&self, reader: &mut Reader) -> Result<(), NbdError> {
        let either = Readiness { read: true, write: true };
        // All replies are for others.
        let nobody = Arc::new(Waiter::new(0, 0));
        loop {
            self.send_before_sleep(&mut reader.inlet)?;
            if reader.inlet.unsent.is_none() {
                return Ok(());
            }
            // A server may take nothing until its replies are read.
            match self.socket.wait(either, WAIT).map_err(|e| self.known_loss(lost(&e)))? {
                Readiness { read: true, .. } if self.receive(reader, &nobody, &mut [])? => return Ok(()),
                Readiness { read: false, write: false } => return Ok(()),
                _ => {}
            }
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
            table.take(cookie)?
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
            Content::FailedAgain => {
                reader.take(body.len.saturating_sub(body.prefix), self)?;
                None
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
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
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

    /// Checks, after `step` of time, that no request is late.
    pub(super) fn check_deadlines(&self, step: Duration, current: Option<Due>) -> Result<(), NbdError> {
        self.table().check_deadlines(step, self.terms.timeout, current)
    }
}
