//! An archive that lies in a file as it is: its headers are read, and its data is passed over.

use crate::excerpt::{Excerpt, read_at};
use crate::limit::Limit;
use crate::member::Member;
use crate::tarball::{TarError, TarReader};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are read at once, for a few headers.
const HEADERS: usize = 16 << 10;

/// The archive.
#[derive(Debug)]
pub(crate) struct PlainArchive {
    pub(super) file: Arc<File>,
    /// Its first byte in the file, and its length.
    pub(super) at: u64,
    pub(super) len: u64,
}

impl PlainArchive {
    /// Returns a part of the archive.
    pub(crate) fn excerpt(&self, range: Range<u64>) -> Excerpt {
        Excerpt::File(Arc::clone(&self.file), self.at + range.start..self.at + range.end)
    }

    /// Has `take` take all members, each with the place in the archive where its data is, holes
    /// left out. All that is passed over counts for `limit`.
    pub(crate) fn members<E: From<TarError>>(
        &self,
        limit: &Limit,
        mut take: impl FnMut(Member, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (file, end) = (Arc::clone(&self.file), self.at.saturating_add(self.len));
        let stream = RangeReader { file, at: self.at, end };
        let mut tar = TarReader::new(BufReader::with_capacity(HEADERS, stream));
        let mut counted = 0;
        while let Some(member) = tar.next()? {
            let data = tar.at();
            tar.pass_over(|stream, by| stream.seek_relative(i64::try_from(by).map_err(io::Error::other)?))?;
            tar.check_end(self.len)?;
            limit.count(tar.at() - counted).map_err(TarError::from)?;
            counted = tar.at();
            take(member, data)?;
        }
        Ok(())
    }
}

/// Reads a range of a file.
pub(super) struct RangeReader {
    pub(super) file: Arc<File>,
    pub(super) at: u64,
    pub(super) end: u64,
}

impl Read for RangeReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.at);
        let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = read_at(&self.file, &mut buf[..want], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Seeks in the file, whose end is unknown to it.
impl Seek for RangeReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
