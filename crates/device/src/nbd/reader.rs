//! The leader's part of a connection: received bytes, and bytes to send. `receive` fills it.

use super::outgoing::Outgoing;
use super::reply::Header;
use super::socket::Socket;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read from the socket at a time.
const BUFFER: usize = 256 << 10;

/// The side of a connection that one thread at a time has.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) inlet: Inlet,
    /// What has come and was not used yet, from `start` to `end`.
    pub(super) buf: Vec<u8>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The socket as the leader uses it.
#[derive(Debug)]
pub(crate) struct Inlet {
    pub(super) socket: Arc<Socket>,
    /// What is being sent: the leader goes on while it waits for replies.
    pub(crate) unsent: Option<Outgoing>,
    /// Threads leave what they have to send to this thread, while it does not sleep.
    pub(crate) sends_for_others: bool,
    pub(super) looked: Instant,
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

    /// Returns the header of the next reply, if that has come.
    pub(crate) fn next_header(&self) -> Option<Header> {
        let there = self.there();
        let len = Header::len(*there.first_chunk()?).ok()?;
        Header::parse(there.get(..len)?).ok()
    }
}
