//! Receiving: fills the leader's part of a connection from the socket, and sends meanwhile.

use super::error::NbdError;
use super::link::Link;
use super::reader::{Inlet, Reader};
use super::stream::Readiness;
use super::wire::{TICK, is_tick, lost};
use std::io;
use std::time::{Duration, Instant};

/// Content from which on it is not copied on its way from the socket.
const LARGE: usize = 32 << 10;
/// How often the leader looks whether a request is late.
const LOOK: Duration = Duration::from_millis(50);
/// The most that one wait counts: while the process was stopped, no time passes for its requests.
const LONGEST_STEP: Duration = Duration::from_millis(500);

impl Reader {
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
