//! The buffers of a thread that serves: one for the message of the kernel, one for the answer.
//!
//! The content of a write begins at a page, so that it can go to a device as it is. Threads share
//! buffers in huge pages for large content.

use crate::fault::{Answer, Fault};
use crate::request::MAX_CONTENT;
use crate::wire::{InHeader, OutHeader, WriteIn};
use lanefs::device::AlignedBuf;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use zerocopy::{Immutable, IntoBytes};

const PAGE: usize = 4096;
/// The place of a request in its buffer, so that the content of a write begins at a page.
const LEAD: usize = PAGE - size_of::<InHeader>() - size_of::<WriteIn>();

/// Bytes of a buffer.
const ROOM: usize = 2 * PAGE + MAX_CONTENT;

/// The buffer of a thread, for a request or an answer. Pages never touched take no memory.
pub(crate) struct Buffer {
    own: AlignedBuf,
    /// A shared buffer, in use instead of `own`.
    lent: Option<AlignedBuf>,
}

impl Buffer {
    fn new() -> Self {
        Self { own: AlignedBuf::zeroed(ROOM), lent: None }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.lent.as_ref().unwrap_or(&self.own)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.lent.as_mut().unwrap_or(&mut self.own)
    }
}

/// Buffers in huge pages that all threads share, used while large requests arrive. A device takes
/// such a request in one piece instead of 256, which is up to twice as fast.
#[derive(Debug)]
pub(crate) struct BufferPool {
    count: usize,
    /// Allocated at the first use.
    idle: Mutex<Option<Vec<AlignedBuf>>>,
}

impl BufferPool {
    /// Returns an empty pool of at most `count` buffers.
    pub(crate) fn new(count: usize) -> Self {
        Self { count, idle: Mutex::new(None) }
    }

    /// Lends `buffer` a buffer if one is idle (`lent`), or takes its buffer back. Either loses the
    /// content of `buffer`.
    pub(crate) fn lend(&self, buffer: &mut Buffer, lent: bool) {
        if buffer.lent.is_some() == lent {
            return;
        }
        let mut idle = self.idle.lock();
        let idle = idle.get_or_insert_with(|| AlignedBuf::slab(ROOM, self.count));
        match buffer.lent.take() {
            Some(shared) => idle.push(shared),
            None => buffer.lent = idle.pop(),
        }
    }
}

/// The buffer that receives requests.
pub(crate) struct Inbox {
    pub(crate) buffer: Buffer,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { buffer: Buffer::new() }
    }

    /// Returns the memory that the kernel writes a request to.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.buffer[LEAD..]
    }

    /// Returns the message of `len` bytes in the buffer.
    pub(crate) fn message(&self, len: usize) -> Option<&[u8]> {
        self.buffer.get(LEAD..)?.get(..len)
    }
}

/// An answer under construction: room for its header, and then its content.
pub(crate) struct Outbox {
    pub(crate) buffer: Buffer,
    len: usize,
}

/// The place where content begins. The header lies before it, at the end of a page.
const CONTENT: usize = PAGE;
const HEADER: usize = CONTENT - size_of::<OutHeader>();

impl Outbox {
    pub(crate) fn new() -> Self {
        Self { buffer: Buffer::new(), len: 0 }
    }

    /// Begins a new answer.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the content so far.
    pub(crate) fn content(&self) -> &[u8] {
        &self.buffer[CONTENT..CONTENT + self.len]
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
        self.buffer.get_mut(at..at + bytes.len()).ok_or(Fault(Errno::IO))?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Returns room for `len` bytes after the content. The caller reports by
    /// [`filled`](Self::filled) how many bytes it has filled.
    ///
    /// # Errors
    /// EINVAL if there is not enough room.
    pub(crate) fn room(&mut self, len: usize) -> Answer<&mut [u8]> {
        let at = CONTENT + self.len;
        self.buffer.get_mut(at..at + len).ok_or(Fault(Errno::INVAL))
    }

    /// Appends the first `len` bytes of the room to the content.
    pub(crate) fn filled(&mut self, len: usize) {
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
        self.buffer[HEADER..CONTENT].copy_from_slice(header.as_bytes());
        &self.buffer[HEADER..CONTENT + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_lent_and_come_back() {
        let pool = BufferPool::new(2);
        let mut inboxes = [Inbox::new(), Inbox::new(), Inbox::new()];
        inboxes[0].space().fill(1);
        for inbox in &mut inboxes {
            pool.lend(&mut inbox.buffer, true);
            assert_eq!(inbox.space().len(), ROOM - LEAD);
            // Content begins at a page.
            assert!(inbox.space()[PAGE - LEAD..].as_ptr().addr().is_multiple_of(PAGE));
        }
        let lent = inboxes.each_ref().map(|inbox| inbox.buffer.lent.is_some());
        assert_eq!(lent, [true, true, false]);
        inboxes[0].space().fill(2);
        assert!(inboxes[1..].iter_mut().all(|inbox| inbox.space().iter().all(|byte| *byte == 0)));
        pool.lend(&mut inboxes[0].buffer, false);
        assert!(inboxes[0].space().iter().all(|byte| *byte == 1));
        pool.lend(&mut inboxes[2].buffer, true);
        assert!(inboxes[2].buffer.lent.is_some());
    }
}
