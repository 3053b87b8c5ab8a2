//! Bytes of a file or of memory that a build writes to its volume, and where they come from.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a file or of memory.
#[derive(Debug, Clone)]
pub(crate) enum Excerpt {
    Memory(Arc<Vec<u8>>, Range<usize>),
    File(Arc<File>, Range<u64>),
}

impl From<Vec<u8>> for Excerpt {
    fn from(bytes: Vec<u8>) -> Self {
        let whole = 0..bytes.len();
        Self::Memory(Arc::new(bytes), whole)
    }
}

impl Excerpt {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory(_, range) => range.len() as u64,
            Self::File(_, range) => range.end - range.start,
        }
    }

    /// Returns the bytes of memory that it keeps.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Memory(bytes, _) => bytes.capacity(),
            Self::File(..) => 0,
        }
    }

    /// Returns its bytes, if it has them in memory.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(bytes, range) => bytes.get(range.clone()),
            Self::File(..) => None,
        }
    }

    /// Returns a part of it.
    pub(crate) fn part(&self, range: Range<u64>) -> Self {
        match self {
            Self::Memory(bytes, whole) => {
                let at = |n: u64| whole.start + n as usize;
                Self::Memory(Arc::clone(bytes), at(range.start)..at(range.end))
            }
            Self::File(file, whole) => {
                Self::File(Arc::clone(file), whole.start + range.start..whole.start + range.end)
            }
        }
    }

    /// Calls `take` with the bytes, in order and at most `most` at a time, and their place in it.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and of `take`.
    pub(crate) fn for_each_piece<E: From<io::Error>>(
        &self,
        most: usize,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(bytes) = self.bytes() {
            let mut pieces = bytes.chunks(most).enumerate();
            return pieces.try_for_each(|(n, piece)| take((n * most) as u64, piece));
        }
        let mut bytes = vec![0; most.min(self.len() as usize)];
        for from in (0..self.len()).step_by(most) {
            let piece = &mut bytes[..(self.len() - from).min(most as u64) as usize];
            self.read(from, piece)?;
            take(from, piece)?;
        }
        Ok(())
    }

    /// Fills `buf`, which is not longer than what is left behind `from`, with its bytes from there.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub(crate) fn read(&self, from: u64, mut buf: &mut [u8]) -> io::Result<()> {
        match self {
            // `from` may lie behind the end: in the zeros of a block.
            _ if buf.is_empty() => {}
            Self::Memory(bytes, whole) => {
                let from = whole.start + from as usize;
                buf.copy_from_slice(&bytes[from..from + buf.len()]);
            }
            Self::File(file, whole) => {
                let mut at = whole.start + from;
                while !buf.is_empty() {
                    match read_at(file, buf, at) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(n) => (at, buf) = (at + n as u64, &mut buf[n..]),
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads from a place in a file. Returns how many bytes: 0 only at its end.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}
