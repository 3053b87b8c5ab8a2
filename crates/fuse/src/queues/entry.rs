//! Requests by io_uring: an entry of one of the kernel's queues takes a request and its answer.
//!
//! The kernel writes header and arguments of a request to one place, and its content to another.
//! The two first are copied to just before the content, so that the message is what `/dev/fuse`
//! has, and the content of a write begins at a page. The kernel's numbers are checked: a length or
//! an error that cannot be is EIO, as from `/dev/fuse`.

use crate::buffers::Outbox;
use crate::fault::Answer;
use crate::request::{MAX_CONTENT, Received};
use crate::wire::{InHeader, OutHeader, RING_ARGS, RING_HEADER, RingSizes};
use lanefs::device::{FuseRing, FuseRingLayout};
use rustix::io::Errno;
use std::io;
use std::mem::size_of;
use std::os::fd::BorrowedFd;
use zerocopy::{FromBytes, IntoBytes};

const PAGE: usize = 4096;
/// The place of content. The message is assembled between the header and this place.
const CONTENT: usize = 2 * PAGE;
const LAYOUT: FuseRingLayout =
    FuseRingLayout { header: RING_HEADER, content: CONTENT, len: CONTENT + MAX_CONTENT };
const HEAD: usize = size_of::<InHeader>();
/// The place of the lengths in the header.
const SIZES: usize = RING_HEADER - size_of::<RingSizes>();

/// An entry of a queue.
#[derive(Debug)]
pub(crate) struct Entry<'d> {
    ring: FuseRing,
    device: BorrowedFd<'d>,
    queue: u16,
    /// The number by which the kernel knows the request that was taken last.
    id: u64,
    /// Lengths of arguments and content of that request, `None` if they contradict each other.
    lens: Option<(usize, usize)>,
}

impl<'d> Entry<'d> {
    /// Registers an entry: the calling thread takes its requests.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(mut ring: FuseRing, device: BorrowedFd<'d>, queue: u16) -> io::Result<Self> {
        ring.register(device, queue, LAYOUT)?;
        ring.submit()?;
        Ok(Self { ring, device, queue, id: 0, lens: None })
    }

    /// Waits for a request. Returns whether there is one: `false` when the mount is gone.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        match self.ring.wait() {
            Ok(()) => self.assemble().map(|()| true),
            Err(e) if is_end(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Puts the parts of the message together.
    fn assemble(&mut self) -> io::Result<()> {
        let memory = self.ring.memory().ok_or(Errno::PROTO)?;
        let sizes = RingSizes::read_from_bytes(&memory[SIZES..RING_HEADER]).map_err(|_| Errno::PROTO)?;
        let (header, _) = InHeader::read_from_prefix(memory).map_err(|_| Errno::PROTO)?;
        self.id = sizes.commit_id;
        self.lens = lens(header.len as usize, sizes.payload_size as usize);
        if let Some((args, _)) = self.lens {
            memory.copy_within(RING_ARGS.start..RING_ARGS.start + args, CONTENT - args);
            memory.copy_within(..HEAD, CONTENT - args - HEAD);
        }
        Ok(())
    }

    /// Returns the request that was taken last, decoded. A message whose lengths contradict each
    /// other is EIO.
    ///
    /// # Errors
    /// EPROTO if there is none.
    pub(crate) fn received(&mut self) -> io::Result<Received<'_>> {
        let lens = self.lens;
        let memory = self.ring.memory().ok_or(Errno::PROTO)?;
        let received = match lens {
            Some((args, content)) => Received::decode(&memory[CONTENT - args - HEAD..CONTENT + content]),
            None => InHeader::read_from_prefix(memory)
                .ok()
                .map(|(header, _)| Received { header, request: Err(Errno::IO.into()) }),
        };
        received.ok_or(Errno::PROTO.into())
    }

    /// Answers the request that was taken last. The kernel has the answer with the next
    /// [`hand_over`](Self::hand_over) or [`receive`](Self::receive).
    pub(crate) fn answer(&mut self, unique: u64, outbox: &mut Outbox, answer: Answer) -> io::Result<()> {
        let memory = self.ring.memory().ok_or(Errno::PROTO)?;
        let (head, content) = outbox.finish(unique, answer).split_at(size_of::<OutHeader>());
        memory[..head.len()].copy_from_slice(head);
        memory[CONTENT..CONTENT + content.len()].copy_from_slice(content);
        let sizes =
            RingSizes { commit_id: self.id, payload_size: content.len() as u32, ..RingSizes::default() };
        memory[SIZES..RING_HEADER].copy_from_slice(sizes.as_bytes());
        self.ring.commit(self.device, self.queue, self.id)
    }

    /// Hands the answer to the kernel, and does not wait.
    pub(crate) fn hand_over(&self) -> io::Result<()> {
        self.ring.submit()
    }
}

/// Returns the lengths of arguments and content of a message of `len` bytes, `content` of which are
/// content. `None` if they contradict each other.
fn lens(len: usize, content: usize) -> Option<(usize, usize)> {
    let args = len.checked_sub(HEAD)?.checked_sub(content)?;
    (args <= RING_ARGS.len() && content <= MAX_CONTENT).then_some((args, content))
}

fn is_end(e: &io::Error) -> bool {
    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOTCONN | Errno::CANCELED | Errno::NODEV | Errno::CONNABORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_cannot_be_are_no_message() {
        assert_eq!(lens(40, 0), Some((0, 0)));
        assert_eq!(lens(40 + 40 + 4096, 4096), Some((40, 4096)));
        assert_eq!(lens(40 + 128 + MAX_CONTENT, MAX_CONTENT), Some((128, MAX_CONTENT)));
        for (len, content) in [
            (0, 0),
            (39, 0),
            (40, 1),
            (40 + 129, 0),
            (40 + MAX_CONTENT + 1, MAX_CONTENT + 1),
            (0, u32::MAX as usize),
            (u32::MAX as usize, 0),
        ] {
            assert_eq!(lens(len, content), None, "{len} {content}");
        }
    }
}
