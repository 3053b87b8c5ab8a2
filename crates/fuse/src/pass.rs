//! Passes open files to another process over a socket, with one byte.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Files that are passed at a time, at most.
pub(crate) const MOST: usize = 8;

/// Sends `byte` and files, [`MOST`] at most.
///
/// # Errors
/// The system's; ENOSPC for too many files.
pub(crate) fn send(socket: impl AsFd, byte: u8, files: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::NOSPC);
    }
    let bytes = [byte];
    rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })
    .map(drop)
}

/// Receives a byte and the files that came with it.
///
/// # Errors
/// The system's; EPIPE where the other process has closed the socket.
pub(crate) fn receive(socket: impl AsFd) -> rustix::io::Result<(u8, Vec<OwnedFd>)> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut iov = [IoSliceMut::new(&mut byte)];
        recvmsg(&socket, &mut iov, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files = files.flatten().collect();
    Ok((byte[0], files))
}
