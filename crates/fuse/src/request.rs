//! A request of the kernel, and the answer to it.
//!
//! Both lie in buffers of the thread that serves. The content of a write begins at a page, so that
//! it can go to a device as it is.

use crate::fault::{Answer, Fault};
use crate::wire::{InHeader, OutHeader, WriteIn};
use lanefs::device::AlignedBuf;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most content of one request, in bytes.
pub(crate) const MAX_CONTENT: usize = 1 << 20;

const PAGE: usize = 4096;
/// Where a request begins in its buffer, so that the content of a write begins at a page.
const LEAD: usize = PAGE - size_of::<InHeader>() - size_of::<WriteIn>();

/// Bytes of a buffer.
const ROOM: usize = 2 * PAGE + MAX_CONTENT;

/// The buffer of a thread, for a request or an answer. Pages never touched take no memory.
pub(crate) struct Tray {
    own: AlignedBuf,
    /// A shared buffer, in use instead of `own`.
    lent: Option<AlignedBuf>,
}

impl Tray {
    fn new() -> Self {
        Self { own: AlignedBuf::zeroed(ROOM), lent: None }
    }
}

impl Deref for Tray {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.lent.as_ref().unwrap_or(&self.own)
    }
}

impl DerefMut for Tray {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.lent.as_mut().unwrap_or(&mut self.own)
    }
}

/// Buffers in huge pages that all threads share, used while large requests arrive. A device takes
/// such a request in one piece instead of 256, which is up to twice as fast.
#[derive(Debug)]
pub(crate) struct Desks {
    count: usize,
    /// Allocated at the first use.
    idle: Mutex<Option<Vec<AlignedBuf>>>,
}

impl Desks {
    /// Returns an empty pool of at most `count` buffers.
    pub(crate) fn new(count: usize) -> Self {
        Self { count, idle: Mutex::new(None) }
    }

    /// Lends `tray` a buffer if one is idle (`lent`), or takes its buffer back. Either loses the
    /// content of `tray`.
    pub(crate) fn lend(&self, tray: &mut Tray, lent: bool) {
        if tray.lent.is_some() == lent {
            return;
        }
        let mut idle = self.idle.lock();
        let idle = idle.get_or_insert_with(|| AlignedBuf::slab(ROOM, self.count));
        match tray.lent.take() {
            Some(desk) => idle.push(desk),
            None => tray.lent = idle.pop(),
        }
    }
}

/// The buffer that receives requests.
pub(crate) struct Inbox {
    pub(crate) tray: Tray,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { tray: Tray::new() }
    }

    /// Returns the memory that the kernel writes a request to.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.tray[LEAD..]
    }

    /// Returns the request of `len` bytes in the buffer.
    ///
    /// # Errors
    /// EIO for a request that is shorter than its header.
    pub(crate) fn request(&self, len: usize) -> Answer<Request<'_>> {
        let bytes = self.tray.get(LEAD..LEAD + len).ok_or(Fault(Errno::IO))?;
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| Fault(Errno::IO))?;
        Ok(Request { header, body })
    }
}

/// A request: its header, and the arguments that were not taken yet.
#[derive(Debug, Clone)]
pub(crate) struct Request<'b> {
    pub(crate) header: InHeader,
    body: &'b [u8],
}

impl<'b> Request<'b> {
    /// Returns the request of a header and its arguments.
    pub(crate) fn new(header: InHeader, body: &'b [u8]) -> Self {
        Self { header, body }
    }

    /// Returns the arguments that were not taken yet.
    pub(crate) fn rest(&self) -> &'b [u8] {
        self.body
    }

    /// Takes the next structure.
    ///
    /// # Errors
    /// EINVAL if too few bytes are left.
    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Answer<T> {
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| Fault(Errno::INVAL))?;
        self.body = rest;
        Ok(value)
    }

    /// Takes the next name, up to its NUL.
    ///
    /// # Errors
    /// EINVAL if there is none.
    pub(crate) fn name(&mut self) -> Answer<&'b OsStr> {
        let end = self.body.iter().position(|b| *b == 0).ok_or(Fault(Errno::INVAL))?;
        let (name, rest) = self.body.split_at(end);
        self.body = &rest[1..];
        Ok(OsStr::from_bytes(name))
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// EINVAL if there are fewer.
    pub(crate) fn bytes(&mut self, len: usize) -> Answer<&'b [u8]> {
        let (bytes, rest) = self.body.split_at_checked(len).ok_or(Fault(Errno::INVAL))?;
        self.body = rest;
        Ok(bytes)
    }
}

/// An answer under construction: room for its header, and then its content.
pub(crate) struct Outbox {
    pub(crate) tray: Tray,
    len: usize,
}

/// Where content begins. The header lies before it, at the end of a page.
const CONTENT: usize = PAGE;
const HEADER: usize = CONTENT - size_of::<OutHeader>();

impl Outbox {
    pub(crate) fn new() -> Self {
        Self { tray: Tray::new(), len: 0 }
    }

    /// Begins a new answer.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the content so far.
    pub(crate) fn content(&self) -> &[u8] {
        &self.tray[CONTENT..CONTENT + self.len]
    }

    /// Returns the length of the content so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a structure.
    pub(crate) fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Answer {
        self.put_bytes(value.as_bytes())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// EIO if they do not fit.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> Answer {
        let at = CONTENT + self.len;
        self.tray.get_mut(at..at + bytes.len()).ok_or(Fault(Errno::IO))?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Returns room for `len` bytes after the content. The caller reports by [`said`](Self::said)
    /// how many bytes it has filled.
    ///
    /// # Errors
    /// EINVAL if there is not enough room.
    pub(crate) fn room(&mut self, len: usize) -> Answer<&mut [u8]> {
        let at = CONTENT + self.len;
        self.tray.get_mut(at..at + len).ok_or(Fault(Errno::INVAL))
    }

    /// Appends the first `len` bytes of the room to the content.
    pub(crate) fn said(&mut self, len: usize) {
        self.len += len;
    }

    /// Returns the whole answer, with its header. An error has no content.
    pub(crate) fn finish(&mut self, unique: u64, answer: Answer) -> &[u8] {
        let error = match answer {
            Ok(()) => 0,
            Err(Fault(errno)) => {
                self.len = 0;
                -errno.raw_os_error()
            }
        };
        let len = size_of::<OutHeader>() + self.len;
        let header = OutHeader { len: len as u32, error, unique };
        self.tray[HEADER..CONTENT].copy_from_slice(header.as_bytes());
        &self.tray[HEADER..CONTENT + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desks_are_lent_and_come_back() {
        let desks = Desks::new(2);
        let mut inboxes = [Inbox::new(), Inbox::new(), Inbox::new()];
        inboxes[0].space().fill(1);
        for inbox in &mut inboxes {
            desks.lend(&mut inbox.tray, true);
            assert_eq!(inbox.space().len(), ROOM - LEAD);
            // Content begins at a page.
            assert!(inbox.space()[PAGE - LEAD..].as_ptr().addr().is_multiple_of(PAGE));
        }
        let lent = inboxes.each_ref().map(|inbox| inbox.tray.lent.is_some());
        assert_eq!(lent, [true, true, false]);
        inboxes[0].space().fill(2);
        assert!(inboxes[1..].iter_mut().all(|inbox| inbox.space().iter().all(|byte| *byte == 0)));
        desks.lend(&mut inboxes[0].tray, false);
        assert!(inboxes[0].space().iter().all(|byte| *byte == 1));
        desks.lend(&mut inboxes[2].tray, true);
        assert!(inboxes[2].tray.lent.is_some());
    }
}
