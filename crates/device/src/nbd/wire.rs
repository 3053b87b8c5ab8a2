//! Numbers of the protocol, and bytes that come in time.
//!
//! Sockets have a short timeout of their own, a tick. What reads or writes goes on after a tick
//! until its own deadline.

use super::error::NbdError;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// How long a call of a socket waits before it looks at the time.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Flags of an export, as the server sends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportFlags(pub u16);

impl ExportFlags {
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;

    pub(crate) fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }
}

/// Returns whether a call of a socket has only waited for a tick.
pub(crate) fn is_tick(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Returns what an error of a socket means.
pub(crate) fn lost(e: &io::Error) -> NbdError {
    match e.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::BrokenPipe
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::WriteZero => NbdError::Closed,
        // What TLS found wrong.
        ErrorKind::InvalidData => NbdError::Tls { why: e.to_string() },
        _ => NbdError::Socket { why: e.to_string() },
    }
}

/// A stream whose bytes come before a deadline.
pub(crate) struct Timed<'a, S> {
    stream: &'a mut S,
    deadline: Instant,
    seconds: u64,
}

impl<'a, S: Read + Write> Timed<'a, S> {
    pub(crate) fn new(stream: &'a mut S, timeout: Duration) -> Self {
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or(now);
        Self { stream, deadline, seconds: timeout.as_secs() }
    }

    fn check(&self) -> Result<(), NbdError> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(NbdError::Timeout { what: "negotiation", seconds: self.seconds }),
        }
    }

    /// Fills `buf`.
    ///
    /// # Errors
    /// A loss.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> Result<(), NbdError> {
        let mut done = 0;
        while done < buf.len() {
            match self.stream.read(&mut buf[done..]) {
                Ok(0) => return Err(NbdError::Closed),
                Ok(n) => done += n,
                Err(e) if is_tick(&e) => {}
                Err(e) => return Err(lost(&e)),
            }
            self.check()?;
        }
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], NbdError> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// A loss.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), NbdError> {
        let mut rest = bytes;
        loop {
            let done = match rest {
                [] => self.stream.flush().map(|()| 0),
                rest => self.stream.write(rest),
            };
            match done {
                Ok(_) if rest.is_empty() => return Ok(()),
                Ok(0) => return Err(NbdError::Closed),
                Ok(n) => rest = &rest[n..],
                Err(e) if is_tick(&e) => {}
                Err(e) => return Err(lost(&e)),
            }
            self.check()?;
        }
    }
}

/// Takes the number at the front of `bytes`.
pub(crate) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (field, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*field))
}

/// Takes the number at the front of `bytes`.
pub(crate) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (field, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*field))
}
