//! A client: reads its request as the bytes arrive, and writes the answer as the client takes it.
//! No call blocks.
//!
//! HTTP/1.0 and 1.1 as far as needed: one GET for each connection. A request is bounded in length,
//! and request and answer together in time.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// The greatest length of a request in bytes, headers included.
const LONGEST: usize = 4096;

/// The time that a connection may last, from the first byte to the last.
const PATIENCE: Duration = Duration::from_secs(2);

/// A status line and a body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Reply {
    /// Returns a reply with one line for people.
    pub(crate) fn line(status: &'static str, text: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }

    pub(super) fn bytes(self, head_only: bool) -> Vec<u8> {
        let Self { status, kind, body } = self;
        let mut text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            body.len()
        );
        if !head_only {
            text.push_str(&body);
        }
        text.into_bytes()
    }
}

/// The answer to a request for a path.
#[derive(Debug)]
pub(crate) enum PathAnswer {
    Reply(Reply),
    /// None from this thread: another thread takes over the stream.
    HandOver(Later),
}

/// The thread that takes over a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Later {
    /// One that holds the device.
    Hold,
    /// The one that closes the volume.
    End,
}

impl From<Reply> for PathAnswer {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Client<S> {
    pub(crate) stream: S,
    pub(crate) deadline: Instant,
    asked: Vec<u8>,
    answer: Option<Vec<u8>>,
    written: usize,
}

/// The event that a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Read,
    Write,
    /// It has its answer, or has gone.
    Nothing,
    /// Another thread, which answers it.
    HandOver(Later),
}

impl<S: Read + Write> Client<S> {
    /// Returns a client on `stream`, which does not block.
    pub(crate) fn new(stream: S) -> Self {
        let deadline = Instant::now() + PATIENCE;
        Self { stream, deadline, asked: Vec::new(), answer: None, written: 0 }
    }

    pub(crate) fn wants(&self) -> Wants {
        if self.answer.is_some() { Wants::Write } else { Wants::Read }
    }

    /// Goes on as far as it goes. `find` has the answer to a path.
    pub(crate) fn step<F: Into<PathAnswer>>(&mut self, find: impl FnOnce(&str) -> F) -> Wants {
        if self.answer.is_none() {
            match self.read() {
                Ok(true) => {}
                Ok(false) => return Wants::Read,
                Err(_) => return Wants::Nothing,
            }
            match reply(&self.asked, find) {
                (PathAnswer::Reply(reply), head_only) => self.answer = Some(reply.bytes(head_only)),
                (PathAnswer::HandOver(later), _) => return Wants::HandOver(later),
            }
        }
        self.write().unwrap_or(Wants::Nothing)
    }

    /// Reads the bytes that have arrived. Returns whether the request is complete, or too long.
    fn read(&mut self) -> io::Result<bool> {
        let mut piece = [0; 1024];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.asked.extend_from_slice(piece.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
            if self.asked.len() > LONGEST || has_ended(&self.asked) {
                return Ok(true);
            }
        }
    }

    fn write(&mut self) -> io::Result<Wants> {
        let answer = self.answer.as_deref().unwrap_or_default();
        while let Some(rest) = answer.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Wants::Write),
                Err(e) => return Err(e),
            }
        }
        Ok(Wants::Nothing)
    }
}

/// Returns whether the request is complete: an empty line ends it.
fn has_ended(asked: &[u8]) -> bool {
    asked.windows(4).any(|w| w == b"\r\n\r\n") || asked.windows(2).any(|w| w == b"\n\n")
}

/// Returns the answer, and whether only its head is wanted.
fn reply<F: Into<PathAnswer>>(asked: &[u8], find: impl FnOnce(&str) -> F) -> (PathAnswer, bool) {
    let refused = |status, text| (Reply::line(status, text).into(), false);
    if asked.len() > LONGEST {
        return refused("431 Request Header Fields Too Large", "the request is too long");
    }
    let line = asked.split(|b| *b == b'\n').next().unwrap_or_default();
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or("").split_ascii_whitespace().collect();
    match *words.as_slice() {
        [method @ ("GET" | "HEAD"), path, version] if version.starts_with("HTTP/1.") => {
            let path = path.split('?').next().unwrap_or(path);
            (find(path).into(), method == "HEAD")
        }
        [_, _, version] if version.starts_with("HTTP/") => refused("405 Method Not Allowed", "only GET"),
        _ => refused("400 Bad Request", "that is no HTTP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, Client<UnixStream>) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (theirs, Client::new(ours))
    }

    fn found(path: &str) -> Reply {
        Reply::line("200 OK", path)
    }

    /// Returns the answer to `asked`.
    fn answer(asked: &[u8]) -> String {
        let (mut theirs, mut client) = pair();
        theirs.write_all(asked).unwrap();
        assert_eq!(client.step(found), Wants::Nothing);
        drop(client);
        // A child that another test has just forked keeps the other end open for a moment.
        theirs.set_nonblocking(false).unwrap();
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_and_what_is_none() {
        let text = answer(b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n/metrics\n"), "{text}");
        assert!(text.contains("Content-Length: 9\r\n"), "{text}");
        assert!(answer(b"HEAD / HTTP/1.0\n\n").ends_with("\r\n\r\n"));
        assert!(answer(b"POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(answer(b"\xff\x00 \r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(answer(&[b'a'; LONGEST + 1]).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn a_slow_one_is_waited_for_and_one_that_goes_is_not() {
        let (mut theirs, mut client) = pair();
        for piece in [&b"GET /"[..], b"stats HT", b"TP/1.1\r\n"] {
            theirs.write_all(piece).unwrap();
            assert_eq!(client.step(found), Wants::Read);
        }
        theirs.write_all(b"\r\n").unwrap();
        assert_eq!(client.step(found), Wants::Nothing);
        let (theirs, mut client) = pair();
        drop(theirs);
        assert_eq!(client.step(found), Wants::Nothing);
    }

    #[test]
    fn one_that_does_not_take_its_answer_is_not_waited_for() {
        let (mut theirs, mut client) = pair();
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let long = Reply { status: "200 OK", kind: "text/plain", body: "x".repeat(4 << 20) };
        assert_eq!(client.step(|_| long), Wants::Write);
        let (mut taken, mut piece) = (0, vec![0; 1 << 20]);
        loop {
            match theirs.read(&mut piece) {
                Ok(n) => taken += n,
                Err(_) if client.step(found) == Wants::Nothing && client.written > 4 << 20 => break,
                Err(_) => {}
            }
        }
        while let Ok(n @ 1..) = theirs.read(&mut piece) {
            taken += n;
        }
        assert_eq!(taken, client.written);
    }
}
