//! How much the archives of a source may unpack to.

use crate::Cause;
use std::io::{self, Read};
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
    pub(crate) fn of<R: Read>(&self, stream: R) -> impl Read + use<'_, R> {
        Limited { limit: self, stream }
    }
}

struct Limited<'a, R> {
    limit: &'a Limit,
    stream: R,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        let take = |left: u64| left.checked_sub(n as u64);
        match self.limit.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(n),
            Err(_) => Err(io::Error::other(Exceeded(self.limit.max))),
        }
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
