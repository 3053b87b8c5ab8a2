//! How much the archives of a source may unpack to.

use crate::Cause;
use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that are left of all archives together.
#[derive(Debug)]
pub(crate) struct Limit {
    max: u64,
    left: AtomicU64,
}

/// More was unpacked than the caller allows.
#[derive(Debug, thiserror::Error)]
#[error("it unpacks to more than {0} bytes")]
pub(crate) struct Exceeded(u64);

impl Limit {
    /// Returns a limit of `max` bytes; `None` is any number.
    pub(crate) fn new(max: Option<u64>) -> Self {
        let max = max.unwrap_or(u64::MAX);
        Self { max, left: AtomicU64::new(max) }
    }

    /// Returns a reader whose bytes count.
    pub(crate) fn of<R: BufRead>(&self, stream: R) -> impl BufRead + use<'_, R> {
        Limited { limit: self, stream, counted: 0 }
    }

    /// Counts bytes that are there.
    pub(crate) fn count(&self, bytes: u64) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(bytes);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::other(Exceeded(self.max))),
        }
    }
}

struct Limited<'a, R> {
    limit: &'a Limit,
    stream: R,
    /// Bytes of the stream's buffer that count already.
    counted: usize,
}

impl<R: BufRead> Read for Limited<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.counted > 0 {
            let n = self.fill_buf()?.read(buf)?;
            self.consume(n);
            return Ok(n);
        }
        let n = self.stream.read(buf)?;
        self.limit.count(n as u64)?;
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Limited<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let there = self.stream.fill_buf()?;
        self.limit.count((there.len() - self.counted) as u64)?;
        self.counted = there.len();
        Ok(there)
    }

    fn consume(&mut self, n: usize) {
        self.counted -= n;
        self.stream.consume(n);
    }
}

impl From<io::Error> for Cause {
    fn from(e: io::Error) -> Self {
        match e.get_ref().and_then(|inner| inner.downcast_ref::<Exceeded>()) {
            Some(Exceeded(max)) => Self::TooLarge(*max),
            None => Self::Io(e),
        }
    }
}
