//! What the leader of a connection has: the bytes that have come, and those that it sends.

use super::error::NbdError;
use super::link::Link;
use super::outgoing::Outgoing;
use super::reply::Header;
use super::socket::{Readiness, Socket};
use super::wire::{TICK, is_tick, lost};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read from the socket at a time.
const BUFFER: usize = 256 << 10;
/// Content from which on it is not copied on its way from the socket.
const LARGE: usize = 32 << 10;
/// How often the leader looks whether a request is late.
const LOOK: Duration = Duration::from_millis(50);
/// The most that one wait counts: while the process was stopped, no time passes for its requests.
const LONGEST_STEP: Duration = Duration::from_millis(500);

/// The side of a connection that one thread at a time has.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) inlet: Inlet,
    /// What has come and was not used yet, from `start` to `end`.
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

/// The socket as the leader uses it.
#[derive(Debug)]
pub(crate) struct Inlet {
    socket: Arc<Socket>,
    /// What is being sent: the leader goes on while it waits for replies.
    pub(crate) unsent: Option<Outgoing>,
    /// Threads leave what they have to send to this thread, while it does not sleep.
    pub(crate) sends_for_others: bool,
    looked: Instant,
    /// No request was in flight when the last leader ended.
    pub(crate) is_idle: bool,
    /// The request whose reply is being received, which is not in the table.
    pub(crate) current: Option<Due>,
}

/// A request, by its cookie, and until when it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) cookie: u64,
    /// By the connection's clock.
    pub(crate) deadline: Duration,
    pub(crate) what: &'static str,
}

impl Reader {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        let looked = Instant::now();
        let inlet =
            Inlet { socket, unsent: None, sends_for_others: false, looked, is_idle: true, current: None };
        Self { inlet, buf: vec![0; BUFFER], start: 0, end: 0 }
    }

    /// Begins to lead. The time in which no request was in flight does not count.
    pub(crate) fn resume(&mut self) {
        self.inlet.current = None;
        if self.inlet.is_idle {
            self.inlet.looked = Instant::now();
        }
    }

    /// Returns what has come and was not used yet.
    pub(crate) fn there(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    pub(crate) fn skip(&mut self, len: usize) {
        self.start += len;
    }

    /// Returns the next `len` bytes, fewer than the buffer has, and leaves them there.
    pub(crate) fn need(&mut self, len: usize, link: &Link) -> Result<&[u8], NbdError> {
        if self.end - self.start < len && self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < len {
            self.end += self.inlet.receive(&mut self.buf[self.end..], link)?;
        }
        Ok(&self.buf[self.start..self.start + len])
    }

    /// Fills `to`: with what is in the buffer, then from the socket.
    pub(crate) fn read(&mut self, to: &mut [u8], link: &Link) -> Result<(), NbdError> {
        let mut done = 0;
        while done < to.len() {
            let rest = &mut to[done..];
            let there = self.end - self.start;
            if there == 0 && rest.len() >= LARGE {
                done += self.inlet.receive(rest, link)?;
                continue;
            }
            let n = there.min(rest.len());
            rest[..n].copy_from_slice(&self.buf[self.start..self.start + n]);
            self.skip(n);
            done += n;
            if done < to.len() {
                self.need((to.len() - done).min(LARGE), link)?;
            }
        }
        Ok(())
    }

    /// Returns the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize, link: &Link) -> Result<Vec<u8>, NbdError> {
        if let Some(bytes) = self.there().get(..len) {
            let bytes = bytes.to_vec();
            self.skip(len);
            return Ok(bytes);
        }
        let mut bytes = vec![0; len];
        self.read(&mut bytes, link)?;
        Ok(bytes)
    }

    /// Returns the header of the next reply, if that has come.
    pub(crate) fn next_header(&self) -> Option<Header> {
        let there = self.there();
        let len = Header::len(*there.first_chunk()?).ok()?;
        Header::parse(there.get(..len)?).ok()
    }
}

impl Inlet {
    /// Receives at least a byte, before a request is late. Sends meanwhile what there is to send.
    fn receive(&mut self, to: &mut [u8], link: &Link) -> Result<usize, NbdError> {
        loop {
            link.send_before_sleep(self)?;
            let received = match self.unsent {
                None => self.socket.read(to),
                Some(_) => self.read_or_send(to),
            };
            match received {
                Ok(0) => return Err(link.known_loss(NbdError::Closed)),
                Err(e) if !is_tick(&e) => return Err(link.known_loss(lost(&e))),
                received => {
                    self.look(link)?;
                    if let Ok(n) = received {
                        return Ok(n);
                    }
                }
            }
        }
    }

    /// Reads if there is something to read. Returns without it as soon as something can be sent.
    fn read_or_send(&self, to: &mut [u8]) -> io::Result<usize> {
        match self.socket.wait(Readiness { read: true, write: true }, TICK)? {
            Readiness { read: true, .. } => self.socket.read(to),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Looks now and then whether a request is late.
    fn look(&mut self, link: &Link) -> Result<(), NbdError> {
        let now = Instant::now();
        let step = now.saturating_duration_since(self.looked);
        if step < LOOK {
            return Ok(());
        }
        self.looked = now;
        link.check_deadlines(step.min(LONGEST_STEP), self.current)
    }
}
