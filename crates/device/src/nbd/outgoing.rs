//! Bytes on their way to the socket: what several threads have queued goes out in one call.
//!
//! That call is send(2). A confined process has none that gathers pieces and raises no signal, so
//! small content is copied behind its request.

use super::request::Request;
use super::socket::Socket;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Content from which on it is not copied.
const SHARED: usize = 16 << 10;

#[derive(Debug)]
enum OutgoingPiece {
    /// So many bytes of `small`.
    Small(usize),
    Shared(Arc<Vec<u8>>),
}

/// Requests that were not sent yet, in order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    small: Vec<u8>,
    pieces: VecDeque<OutgoingPiece>,
    /// Bytes of `small` that are sent.
    small_sent: usize,
    /// Bytes of the first piece that are sent.
    sent: usize,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a request with the content that it writes.
    pub(crate) fn push(&mut self, request: &Request, cookie: u64, content: Option<&Arc<Vec<u8>>>) {
        self.push_small(&request.encode(cookie));
        match content {
            Some(bytes) if bytes.len() < SHARED => self.push_small(bytes),
            Some(bytes) => self.pieces.push_back(OutgoingPiece::Shared(Arc::clone(bytes))),
            None => {}
        }
    }

    fn push_small(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.small.extend_from_slice(bytes);
        match self.pieces.back_mut() {
            Some(OutgoingPiece::Small(len)) => *len += bytes.len(),
            _ => self.pieces.push_back(OutgoingPiece::Small(bytes.len())),
        }
    }

    /// Sends all that the socket takes without waiting.
    ///
    /// # Errors
    /// The socket's; [`WouldBlock`](io::ErrorKind::WouldBlock) where something is left.
    pub(crate) fn send(&mut self, socket: &Socket) -> io::Result<()> {
        while let Some(piece) = self.pieces.front() {
            let bytes = match piece {
                OutgoingPiece::Small(len) => &self.small[self.small_sent..self.small_sent + len - self.sent],
                OutgoingPiece::Shared(bytes) => &bytes[self.sent..],
            };
            let sent = socket.send(bytes, self.pieces.len() > 1)?;
            self.advance(sent);
        }
        // What TLS has encrypted and not sent yet.
        socket.finish_sending()
    }

    /// Notes that so many bytes of the first piece are sent.
    fn advance(&mut self, now: usize) {
        self.sent += now;
        let len = match self.pieces.front() {
            Some(OutgoingPiece::Small(len)) => {
                self.small_sent += now;
                *len
            }
            Some(OutgoingPiece::Shared(bytes)) => bytes.len(),
            None => 0,
        };
        if self.sent >= len {
            self.pieces.pop_front();
            self.sent = 0;
        }
        if self.pieces.is_empty() {
            self.small.clear();
            self.small_sent = 0;
        }
    }
}
