//! Bytes on their way to the socket: the requests of several threads go out in one call.

use super::request::Request;
use super::socket::Socket;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Content from which on it is not copied.
const SHARED: usize = 1 << 10;

/// The most pieces of a call.
const PIECES: usize = 64;

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
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let (mut small, mut skip) = (self.small_sent, self.sent);
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                let bytes = match piece {
                    OutgoingPiece::Small(len) => {
                        let end = small + len - skip;
                        let bytes = &self.small[small..end];
                        small = end;
                        bytes
                    }
                    OutgoingPiece::Shared(bytes) => &bytes[skip..],
                };
                *slice = IoSlice::new(bytes);
                (skip, count) = (0, count + 1);
            }
            let sent = socket.send(&slices[..count])?;
            self.advance(sent);
        }
        // What TLS has encrypted and not sent yet.
        socket.finish_sending()
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.pieces.front() {
            let (len, is_small) = match first {
                OutgoingPiece::Small(len) => (*len, true),
                OutgoingPiece::Shared(bytes) => (bytes.len(), false),
            };
            let now = sent.min(len - self.sent);
            self.sent += now;
            sent -= now;
            if is_small {
                self.small_sent += now;
            }
            if self.sent < len {
                return;
            }
            self.sent = 0;
            self.pieces.pop_front();
        }
        (self.small_sent, self.sent) = (0, 0);
        self.small.clear();
    }
}
