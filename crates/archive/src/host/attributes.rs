//! Extended attributes and holes of files of this machine.

use crate::member::{Ranges, Xattrs};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{self, SeekFrom};
use rustix::io::Errno;
use std::ffi::{CStr, CString};

/// What attributes are asked of: an open file, or a name in an open directory that cannot be
/// opened.
#[derive(Debug, Clone)]
pub(crate) enum Attributed<'a> {
    File(BorrowedFd<'a>),
    Name(CString),
}

impl Attributed<'_> {
    /// Returns a name in `dir`, not followed. The path goes through `/proc`, so that neither the
    /// directory's own path nor its length matters.
    pub(crate) fn name(dir: impl AsFd, name: &CStr) -> Self {
        let mut path = format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()).into_bytes();
        path.extend(name.to_bytes());
        Self::Name(CString::new(path).unwrap_or_default())
    }

    fn list(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::File(fd) => fs::flistxattr(fd, buf),
            Self::Name(path) => fs::llistxattr(path, buf),
        }
    }

    fn get(&self, name: &CStr, buf: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::File(fd) => fs::fgetxattr(fd, name, buf),
            Self::Name(path) => fs::lgetxattr(path, name, buf),
        }
    }

    /// Returns all attributes, sorted by name. On a file system without attributes there are none.
    pub(crate) fn all(&self) -> Result<Xattrs, Errno> {
        let names = match grown(512, |buf| self.list(buf)) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut all = Vec::new();
        for name in names.split_inclusive(|b| *b == 0) {
            let name = CStr::from_bytes_with_nul(name).map_err(|_| Errno::INVAL)?;
            match grown(256, |buf| self.get(name, buf)) {
                // Gone meanwhile, or a name that is listed to all and shown to some.
                Err(Errno::NODATA) => {}
                value => all.push((name.to_bytes().to_vec(), value?)),
            }
        }
        all.sort();
        Ok(all)
    }
}

/// Returns the bytes that `read` fills, in a buffer that grows as needed: attributes end at 64 KiB.
fn grown(start: usize, read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; start];
    loop {
        match read(&mut buf) {
            Err(Errno::RANGE) if buf.len() < 1 << 17 => buf.resize(buf.len() * 4, 0),
            n => {
                buf.truncate(n?);
                return Ok(buf);
            }
        }
    }
}

/// Returns the data ranges of an open file of `size` bytes.
pub(crate) fn data_ranges(fd: impl AsFd, size: u64) -> Result<Ranges, Errno> {
    let (mut ranges, mut at) = (Ranges::new(), 0);
    while at < size {
        let start = match fs::seek(&fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // A file system that does not know of holes.
            Err(Errno::INVAL) if ranges.is_empty() => return Ok(vec![(0, size)]),
            Err(e) => return Err(e),
        };
        let end = fs::seek(&fd, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        ranges.push((start, end - start));
        at = end;
    }
    Ok(ranges)
}
